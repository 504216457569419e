from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.protocol.schema import LOSS_MASK_KEYS, SCHEMA, validate

SIZES = {"B": 2, "P": 3, "R": 4, "P+R": 7}


def full_batch() -> DataProto:
    tensors = {
        field.name: torch.zeros([SIZES[dim] for dim in field.shape], dtype=getattr(torch, field.dtype))
        for field in SCHEMA.values()
        if field.tensor
    }
    return DataProto.from_dict(tensors, {field.name: ["a", "b"] for field in SCHEMA.values() if not field.tensor})


def test_the_list_is_complete() -> None:
    assert {name for name, field in SCHEMA.items() if field.tensor} == {
        *("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask", "seed"),
        *("rollout_log_probs", "old_log_probs", "ref_log_probs", "values", "rm_scores"),
        *("token_level_scores", "token_level_rewards", "advantages", "returns"),
        *("entropy", "baseline_scores", "rollout_weights", "selected"),
    }
    assert {name for name, field in SCHEMA.items() if not field.tensor} == {
        *("uid", "data_source", "reward_model", "extra_info", "raw_prompt")
    }
    assert {"response_mask"} == LOSS_MASK_KEYS
    assert all(field.doc and field.written_by and field.read_by for field in SCHEMA.values())
    assert SCHEMA["input_ids"].shape == ("B", "P+R") and SCHEMA["values"].dtype == "float32"


def test_a_batch_as_listed_passes() -> None:
    validate(full_batch(), required=SCHEMA)
    validate(full_batch().select(["values"], []), required=["values"])
    validate(DataProto.from_single_dict({"uid": np.array(["a", "b"]), "own": torch.zeros(2)}), required=["own"])
    # What the data loader gives: the prompt alone.
    prompt_only = {key: torch.zeros(2, 3, dtype=torch.int64) for key in ("input_ids", "attention_mask", "position_ids")}
    validate(DataProto.from_dict(prompt_only), required=prompt_only)


def test_missing_columns_name_their_writer() -> None:
    data = full_batch().select(["prompts"], [])
    with pytest.raises(ValueError) as error:
        validate(data, required=["prompts", "values", "uid", "typo"])
    message = str(error.value)
    assert "'values' is missing (written by critic (compute_values))" in message
    assert "'uid' is missing (written by trainer)" in message
    assert "'typo' is missing (not a name of the schema)" in message and "'prompts'" not in message


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("values", torch.zeros(2, 4).double(), r"'values' is float64 \[2, 4\] but should be float32 \[B, R\] .*critic"),
        ("values", torch.zeros(2), r"'values' is float32 \[2\] but should be float32 \[B, R\]"),
        ("response_mask", torch.zeros(2, 4), r"'response_mask' is float32 .* should be int64"),
        ("values", torch.zeros(2, 5), r"'values' has R = 5 but 'responses' has R = 4"),
        ("prompts", torch.zeros(2, 2).long(), r"'input_ids' has P\+R = 7 but 'prompts' has P = 2 and .* R = 4"),
        ("position_ids", torch.zeros(2, 6).long(), r"'position_ids' has P\+R = 6 but 'input_ids' has P\+R = 7"),
        ("uid", np.array([1, 2]), r"'uid' is int64 \[2\] but should be object \[B\]"),
    ],
)
def test_wrong_columns(key: str, value: Any, match: str) -> None:
    data = full_batch()
    (data.batch if SCHEMA[key].tensor else data.non_tensor_batch)[key] = value
    with pytest.raises(ValueError, match=match):
        validate(data, required=[])


def test_wrong_place() -> None:
    with pytest.raises(ValueError, match="'uid' is in batch but belongs in non_tensor_batch"):
        validate(DataProto.from_dict({"uid": torch.zeros(2)}), required=[])
