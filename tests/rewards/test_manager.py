from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verl.config import CustomRewardFunctionConfig, RewardConfig, RewardManagerConfig
from verl.config.reward import OverlongBufferConfig, RewardKwargsConfig
from verl.protocol import DataProto
from verl.rewards import Limits, RewardManager, default_compute_score, load_compute_score, load_reward_manager


def make_batch(tokenizer: Any, responses: list[str], width: int = 8, **columns: list[Any]) -> DataProto:
    """Prompt "1+1=" and the responses, each with an EOS, on rows of P = 4 and R = `width`."""
    rows = len(responses)
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in responses]
    padded = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    prompt = torch.tensor([tokenizer("1+1=")["input_ids"]] * rows)
    tensors = {
        "prompts": prompt,
        "responses": padded,
        "response_mask": mask,
        "attention_mask": torch.cat([torch.ones_like(prompt), mask], dim=1),
    }
    default = {
        "data_source": ["arithmetic"] * rows,
        "reward_model": [{"style": "rule", "ground_truth": "2"}] * rows,
    }
    objects: dict[str, Any] = {}
    for key, values in {**default, **columns}.items():
        objects[key] = np.empty(rows, dtype=object)
        objects[key][:] = values
    return DataProto.from_dict(tensors, non_tensors=objects)


def test_the_score_is_at_the_last_sampled_token(tiny_tokenizer: Any) -> None:
    result = RewardManager(tiny_tokenizer)(make_batch(tiny_tokenizer, ["2", "333", "2.", "12345x"], width=7))
    assert result.token_level_scores.dtype == torch.float32
    assert result.token_level_scores.tolist() == [
        [0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ]
    assert result.extras == {}


def test_the_function_sees_text_without_special_tokens_and_its_row(tiny_tokenizer: Any) -> None:
    seen = []

    def record(**arguments: Any) -> float:
        seen.append(arguments)
        return -1.5

    batch = make_batch(tiny_tokenizer, ["a b", "c"], extra_info=[{"index": 4}, None])
    result = RewardManager(tiny_tokenizer, record)(batch)
    assert seen == [
        {"data_source": "arithmetic", "solution_str": "a b", "ground_truth": "2", "extra_info": {"index": 4}},
        {"data_source": "arithmetic", "solution_str": "c", "ground_truth": "2", "extra_info": None},
    ]
    assert result.token_level_scores.sum(-1).tolist() == [-1.5, -1.5]


def test_inserted_tokens_are_read_but_hold_no_score(tiny_tokenizer: Any) -> None:
    """Tokens with attention but not sampled, such as a tool's answer at the end of a response."""
    batch = make_batch(tiny_tokenizer, ["abc"], width=4)
    batch.batch["response_mask"][0, 2:] = 0
    texts = []
    result = RewardManager(tiny_tokenizer, lambda solution_str, **_: texts.append(solution_str) or 1.0)(batch)
    assert texts == ["abc"]
    assert result.token_level_scores.tolist() == [[0, 1, 0, 0]]


def test_floats_and_dicts_may_mix() -> None:
    """D2."""

    class Letters:
        def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **kwargs: Any) -> list[str]:
            return ["".join("abc"[i] for i in row) for row in sequences]

    returned = {"a": {"score": 1, "acc": True}, "b": 0.5, "c": {"score": 0, "pred": "7"}}
    manager = RewardManager(Letters(), lambda solution_str, **_: returned[solution_str])
    rows = torch.tensor([[0], [1], [2]])
    objects = {"data_source": np.array(["s"] * 3, dtype=object), "reward_model": np.array([{"ground_truth": 0}] * 3)}
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        tensors = {"responses": rows[order], "response_mask": torch.ones(3, 1), "attention_mask": torch.ones(3, 2)}
        result = manager(DataProto.from_dict(tensors, non_tensors=objects))
        assert result.token_level_scores.flatten().tolist() == [[1, 0.5, 0][i] for i in order]
        assert set(result.extras) == {"acc", "pred"}
        assert result.extras["acc"].tolist() == [[True, None, None][i] for i in order]
        assert result.extras["pred"].tolist() == [[None, None, "7"][i] for i in order]
        assert {column.shape for column in result.extras.values()} == {(3,)}


@pytest.mark.parametrize(
    ("value", "score"),
    [(True, 1.0), (np.float64(0.5), 0.5), (torch.tensor(2.0), 2.0), (np.array([3]), 3.0), (1e6, 1e6)],
)
def test_any_number_is_a_score(tiny_tokenizer: Any, value: Any, score: float) -> None:
    result = RewardManager(tiny_tokenizer, lambda **_: value)(make_batch(tiny_tokenizer, ["x"]))
    assert result.token_level_scores.sum() == score


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None where a finite number"),
        (float("nan"), "returned nan where a finite number"),
        (float("inf"), "returned inf where a finite number"),
        (-1e20, r"returned -1e\+20 where .* numbers beyond 1e\+15 are none, since fp32 cannot hold their squares"),
        (10**400, "returned 1000"),  # too large for any float
        ("1.0", "returned '1.0' where a finite number"),
        ({"score": None}, "returned None where"),
        ({"reward": 1}, r"a dict without `score`: \['reward'\]"),
        (torch.zeros(2), "returned tensor"),
    ],
)
def test_what_is_no_score_is_refused_with_its_row(tiny_tokenizer: Any, value: Any, message: str) -> None:
    """D3, D4: never a silent 0."""
    batch = make_batch(tiny_tokenizer, ["good", "bad"], data_source=["s", "t"])
    manager = RewardManager(tiny_tokenizer, lambda solution_str, **_: 1.0 if solution_str == "good" else value)
    with pytest.raises(ValueError, match=rf"row 1 \(data_source 't', response 'bad'\): .*{message}"):
        manager(batch)


def test_a_function_that_raises_is_named_with_its_row(tiny_tokenizer: Any) -> None:
    """D3."""

    def fails(solution_str: str, **_: Any) -> float:
        return {"first": 1.0}[solution_str]

    batch = make_batch(tiny_tokenizer, ["first", "y" * 70], width=80)
    message = rf"row 1 \(data_source 'arithmetic', response '{'y' * 60}...'\): the scoring function raised KeyError: 'y"
    with pytest.raises(ValueError, match=message) as caught:
        RewardManager(tiny_tokenizer, fails)(batch)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"style": "rule", "answer": "2"}, r"row 1 .*a dict with \['style', 'answer'\]"),
        ("2", "row 1 .*but is '2'"),
        (None, "row 1 .*but is None"),
    ],
)
def test_a_row_without_ground_truth_is_named(tiny_tokenizer: Any, wrong: Any, message: str) -> None:
    batch = make_batch(tiny_tokenizer, ["2", "2"], reward_model=[{"ground_truth": "2"}, wrong])
    with pytest.raises(ValueError, match=f"{message}"):
        RewardManager(tiny_tokenizer)(batch)


ROW = {"data_source": "arithmetic", "reward_model": {"ground_truth": "2"}, "prompt": "1+1="}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_source": "my/data"}, "there is no built-in rule for data_source 'my/data', only for"),
        ({"reward_model": {"answer": "2"}}, r"reward_model must be a dict .* a dict with \['answer'\]"),
        ({"reward_model": None}, "reward_model must be a dict with `ground_truth`, but is None"),
    ],
)
def test_a_row_that_cannot_be_scored_is_named_before_anything_is_generated(
    tiny_tokenizer: Any, change: dict[str, Any], message: str
) -> None:
    row, place = {**ROW, **change}, "train.jsonl, line 1"
    several = {"rule": default_compute_score, "own": lambda batch: None}
    for functions in (default_compute_score, several):
        with pytest.raises(ValueError, match=f"^{place}: {message}"):
            RewardManager(tiny_tokenizer, functions).check_row(row, place)
    for on_invalid in ("default", "exclude"):
        RewardManager(tiny_tokenizer, limits=Limits(on_invalid=on_invalid)).check_row(row, place)
    for fn in (lambda prompts, responses: [], lambda batch: None):
        RewardManager(tiny_tokenizer, fn).check_row(row, place)


def test_a_row_that_can_be_scored_is_let_through(tiny_tokenizer: Any) -> None:
    for source in ("arithmetic", "aime25", "reasoning_gym/countdown"):
        RewardManager(tiny_tokenizer).check_row({**ROW, "data_source": source}, "row 0")
    own = RewardManager(tiny_tokenizer, lambda **_: 1.0)
    own.check_row({**ROW, "data_source": "my/data"}, "row 0")
    with pytest.raises(ValueError, match="row 0: reward_model must be a dict with `ground_truth`, but is 'x'"):
        own.check_row({**ROW, "reward_model": "x"}, "row 0")
    with pytest.raises(ValueError, match="row 0 has no column 'reward_model', which rewards need, only data_source"):
        own.check_row({"data_source": "my/data"}, "row 0")


def test_missing_columns_and_empty_responses(tiny_tokenizer: Any) -> None:
    batch = make_batch(tiny_tokenizer, ["2", "2"])
    with pytest.raises(ValueError, match="no column 'reward_model', which rewards need, only data_source"):
        RewardManager(tiny_tokenizer)(batch.select(non_tensor_batch_keys=["data_source"]))
    batch.batch["response_mask"][1] = 0
    with pytest.raises(ValueError, match=r"rows \[1\] have no sampled token"):
        RewardManager(tiny_tokenizer)(batch)


def test_the_custom_function_of_a_file(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = tmp_path / "my_rewards.py"
    file.write_text(
        "def length(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):\n"
        "    return scale * len(solution_str)\n"
        "def two(solution_str, ground_truth):\n"
        "    return 0.0\n"
        "value = 3\n"
    )
    custom = CustomRewardFunctionConfig(path=str(file), name="length", reward_kwargs={"scale": 2.0})
    manager = load_reward_manager(RewardConfig(custom_reward_function=custom), tiny_tokenizer)
    assert manager(make_batch(tiny_tokenizer, ["abc"])).token_level_scores.sum() == 6

    def load(name: str, path: str = str(file), **reward_kwargs: Any) -> Any:
        return load_compute_score(CustomRewardFunctionConfig(path=path, name=name, reward_kwargs=reward_kwargs))

    with pytest.raises(
        ValueError,
        match=r"two in .*cannot be called with data_source, .*two\(solution_str, ground_truth\) is no reward",
    ):
        load("two")
    with pytest.raises(ValueError, match=r"length in .*cannot be called with.*skale"):
        load("length", skale=1)
    with pytest.raises(ValueError, match="reward.custom_reward_function: .*my_rewards.py has no 'lenght'.*length"):
        load("lenght")
    with pytest.raises(ValueError, match="has no 'zzz'; it has length, two, value"):
        load("zzz")
    with pytest.raises(ValueError, match="'value' in .*my_rewards.py is no function but a int"):
        load("value")
    with pytest.raises(ValueError, match="reward.custom_reward_function: .*there is no file"):
        load("length", path=str(tmp_path / "gone.py"))
    with pytest.raises(ValueError, match="no module named 'no_such_module'"):
        load("length", path="no_such_module")


def test_the_custom_function_of_a_module() -> None:
    custom = CustomRewardFunctionConfig(path="verl.rewards.default", name="default_compute_score")
    assert load_compute_score(custom)("arithmetic", "7", "7", None) == 1


def test_what_the_config_cannot_mean() -> None:
    overlong = RewardKwargsConfig(OverlongBufferConfig(enable=True, len=4))
    dapo = RewardConfig(reward_manager=RewardManagerConfig("dapo"), reward_kwargs=overlong, num_workers=0)
    with pytest.raises(ValueError, match="max_resp_len is not set"):
        load_reward_manager(dapo, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reward_kwargs is set without reward.custom_reward_function.path"):
        load_compute_score(CustomRewardFunctionConfig(reward_kwargs={"a": 1}))
