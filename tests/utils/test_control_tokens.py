"""Names of control tokens in texts stay text, with every kind of tokenizer."""

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from verl.utils.control_tokens import ControlTokens

SPECIAL = ["<pad>", "<end>", "<unk>"]


def tokenizer_of(kind: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    characters = [*"<>abdenx ", "\ue000", "\ue001", *"0123456789"]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *characters])}
    made = {
        "bpe": models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"),
        # As in models of sentencepiece, the special tokens are among the pieces.
        "unigram": models.Unigram([(token, -1.0) for token in vocabulary], unk_id=2),
    }[kind]
    tokenizer = Tokenizer(made)
    if kind == "unigram":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_marked_name_is_spelt_and_a_written_one_is_a_token(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    control = ControlTokens(tokenizer)
    assert control.ids == {0, 1, 2}
    said = control.mark({"content": "a<end>b", "list": ["<pad>", 3]})
    assert control.marked(said["content"]) and not control.marked("a<end>")
    ids = control.encode(f"x{said['content']}<end>")
    assert tokenizer.convert_ids_to_tokens(ids) == ["x", "a", "<", "e", "n", "d", ">", "b", "<end>"]
    assert (control.spaced("a<end>"), control.spaced("ab")) == ("a< end>", "ab")


def test_a_mark_that_is_written_is_text() -> None:
    tokenizer = tokenizer_of("bpe")
    control = ControlTokens(tokenizer)
    assert tokenizer.convert_ids_to_tokens(control.encode(control.mark("\ue0001\ue001"))) == ["\ue000", "1", "\ue001"]


def test_the_last_control_token() -> None:
    control = ControlTokens(tokenizer_of("bpe"))
    assert (control.up_to_last(" <end>\n<end>\n"), control.up_to_last("\n")) == (" <end>\n<end>", "\n")
