"""Rows of supervised fine-tuning: what is kept of a long one, and how rows become a batch."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import build_tiny_tokenizer
from verl.config import SFTDataConfig
from verl.data.conversations import Encoded
from verl.data.sft_dataset import SFTDataset, cut_row

TOKENIZER = build_tiny_tokenizer()
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_chats_and_plain_rows_may_come_from_different_files(tmp_path: Path) -> None:
    chats = tmp_path / "chats.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": CHAT}]), chats)
    plain = write(tmp_path, {"prompt": "1+1=", "response": "2"}, {"prompt": CHAT[:1], "response": "yes"})
    dataset = SFTDataset([chats, plain], TOKENIZER, SFTDataConfig())
    texts = [TOKENIZER.decode(row.ids) for row in (dataset[0], dataset[1], dataset[2])]
    assert texts[0] == texts[2] == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>"
    assert texts[1] == "1+1=2<eos>"


def test_b13_both_cuts() -> None:
    row = Encoded([11, 12, 13, 21, 22, 2], [0, 0, 0, 1, 1, 1])
    assert cut_row(row, 4, "left") == Encoded([13, 21, 22, 2], [0, 1, 1, 1])
    assert cut_row(row, 4, "right") == Encoded([11, 12, 13, 21], [0, 0, 0, 1])
    assert cut_row(row, 6, "error") is row
    with pytest.raises(ValueError, match=r"the row has 6 tokens, but data.max_length is 4"):
        cut_row(row, 4, "error")


def test_a_batch_is_padded_on_the_right_and_first_tokens_have_no_loss(tmp_path: Path) -> None:
    dataset = SFTDataset(write(tmp_path, {"prompt": "a", "response": "b"}), TOKENIZER, SFTDataConfig())
    batch = dataset.collate_fn([Encoded([7, 8, 9], [0, 1, 1]), Encoded([8, 9], [1, 1])])
    assert batch["input_ids"].tolist() == [[7, 8, 9], [8, 9, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["response_mask"].tolist() == [[0, 1, 1], [0, 1, 0]]


def test_mistakes_are_named_with_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, {"text": "x"})
    with pytest.raises(ValueError, match="rows.jsonl has the columns text: expected messages or prompt, response"):
        SFTDataset(path, TOKENIZER, SFTDataConfig())
    path = write(tmp_path, {"prompt": "x", "response": None})
    with pytest.raises(ValueError, match=r"has the columns prompt, response \(null\): expected"):
        SFTDataset(path, TOKENIZER, SFTDataConfig())
    path = write(tmp_path, {"messages": CHAT}, {"messages": CHAT[:1]})
    with pytest.raises(ValueError, match="rows.jsonl, line 2: the chat has no assistant message"):
        SFTDataset(path, TOKENIZER, SFTDataConfig())[1]
    path = write(tmp_path, {"messages": CHAT}, {"prompt": "x"})
    with pytest.raises(ValueError, match=r"line 2: there is no column 'messages', only prompt \(data.messages_key"):
        SFTDataset(path, TOKENIZER, SFTDataConfig())
    path = write(tmp_path, {"messages": CHAT})
    with pytest.raises(ValueError, match=r"line 1: the row has \d+ tokens, but data.max_length is 5"):
        SFTDataset(path, TOKENIZER, SFTDataConfig(max_length=5))[0]
    with pytest.raises(ValueError, match="no data file is given"):
        SFTDataset([], TOKENIZER, SFTDataConfig())


def test_control_tokens_in_strings_are_text_unless_asked(tmp_path: Path) -> None:
    """<|im_end|> is token 5, <eos> 2."""
    path = write(tmp_path, {"prompt": "<|im_end|>", "response": "a<|im_end|>"})
    plain = SFTDataset(path, TOKENIZER, SFTDataConfig())[0]
    asked = SFTDataset(path, TOKENIZER, SFTDataConfig(parse_special_tokens=True))[0]
    assert [token for token in plain.ids if token < 6] == [2]
    assert [token for token in asked.ids if token < 6] == [5, 5, 2]
    assert TOKENIZER.decode(plain.ids) == TOKENIZER.decode(asked.ids) == "<|im_end|>a<|im_end|><eos>"


def test_long_rows_can_be_dropped_beforehand(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "abc", "response": "d"}, {"prompt": "a", "response": "b"})
    dataset = SFTDataset(path, TOKENIZER, SFTDataConfig(max_length=4, truncation="left", filter_overlong_rows=True))
    assert [TOKENIZER.decode(dataset[i].ids) for i in range(len(dataset))] == ["ab<eos>"]
