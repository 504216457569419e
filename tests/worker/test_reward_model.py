"""Learned rewards: an encoder with a tokenizer of its own, a causal model with a head, and what becomes of the text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verl.config.loader import load_config
from verl.config.validate import resolve
from verl.models.text import Retokenizer, keep_last
from verl.protocol import DataProto
from verl.worker.reward_model import RewardModelWorker

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "plus", "is", "why"]


def words_tokenizer() -> Any:
    """An encoder's tokenizer: [CLS] a [SEP], or [CLS] a [SEP] b [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DeBERTa-v2 with one label."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    folder = tmp_path_factory.mktemp("deberta")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = DebertaV2Config(
            vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=64, num_labels=1, relative_attention=True, pos_att_type=["p2c", "c2p"],
            position_buckets=8, initializer_range=0.5,
        )  # fmt: skip
        DebertaV2ForSequenceClassification(config).eval().save_pretrained(folder)
    words_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def causal_folder(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """A tiny Llama with a score head, and the policy's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    folder = tmp_path_factory.mktemp("llama_rm")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_labels=1, pad_token_id=0, initializer_range=0.3,
        )  # fmt: skip
        LlamaForSequenceClassification(config).eval().save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)
    return folder


@pytest.fixture
def worker(tiny_model_dir: Path) -> Callable[..., RewardModelWorker]:
    def build(model: Path, *overrides: str) -> RewardModelWorker:
        settings = [
            f"actor_rollout_ref.model.path={tiny_model_dir}", "reward.reward_model.enable=true", "trainer.device=cpu",
            f"reward.reward_model.model.path={model}",
        ]  # fmt: skip
        made = RewardModelWorker(resolve(load_config([*settings, *overrides]), needs_critic=False))
        made.init_model()
        return made

    return build


def rows(tokenizer: Any, pairs: list[tuple[str, str]], chats: bool = False) -> DataProto:
    """Prompts on the left, responses on the right, padded."""
    prompts, answers = ([tokenizer(text)["input_ids"] for text in texts] for texts in zip(*pairs, strict=True))
    left, right = max(map(len, prompts)) + 1, max(map(len, answers)) + 1
    ids = torch.zeros(len(pairs), left + right, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        for start, tokens in ((left - len(prompt), prompt), (left, answer)):
            ids[row, start : start + len(tokens)] = torch.tensor(tokens)
            mask[row, start : start + len(tokens)] = 1
    tensors = {
        "input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(0),
        "responses": ids[:, left:], "response_mask": mask[:, left:],
    }  # fmt: skip
    raw = np.empty(len(pairs), dtype=object)
    raw[:] = [[{"role": "user", "content": prompt}] for prompt, _ in pairs]
    return DataProto.from_dict(tensors, non_tensors={"raw_prompt": raw} if chats else {})


PAIRS = [("one plus two", "three"), ("why", "one two three plus one two"), ("is one two", "two")]


def at_last_tokens(result: DataProto, batch: DataProto) -> torch.Tensor:
    """The scores [B], which must stand at the last sampled tokens and nowhere else."""
    scores, mask = result.batch["rm_scores"], batch.batch["response_mask"]
    last = mask.sum(-1) - 1
    picked = scores[torch.arange(len(mask)), last]
    assert (scores != 0).sum(-1).tolist() == [1] * len(mask)
    assert scores.dtype == torch.float32 and scores.shape == mask.shape
    return picked


@pytest.mark.parametrize("micro", ["null", "1", "2"])
def test_an_encoder_reads_prompt_and_response_as_a_pair(
    worker: Any, encoder_folder: Path, tiny_tokenizer: Any, micro: str
) -> None:
    """The same scores as transformers gives, row by row, whatever the micro-batches."""
    from transformers import AutoModelForSequenceClassification

    batch = rows(tiny_tokenizer, PAIRS)
    result = worker(encoder_folder, f"reward.reward_model.micro_batch_size_per_gpu={micro}").compute_rm_score(batch)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(encoder_folder), words_tokenizer()
    with torch.no_grad():
        expected = [model(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in PAIRS]
    assert at_last_tokens(result, batch).tolist() == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 4) for score in expected}) == 3


def test_a_causal_model_with_the_policys_tokenizer(worker: Any, causal_folder: Path, tiny_tokenizer: Any) -> None:
    from transformers import AutoModelForSequenceClassification

    batch = rows(tiny_tokenizer, PAIRS)
    scores = at_last_tokens(worker(causal_folder).compute_rm_score(batch), batch)
    model = AutoModelForSequenceClassification.from_pretrained(causal_folder)
    for score, (prompt, answer) in zip(scores, PAIRS, strict=True):
        ids = tiny_tokenizer(prompt)["input_ids"] + tiny_tokenizer(answer)["input_ids"]
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([ids])).logits.item()
        assert float(score) == pytest.approx(expected, abs=1e-5)
    short = worker(causal_folder, "reward.reward_model.max_length=4").compute_rm_score(batch)
    for score, (prompt, answer) in zip(at_last_tokens(short, batch), PAIRS, strict=True):
        ids = (tiny_tokenizer(prompt)["input_ids"] + tiny_tokenizer(answer)["input_ids"])[-4:]
        with torch.no_grad():
            assert float(score) == pytest.approx(model(input_ids=torch.tensor([ids])).logits.item(), abs=1e-5)


def test_a_row_without_response_tokens_scores_nothing(worker: Any, causal_folder: Path, tiny_tokenizer: Any) -> None:
    batch = rows(tiny_tokenizer, PAIRS)
    batch.batch["response_mask"][1] = 0
    scores = worker(causal_folder).compute_rm_score(batch).batch["rm_scores"]
    assert scores[1].abs().sum() == 0 and scores[0].abs().sum() > 0


def test_a_score_that_is_not_finite_names_its_text(worker: Any, causal_folder: Path, tiny_tokenizer: Any) -> None:
    """D4 for learned rewards. A row that was excluded may score what it will."""
    batch = rows(tiny_tokenizer, PAIRS)
    made = worker(causal_folder)
    with torch.no_grad():
        next(made.engine.module.hf_model.score.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match=r"gave the score nan to a text of \d+ tokens that ends in '.*three'"):
        made.compute_rm_score(batch)
    batch.batch["response_mask"][:] = 0
    assert made.compute_rm_score(batch).batch["rm_scores"].count_nonzero() == 0


def test_formats_of_the_text(tiny_tokenizer: Any) -> None:
    """Each format, and what is left of a text that is too long: its end, with the special tokens."""
    target = words_tokenizer()

    def read(batch: DataProto, **settings: Any) -> list[str]:
        retokenize = Retokenizer(tiny_tokenizer, target, **settings)
        texts = retokenize(batch.batch, batch.non_tensor_batch.get("raw_prompt"))
        assert texts["position_ids"][0, :2].tolist() == [0, 1]
        keep = texts["attention_mask"].bool()
        return [
            " ".join(target.convert_ids_to_tokens(ids[valid]))
            for ids, valid in zip(texts["input_ids"], keep, strict=True)
        ]

    plain, chats = rows(tiny_tokenizer, PAIRS[:1]), rows(tiny_tokenizer, PAIRS[:1], chats=True)
    pair = ["[CLS] one plus two [SEP] three [SEP]"]
    assert read(plain) == read(chats) == read(plain, text_format="pair") == pair
    assert read(plain, text_format="text") == ["[CLS] one plus [UNK] [SEP]"]  # "twothree"
    assert read(plain, max_length=5) == ["[CLS] two [SEP] three [SEP]"]
    with pytest.raises(ValueError, match="text_format=chat, but its tokenizer has no chat_template"):
        read(chats, text_format="chat")
    target.chat_template = "{% for m in messages %}{{ m.role }} is {{ m.content }} {% endfor %}"
    assert read(chats) == read(chats, text_format="chat") == ["[UNK] is one plus two [UNK] is three"]
    assert read(plain) == pair
    target.chat_template = "{% for m in messages %}{{ 'two' if 'tool_calls' in m else 'one' }} {% endfor %}"
    chats.non_tensor_batch["raw_prompt"][0][0]["tool_calls"] = None  # as a table has it whose other rows have calls
    assert read(chats) == ["one one"]
    target.chat_template = "{% for m in messages %}{{ m.role }} is {{ m.content }} {% endfor %}"
    assert read(chats, max_length=3) == ["[UNK] is three"]
    with pytest.raises(ValueError, match="needs chats, but the batch has none"):
        read(plain, text_format="chat")
    with pytest.raises(ValueError, match="text_format=pair, but its tokenizer has no sep_token"):
        Retokenizer(target, tiny_tokenizer, text_format="pair")


def causal_tokenizer() -> Any:
    """A causal model's tokenizer of whole words, without a separator: <s> a."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", "<end>", "user", "assistant", "why", "one", "two", "\n", "<", ">", "end"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    split = pre_tokenizers.Split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split(" ", "removed"), split("\n", "isolated"), split("<", "isolated"), split(">", "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=["<end>"],
    )  # fmt: skip


TURNS = "{% for m in messages %}{{ m.role }} {{ m.content }} <end>\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "text_end", "finished", "cut"),
    [
        (None, "template", "<s> why one two </s>", "<s> why one two"),
        (TURNS, "template", "user why <end> \n assistant one two <end> \n", "user why <end> \n assistant one two"),
        (TURNS, "turn", "user why <end> \n assistant one two <end>", "user why <end> \n assistant one two"),
        ("{{ messages[1].content | trim }}{{ '\\n' }}", "turn", "one two \n", "one two"),  # no end of turn
    ],
)
def test_a_response_that_was_cut_is_not_read_as_if_it_had_ended(
    tiny_tokenizer: Any, template: str | None, text_end: Any, finished: str, cut: str
) -> None:
    """What stands last is what a causal model is asked at. The end tokens <|im_end|> and <eos> of the policy's
    vocabulary become those of the other's; a response of the full width without one was cut."""
    target = causal_tokenizer()
    target.chat_template = template
    retokenize = Retokenizer(tiny_tokenizer, target, text_end=text_end)
    answer = tiny_tokenizer(" one two")["input_ids"]
    width = len(answer) + 1
    responses = [[*answer, 5], [*answer, 2], answer, [*answer, tiny_tokenizer(" ")["input_ids"][0]]]
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in responses])
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in responses])
    prompt = torch.tensor([tiny_tokenizer("why")["input_ids"]] * 4)
    batch = DataProto.from_dict(
        {
            "input_ids": torch.cat([prompt, ids], dim=1),
            "attention_mask": torch.cat([torch.ones_like(prompt), mask], dim=1),
            "responses": ids,
            "response_mask": mask,
        }
    ).batch
    texts = retokenize(batch, [[{"role": "user", "content": "why"}]] * 4)
    kept = texts["attention_mask"].bool()
    read = [
        " ".join(target.convert_ids_to_tokens(row[keep])) for row, keep in zip(texts["input_ids"], kept, strict=True)
    ]
    assert read == [finished, finished, finished, cut]  # the third stopped early, by a stop token that was left out


def test_control_tokens_of_the_reward_model_cannot_be_spelt_out(tiny_tokenizer: Any) -> None:
    """Or a policy would soon end its turn and praise itself in the user's name."""
    target = causal_tokenizer()
    batch = rows(tiny_tokenizer, [("why", "one <end>")], chats=True)
    for template, expected in (
        (None, "<s> <unk> < end > </s>"),  # "whyone"
        (TURNS, "user why <end> \n assistant one < end > <end> \n"),
    ):
        target.chat_template = template
        texts = Retokenizer(tiny_tokenizer, target)(batch.batch, batch.non_tensor_batch["raw_prompt"])
        assert " ".join(target.convert_ids_to_tokens(texts["input_ids"][0])) == expected


def test_keep_last() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    assert keep_last(mask, 2).tolist() == [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]
