"""Pairs and judged answers, in all the ways that files write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import build_tiny_tokenizer
from verl.config import PreferenceDataConfig
from verl.data.preference import JudgedDataset, Pair, PairDataset, split_pair

TOKENIZER = build_tiny_tokenizer()
USER = {"role": "user", "content": "q"}
GOOD = {"role": "assistant", "content": "yes"}
BAD = {"role": "assistant", "content": "no"}
CHAT_PROMPT = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def pairs(folder: Path, *rows: dict[str, Any], **config: Any) -> PairDataset:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return PairDataset(path, TOKENIZER, PreferenceDataConfig(**config))


def texts(pair: Pair) -> tuple[str, str, str]:
    """Prompt, chosen and rejected."""
    cut = pair.chosen.prompt_length
    assert pair.rejected.prompt_length == cut and pair.chosen.ids[:cut] == pair.rejected.ids[:cut]
    parts = (pair.chosen.ids[:cut], pair.chosen.ids[cut:], pair.rejected.ids[cut:])
    return tuple(TOKENIZER.decode(ids) for ids in parts)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": "yes", "rejected": "no"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": None, "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
)
def test_chats_written_in_six_ways_are_one_pair(tmp_path: Path, row: dict[str, Any]) -> None:
    assert texts(pairs(tmp_path, row)[0]) == (CHAT_PROMPT, "yes<|im_end|>", "no<|im_end|>")


@pytest.mark.parametrize(
    "row", [{"prompt": "2+2= ", "chosen": "4", "rejected": "5"}, {"chosen": "2+2= 4", "rejected": "2+2= 5"}]
)
def test_strings_with_and_without_a_prompt(tmp_path: Path, row: dict[str, Any]) -> None:
    assert texts(pairs(tmp_path, row)[0]) == ("2+2= ", "4<eos>", "5<eos>")


def test_the_longest_common_beginning_is_the_prompt() -> None:
    long = [USER, GOOD, {"role": "user", "content": "and?"}]
    assert split_pair(None, [*long, GOOD], [*long, BAD]) == (long, [GOOD], [BAD])
    assert split_pair(None, [USER, GOOD], [USER, GOOD]) == ([USER], [GOOD], [GOOD])
    # Words stay whole: "th" is common to both answers, but a token may reach over it.
    assert split_pair(None, "say the", "say three") == ("say ", "the", "three")
    with pytest.raises(ValueError, match="must begin with the same words"):
        split_pair(None, "yes", "no")
    with pytest.raises(ValueError, match="must begin with the same messages"):
        split_pair(None, [USER, GOOD], [{"role": "user", "content": "other"}, BAD])
    with pytest.raises(ValueError, match="one answer is a string and the other a list"):
        split_pair("p", "yes", [BAD])


def test_a_dialogue_that_is_written_out_is_cut_where_the_answer_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What both answers begin with is part of both."""
    told = "\n\nHuman: q\n\nAssistant: a\n\nHuman: and\n\nAssistant: "
    row = {"chosen": f"{told}I say yes", "rejected": f"{told}I say no"}
    assert texts(pairs(tmp_path, row)[0]) == (told, "I say yes<eos>", "I say no<eos>")
    assert caplog.messages == []
    # Where the user's last turn is what differs, all that differs is the answer.
    assert split_pair(None, f"{told}a\n\nHuman: so it", f"{told}a\n\nHuman: so x") == (
        f"{told}a\n\nHuman: so ",
        "it",
        "x",
    )


def test_words_that_count_as_prompt_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"chosen": "2+2= It is 4", "rejected": "2+2= It is 5"}
    dataset = pairs(tmp_path, row, row)
    assert texts(dataset[0]) == texts(dataset[1]) == ("2+2= It is ", "4<eos>", "5<eos>")
    assert len(caplog.messages) == 1
    assert f"{tmp_path}/pairs.jsonl, line 1 has no prompt" in caplog.text
    assert "here '2+2= It is ', count as the prompt" in caplog.text
    assert "write prompts into a column 'prompt'" in caplog.text
    caplog.clear()
    assert [TOKENIZER.decode(item.answer.ids) for item in judged(tmp_path, row)] == [
        "2+2= It is 4<eos>",
        "2+2= It is 5<eos>",
    ]
    assert len(caplog.messages) == 1
    caplog.clear()
    pairs(tmp_path, {"prompt": "2+2= ", "chosen": "It is 4", "rejected": "It is 5"})
    pairs(tmp_path, {"chosen": [USER, GOOD], "rejected": [USER, BAD]})
    assert caplog.messages == []


def test_control_tokens_in_strings_are_text_unless_asked(tmp_path: Path) -> None:
    """<|im_end|> is token 5, <eos> 2."""
    row = {"prompt": "<|im_end|>", "chosen": "a<|im_end|>", "rejected": "b<|im_end|>"}

    def control(**config: Any) -> list[list[int]]:
        pair = pairs(tmp_path, row, **config)[0]
        items = JudgedDataset(tmp_path / "pairs.jsonl", TOKENIZER, PreferenceDataConfig(**config))
        answers = [pair.chosen, pair.rejected, *(item.answer for item in items)]
        return [[token for token in answer.ids if token < 6] for answer in answers]

    assert control() == [[2]] * 4
    assert control(parse_special_tokens=True) == [[5, 5, 2]] * 4


def test_the_later_user_turns_of_an_answer_are_context(tmp_path: Path) -> None:
    more = {"role": "user", "content": "sure?"}
    pair = pairs(tmp_path, {"prompt": [USER], "chosen": [GOOD, more, GOOD], "rejected": [BAD]})[0]
    trained = [i for i, t in zip(pair.chosen.ids, pair.chosen.trained, strict=True) if t]
    assert TOKENIZER.decode(trained) == "yes<|im_end|>yes<|im_end|>"


def test_a_batch_has_chosen_and_rejected_in_one_row(tmp_path: Path) -> None:
    dataset = pairs(
        tmp_path,
        {"prompt": "ab", "chosen": "c", "rejected": "de"},
        {"prompt": "a", "chosen": "cd", "rejected": "e"},
    )
    batch = dataset.collate_fn([dataset[0], dataset[1]])
    a, b, c, d, e = (TOKENIZER.convert_tokens_to_ids(x) for x in "abcde")
    eos, pad = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id
    de = TOKENIZER("de", add_special_tokens=False)["input_ids"]
    cd = TOKENIZER("cd", add_special_tokens=False)["input_ids"]
    assert (de, cd) == ([d, e], [c, d])
    assert batch["input_ids"].tolist() == [
        [[a, b, c, eos, pad], [a, b, d, e, eos]],
        [[pad, a, c, d, eos], [pad, a, e, eos, pad]],
    ]
    assert batch["attention_mask"].tolist() == [[[1, 1, 1, 1, 0], [1] * 5], [[0, 1, 1, 1, 1], [0, 1, 1, 1, 0]]]
    assert batch["response_mask"].tolist() == [[[1, 1, 0], [1, 1, 1]], [[1, 1, 1], [1, 1, 0]]]
    assert batch["index"].tolist() == [0, 1]


def test_long_rows_are_refused_or_cut(tmp_path: Path) -> None:
    row = {"prompt": "abcd", "chosen": "xyz", "rejected": "x"}
    with pytest.raises(ValueError, match=r"line 1: the prompt has 4 tokens, but data.max_prompt_length is 2"):
        pairs(tmp_path, row, max_prompt_length=2)
    with pytest.raises(ValueError, match=r"the response has 4 tokens, but data.max_response_length is 2"):
        pairs(tmp_path, row, max_response_length=2)
    cut = {"max_prompt_length": 2, "max_response_length": 2}
    assert texts(pairs(tmp_path, row, truncation="left", **cut)[0]) == ("cd", "xy", "x<eos>")
    assert texts(pairs(tmp_path, row, truncation="right", **cut)[0]) == ("ab", "xy", "x<eos>")


def test_a_chat_that_does_not_answer_the_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: the answer is a whole chat that does not begin with the prompt"):
        pairs(tmp_path, {"prompt": "other", "chosen": [USER, GOOD], "rejected": [USER, BAD]})


def test_a_column_that_a_row_lacks_is_named_with_its_key(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "good": "x", "rejected": "y"}, {"prompt": "a", "rejected": "y"}]
    with pytest.raises(ValueError, match=r"line 2: there is no column 'good', only prompt, rejected \(data.chosen_key"):
        pairs(tmp_path, *rows, chosen_key="good")
    with pytest.raises(ValueError, match=r"expected chosen, rejected \(chosen by data.chosen_key, data.rejected_key\)"):
        pairs(tmp_path, *rows)


def judged(folder: Path, *rows: dict[str, Any]) -> JudgedDataset:
    path = folder / "judged.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return JudgedDataset(path, TOKENIZER, PreferenceDataConfig())


def test_judged_answers(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "completion": "yes", "label": True}, {"prompt": "p", "completion": "no", "label": 0}]
    dataset = judged(tmp_path, *rows)
    batch = dataset.collate_fn([dataset[0], dataset[1]])
    assert batch["labels"].tolist() == [True, False] and batch["index"].tolist() == [0, 1]
    assert [TOKENIZER.decode(dataset[i].answer.ids) for i in (0, 1)] == ["pyes<eos>", "pno<eos>"]
    with pytest.raises(ValueError, match="line 1: column 'label' must be true or false, not 'good'"):
        judged(tmp_path, {"prompt": "p", "completion": "yes", "label": "good"})


def test_a_pair_is_two_judged_answers(tmp_path: Path) -> None:
    dataset = judged(tmp_path, {"prompt": "p", "chosen": "yes", "rejected": "no"})
    assert len(dataset) == 2
    assert [(TOKENIZER.decode(item.answer.ids), item.desirable) for item in (dataset[0], dataset[1])] == [
        ("pyes<eos>", True),
        ("pno<eos>", False),
    ]


def test_long_rows_can_be_dropped_beforehand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"prompt": "a", "chosen": "xyz", "rejected": "x"},
        {"prompt": "b", "chosen": "x", "rejected": "y"},
        {"prompt": "abc", "chosen": "x", "rejected": "y"},
    ]
    limits = {"max_prompt_length": 2, "max_response_length": 2, "filter_overlong_rows": True}
    dataset = pairs(tmp_path, *rows, **limits)
    assert [texts(dataset[i]) for i in range(len(dataset))] == [("b", "x<eos>", "y<eos>")]
    assert dataset[0].index == 0
    assert "dropped 2 of 3 rows that are too long (the last one: the prompt has 3 tokens" in caplog.text
    config = PreferenceDataConfig(**limits)
    assert [item.answer.ids[0] for item in JudgedDataset(tmp_path / "pairs.jsonl", TOKENIZER, config)] == [
        TOKENIZER.convert_tokens_to_ids("b")
    ] * 2
    with pytest.raises(ValueError, match=r"all 1 rows, the first being .*line 1, are too long: the response has 4"):
        pairs(tmp_path, rows[0], **limits)


def test_an_answer_that_is_no_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: an answer must be a string or a list of messages"):
        pairs(tmp_path, {"prompt": "p", "chosen": ["yes"], "rejected": ["no"]})
    with pytest.raises(ValueError, match="line 1: an answer must be a string or a list of messages"):
        pairs(tmp_path, {"prompt": "p", "chosen": [], "rejected": []})
