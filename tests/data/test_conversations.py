"""What is trained on in a chat: the assistant's tokens with the one that ends its turn, and nothing else."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CHAT_TEMPLATE, build_tiny_tokenizer
from verl.data.conversations import ConversationEncoder, Encoded
from verl.data.prompts import PromptEncoder

TOKENIZER = build_tiny_tokenizer()
FORGETFUL = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content if loop.last or message.role != 'assistant' else '...' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Leaves out what the assistant said before, as templates of thinking models do."""
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def encoder(template: str | None = None, parse_special_tokens: bool = False) -> ConversationEncoder:
    return ConversationEncoder(PromptEncoder(TOKENIZER, template, parse_special_tokens=parse_special_tokens))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


TWO_TURNS = [user("q1"), assistant("yes"), user("q2"), assistant("no")]


def text_of(encoded: Encoded, value: int) -> str:
    return TOKENIZER.decode([i for i, t in zip(encoded.ids, encoded.trained, strict=True) if t == value])


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, MARKED])
def test_every_assistant_turn_with_its_end_token(template: str) -> None:
    encoded = encoder(template).chat(TWO_TURNS)
    assert text_of(encoded, 1) == "yes<|im_end|>no<|im_end|>"
    context = "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(encoded, 0) == f"{context}\n{context.replace('q1', 'q2')}"
    assert encoded.trained[-1] == 1, "the newline after the last end token is left out"


def test_the_prompt_is_tokenized_as_for_generation() -> None:
    encoded = encoder().chat(TWO_TURNS, context=3)
    prompt = PromptEncoder(TOKENIZER)(TWO_TURNS[:3])
    assert encoded.ids[: encoded.prompt_length] == prompt
    assert text_of(encoded, 1) == "no<|im_end|>"


def test_a_template_that_rewrites_the_past_is_refused_unless_it_marks_the_assistants_words() -> None:
    with pytest.raises(ValueError, match=r"does not write the first 1 messages the same .*generation"):
        encoder(FORGETFUL).chat(TWO_TURNS)
    assert text_of(encoder(FORGETFUL).chat(TWO_TURNS[:2]), 1) == "yes<|im_end|>"
    marked = (
        "{% for message in messages %}{{ message.role }}:{% if message.role == 'assistant' %}{% generation %}"
        "{{ message.content if loop.last else '...' }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    )
    assert text_of(encoder(marked).chat(TWO_TURNS), 1) == "...<|im_end|>no<|im_end|>"


def test_control_tokens_in_what_is_said_are_text() -> None:
    encoded = encoder().chat([user("x"), assistant("a<|im_end|>b")])
    end = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    assert text_of(encoded, 1) == "a<|im_end|>b<|im_end|>"
    said = [i for i, trained in zip(encoded.ids, encoded.trained, strict=True) if trained]
    assert said.count(end) == 1 and said[-1] == end


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="no assistant message to train on"):
        encoder().chat([user("x")])
    with pytest.raises(ValueError, match="no assistant message to train on"):
        encoder().chat(TWO_TURNS[:2], context=2)
    with pytest.raises(ValueError, match="begins with an assistant message"):
        encoder().chat([assistant("hi")])
    with pytest.raises(ValueError, match="an answer must be a string, not a int"):
        encoder().answer("p", 3)  # type: ignore[arg-type]


def test_a_plain_answer_ends_in_eos_once() -> None:
    for written in ("yes", "yes<eos>"):
        encoded = encoder(parse_special_tokens=True).answer("2+2=", written)
        assert text_of(encoded, 0) == "2+2=" and text_of(encoded, 1) == "yes<eos>"
        assert encoded.ids[-1] == TOKENIZER.eos_token_id and encoded.trained[-1] == 1
    chat = encoder().answer([user("2+2?")], "4")
    assert text_of(chat, 1) == "4<|im_end|>"


def test_control_tokens_in_plain_prompts_and_answers_are_text_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    """Ids below 6 are control tokens, 2 is <eos>, 5 is <|im_end|>."""
    prompt, answer = "<|im_end|>q", "<|im_end|>a<eos>"
    plain = encoder()
    for _ in range(2):
        encoded = plain.answer(prompt, answer)
    assert [token for token in encoded.ids if token < 6] == [2]
    assert TOKENIZER.decode(encoded.ids) == f"{prompt}{answer}<eos>"
    assert len(caplog.messages) == 1
    assert "as in '<|im_end|>q<|im_end|>a<eos>': set data.parse_special_tokens=true" in caplog.text
    asked = encoder(parse_special_tokens=True).answer(prompt, answer)
    assert [token for token in asked.ids if token < 6] == [5, 5, 2]
    assert TOKENIZER.decode(asked.ids) == f"{prompt}{answer}"
    # What is said in a chat is text in any case.
    chat = encoder(parse_special_tokens=True).answer([user("q")], answer)
    assert text_of(chat, 1) == f"{answer}<|im_end|>" and [t for t in chat.ids if t < 6] == [4, 5, 4, 5]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("asked", [True, False])
def test_marks_that_are_written_into_an_answer_are_text(asked: bool) -> None:
    """99 is the number of no control token; 5 would be that of one."""
    for prompt in ("q", [user("q")]):
        encoded = encoder(parse_special_tokens=asked).answer(prompt, "\ue00099\ue001\ue0005\ue001")
        assert text_of(encoded, 1).startswith("<unk>99<unk><unk>5<unk>")


ROLES = st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=6).map(lambda roles: ["user", *roles])


@given(roles=ROLES, words=st.lists(st.text("abth e", min_size=1, max_size=6), min_size=7, max_size=7))
@settings(max_examples=50, deadline=None)
def test_marks_and_prefixes_agree(roles: list[str], words: list[str]) -> None:
    messages: list[dict[str, Any]] = [{"role": r, "content": w} for r, w in zip(roles, words, strict=False)]
    if "assistant" not in roles:
        messages.append(assistant("x"))
    assert encoder(CHAT_TEMPLATE).chat(messages) == encoder(MARKED).chat(messages)
