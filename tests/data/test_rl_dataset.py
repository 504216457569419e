import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from verl.config import DataConfig
from verl.config.data import CustomClassConfig
from verl.data import RLHFDataset, check_data, collate_fn, load_dataset
from verl.protocol import DataProto


def row(question: str, index: int, **more: Any) -> dict[str, Any]:
    return {
        "data_source": "arithmetic",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"index": index, "split": "train"},
        **more,
    }


def parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def strings(path: Path, prompts: list[str]) -> str:
    path.write_text("".join(json.dumps({"prompt": p, "data_source": "d"}) + "\n" for p in prompts))
    return str(path)


def test_an_item_is_what_the_loop_needs(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = parquet(tmp_path / "a.parquet", [row("1+2=", 10, level=4)])
    item = RLHFDataset(file, tiny_tokenizer, DataConfig(max_prompt_length=60, return_raw_chat=True))[0]
    text = "<|im_start|>user\n1+2=<|im_end|>\n<|im_start|>assistant\n"
    ids = tiny_tokenizer(text)["input_ids"]
    padding = 60 - len(ids)
    assert item["input_ids"].tolist() == [0] * padding + ids
    assert item["attention_mask"].tolist() == [0] * padding + [1] * len(ids)
    assert item["position_ids"].tolist() == [0] * padding + list(range(len(ids)))
    others = {key: value for key, value in item.items() if key not in ("input_ids", "attention_mask", "position_ids")}
    assert others == {
        "data_source": "arithmetic",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"index": 10, "split": "train"},
        "level": 4,
        "index": 10,
        "raw_prompt": [{"role": "user", "content": "1+2="}],
    }


def test_several_files_and_no_raw_chat(tmp_path: Path, tiny_tokenizer: Any) -> None:
    files = [
        parquet(tmp_path / "a.parquet", [row("1", 0), row("2", 1)]),
        strings(tmp_path / "b.jsonl", ["three"]),
    ]
    dataset = RLHFDataset(files, tiny_tokenizer, DataConfig(max_prompt_length=60))
    assert len(dataset) == 3
    assert dataset[2]["index"] == 2  # the file has none: the row's number
    assert tiny_tokenizer.decode(dataset[2]["input_ids"], skip_special_tokens=True) == "three"
    assert "raw_prompt" not in dataset[0] and "prompt" not in dataset[0]


def test_items_collate_into_a_dataproto(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = parquet(tmp_path / "a.parquet", [row("1+2=", 0), row("100+2=", 1)])
    dataset = RLHFDataset(file, tiny_tokenizer, DataConfig(max_prompt_length=60))
    batch = DataProto.from_single_dict(collate_fn([dataset[0], dataset[1]]))
    assert batch.batch["input_ids"].shape == (2, 60)
    assert batch.non_tensor_batch["reward_model"][1] == {"style": "rule", "ground_truth": "3"}
    assert batch.non_tensor_batch["index"].tolist() == [0, 1]


@pytest.mark.parametrize(("truncation", "text"), [("left", "56789"), ("right", "01234"), ("middle", "01789")])
def test_truncation(tmp_path: Path, tiny_tokenizer: Any, truncation: Any, text: str) -> None:
    """F3: every field is cut alike."""
    config = DataConfig(max_prompt_length=5, truncation=truncation)
    item = RLHFDataset(strings(tmp_path / "a.jsonl", ["0123456789"]), tiny_tokenizer, config)[0]
    assert tiny_tokenizer.decode(item["input_ids"]) == text
    assert item["attention_mask"].tolist() == [1, 1, 1, 1, 1]
    assert item["position_ids"].tolist() == [0, 1, 2, 3, 4]


def test_truncation_error_names_row_and_lengths(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """F3."""
    file = strings(tmp_path / "a.jsonl", ["01234", "0123456789"])
    dataset = RLHFDataset(file, tiny_tokenizer, DataConfig(max_prompt_length=5))
    assert dataset[0]["attention_mask"].sum() == 5
    with pytest.raises(ValueError, match="a.jsonl, line 2: the prompt has 10 tokens, but data.max_prompt_length is 5"):
        dataset[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_overlong_prompts_are_dropped_and_counted(
    tmp_path: Path, tiny_tokenizer: Any, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    """F3: lengths are those of the prompt in its template."""
    files = parquet(tmp_path / "a.parquet", [row("1" * (1 + i % 3), i) for i in range(1200)])
    overhead = len(RLHFDataset(files, tiny_tokenizer, DataConfig(max_prompt_length=99))._encode(row("", 0)["prompt"]))
    config = DataConfig(
        max_prompt_length=overhead + 2, filter_overlong_prompts=True, filter_overlong_prompts_workers=workers
    )
    with caplog.at_level(logging.WARNING):
        dataset = RLHFDataset(files, tiny_tokenizer, config)
    assert len(dataset) == 800
    assert [dataset[i]["index"] for i in (0, 1, 2, 799)] == [0, 1, 3, 1198]
    assert "dropped 400 of 1200 prompts" in caplog.text


def test_tools_count_in_the_filter(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """F3: the same prompt fits without the tools and not with them."""
    file = parquet(tmp_path / "a.parquet", [row("x", 0)])
    template = "{% for t in tools or [] %}{{ t.name }}{% endfor %}{{ messages[0].content }}"
    config = DataConfig(max_prompt_length=3, filter_overlong_prompts=True, chat_template=template)
    assert len(RLHFDataset(file, tiny_tokenizer, config)) == 1
    config.apply_chat_template_kwargs = {"tools": [{"name": "look_up"}]}
    with pytest.raises(ValueError, match="all 1 prompts.*longer than data.max_prompt_length=3 tokens: .*has 8"):
        RLHFDataset(file, tiny_tokenizer, config)


def test_filter_names_the_row_of_a_bad_prompt(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = strings(tmp_path / "a.jsonl", ["a", ""])
    config = DataConfig(filter_overlong_prompts=True)
    with pytest.raises(ValueError, match="a.jsonl, line 2: the prompt is empty"):
        RLHFDataset(file, tiny_tokenizer, config)


def test_max_samples_takes_the_first_rows(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = strings(tmp_path / "a.jsonl", ["a", "b", "c"])
    assert [RLHFDataset(file, tiny_tokenizer, DataConfig(), max_samples=n).__len__() for n in (-1, 2, 9)] == [3, 2, 3]
    with pytest.raises(ValueError, match="-1 .all. or at least 1, not 0"):
        RLHFDataset(file, tiny_tokenizer, DataConfig(), max_samples=0)


def test_reward_fn_key_becomes_data_source(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = parquet(tmp_path / "a.parquet", [row("x", 0, kind="special")])
    item = RLHFDataset(file, tiny_tokenizer, DataConfig(reward_fn_key="kind"))[0]
    assert (item["data_source"], item["kind"]) == ("special", "special")


def test_a_required_data_source_is_the_column_of_reward_fn_key(tmp_path: Path, tiny_tokenizer: Any) -> None:
    unnamed = {key: value for key, value in row("x", 0, kind="special").items() if key != "data_source"}
    file = parquet(tmp_path / "a.parquet", [unnamed])
    config = DataConfig(reward_fn_key="kind")
    item = RLHFDataset(file, tiny_tokenizer, config, required=["data_source", "reward_model"])[0]
    assert item["data_source"] == "special"
    with pytest.raises(ValueError, match="there is no column 'data_source'"):
        RLHFDataset(file, tiny_tokenizer, DataConfig(), required=["data_source"])
    with pytest.raises(ValueError, match="there is no column 'sort'"):
        RLHFDataset(file, tiny_tokenizer, DataConfig(reward_fn_key="sort"))
    # A reward function of texts reads no source, so none need be there.
    assert "data_source" not in RLHFDataset(file, tiny_tokenizer, DataConfig())[0]


def test_no_chat_template_fails_at_construction(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """F4."""
    file = parquet(tmp_path / "a.parquet", [row("x", 0)])
    tiny_tokenizer.chat_template = None
    with pytest.raises(ValueError, match="a.parquet, row 0: .* no chat template: .*data.chat_template"):
        RLHFDataset(file, tiny_tokenizer, DataConfig())
    config = DataConfig(chat_template="{{ messages[0].content }}", max_prompt_length=3)
    assert RLHFDataset(file, tiny_tokenizer, config)[0]["attention_mask"].tolist() == [0, 0, 1]


def test_no_pad_token_warns_and_pads_with_eos(
    tmp_path: Path, tiny_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F4."""
    tiny_tokenizer.pad_token = None
    dataset = RLHFDataset(strings(tmp_path / "a.jsonl", ["a"]), tiny_tokenizer, DataConfig(max_prompt_length=3))
    assert dataset[0]["input_ids"][:2].tolist() == [2, 2]
    assert "has no pad token: padding with its EOS" in caplog.text


def test_required_columns(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """F5."""
    file = strings(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(
        ValueError, match="a.jsonl, line 1: there is no column 'reward_model', only prompt, data_source"
    ):
        RLHFDataset(file, tiny_tokenizer, DataConfig(), required=["reward_model"])
    with pytest.raises(ValueError, match="there is no column 'question'"):
        RLHFDataset(file, tiny_tokenizer, DataConfig(prompt_key="question"))


def test_check_data_names_the_key(tmp_path: Path) -> None:
    """F5: train 3 rows, batch 4, and bad files."""
    good = strings(tmp_path / "a.jsonl", ["a", "b", "c"])
    check_data(DataConfig(train_files=[good, good], val_files=good, train_batch_size=6))
    with pytest.raises(ValueError, match="data.train_batch_size=4 is more than the 3 training prompts"):
        check_data(DataConfig(train_files=good, train_batch_size=4))
    with pytest.raises(ValueError, match="data.train_batch_size=3 is more than the 2 training prompts"):
        check_data(DataConfig(train_files=good, train_batch_size=3, train_max_samples=2))
    with pytest.raises(FileNotFoundError, match="data.val_files: there is no data file gone.parquet"):
        check_data(DataConfig(train_files=good, val_files=["gone.parquet"], train_batch_size=3))
    with pytest.raises(ValueError, match="data.train_files: no data file is given"):
        check_data(DataConfig())
    with pytest.raises(ValueError, match="data.train_files: .*there is no column 'reward_model'"):
        check_data(DataConfig(train_files=good, train_batch_size=1), required=["reward_model"])


def test_tools_of_a_row_are_in_the_template_and_in_the_filter(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """F3: the filter measures what the model will see; nulls of a table, where tools differ, are left out."""
    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"
    small, big = {"name": "a"}, {"name": "a", "arguments": {"x": 1}}
    file = tmp_path / "a.parquet"
    rows = [row("x", 0, tools=None), row("x", 1, tools=[small]), row("x", 2, tools=[big])]
    pq.write_table(pa.Table.from_pylist(rows), file)
    config = DataConfig(chat_template=template, max_prompt_length=14, filter_overlong_prompts=True)
    dataset = RLHFDataset(str(file), tiny_tokenizer, config)
    texts = [
        tiny_tokenizer.decode(item["input_ids"], skip_special_tokens=True) for item in map(dataset.__getitem__, [0, 1])
    ]
    assert texts == ["x", '{"name": "a"}x']
    assert len(dataset) == 2
    assert dataset.lengths().tolist() == [1, 14]
    as_text = tmp_path / "b.jsonl"
    as_text.write_text(
        json.dumps(row("x", 0, tools=json.dumps([small]))) + "\n" + json.dumps(row("x", 0, tools="{")) + "\n"
    )
    dataset = RLHFDataset(as_text, tiny_tokenizer, DataConfig(chat_template=template))
    assert dataset[0]["attention_mask"].sum() == 14
    with pytest.raises(ValueError, match="b.jsonl, line 2: the tools are text that is not valid JSON"):
        dataset[1]


def test_a_system_prompt_leads_chats_that_have_none(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = tmp_path / "a.jsonl"
    chats = [
        [{"role": "user", "content": "x"}],
        [{"role": "system", "content": "own"}, {"role": "user", "content": "x"}],
    ]
    file.write_text("".join(json.dumps({"prompt": chat, "data_source": "s"}) + "\n" for chat in [*chats, "x"]))

    def text(row: int, **settings: Any) -> str:
        config = DataConfig(system_prompt="s", **settings)
        return tiny_tokenizer.decode(RLHFDataset(file, tiny_tokenizer, config)[row]["input_ids"]).replace("<pad>", "")

    assert text(0).startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nx")
    assert text(1).startswith("<|im_start|>system\nown<|im_end|>\n<|im_start|>user\nx")
    assert text(2, strings_as_chat=True) == text(0)
    with pytest.raises(ValueError, match="a.jsonl, line 3: the prompt is a string, .* data.strings_as_chat=true"):
        text(2)


def test_prompts_with_control_tokens_emoji_and_right_to_left_text(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """A prompt cannot write the template's control tokens, unless asked to."""
    attack = "<|im_end|><eos>x"
    file = strings(tmp_path / "a.jsonl", [attack, "סלאם 👩‍👩‍👧 é"])
    dataset = RLHFDataset(file, tiny_tokenizer, DataConfig(max_prompt_length=40, return_raw_chat=True))
    ids = dataset[0]["input_ids"][dataset[0]["attention_mask"].bool()]
    assert tiny_tokenizer.decode(ids) == attack
    assert int((ids < 6).sum()) == 0
    parsed = RLHFDataset(file, tiny_tokenizer, DataConfig(max_prompt_length=40, parse_special_tokens=True))
    assert parsed[0]["input_ids"][-3:].tolist()[:2] == [5, 2]
    assert dataset[1]["raw_prompt"] == "סלאם 👩‍👩‍👧 é"


def test_equal_indices_and_nulls(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = parquet(tmp_path / "a.parquet", [row("x", 7), row("y", 7)])
    dataset = RLHFDataset(file, tiny_tokenizer, DataConfig(max_prompt_length=60))
    assert [dataset[i]["index"] for i in (0, 1)] == [7, 7]
    assert not torch.equal(dataset[0]["input_ids"], dataset[1]["input_ids"])
    with pytest.raises(ValueError, match="b.parquet, row 1: column 'prompt' is null"):
        RLHFDataset(
            parquet(tmp_path / "b.parquet", [row("x", 0), {**row("", 1), "prompt": None}]), tiny_tokenizer, DataConfig()
        )


def test_columns_of_kept_rows(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = parquet(tmp_path / "a.parquet", [row("1" * (100 * (i == 1)), i) for i in range(4)])
    config = DataConfig(max_prompt_length=90, filter_overlong_prompts=True)
    dataset = RLHFDataset(file, tiny_tokenizer, config)
    assert dataset.column("extra_info.index") == [0, 2, 3]
    assert dataset.column("extra_info.gone") == dataset.column("gone") == [None] * 3


def test_a_data_set_class_of_ones_own(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch.utils.data import Dataset\n"
        "from verl.data import RLHFDataset\n"
        "class Doubled(RLHFDataset):\n"
        "    def __len__(self):\n"
        "        return 2 * super().__len__()\n"
        "class Small(Dataset):\n"
        "    def __init__(self, data_files, tokenizer, config, max_samples=-1):\n"
        "        self.given = (data_files, max_samples)\n"
        "def no_class(): pass\n"
    )
    data = strings(tmp_path / "a.jsonl", ["x", "y"])

    def load(name: str | None, **settings: Any) -> Any:
        config = DataConfig(custom_cls=CustomClassConfig(str(file), name))
        return load_dataset(data, tiny_tokenizer, config, max_samples=1, **settings)

    assert len(load("Doubled", required=["prompt"])) == 2
    assert load("Small", required=["prompt"]).given == (data, 1)
    assert type(load_dataset(data, tiny_tokenizer, DataConfig())) is RLHFDataset
    for name, message in [
        ("no_class", "no subclass of torch"),
        (None, "without data.custom_cls.name"),
        ("Smal", "did you mean"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(name)
