"""From padded rows to lists of token ids and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from verl.rollout.base import Completion
from verl.rollout.batching import left_pad, position_ids_from, prompts_from, responses_to_batch

PAD = 9


def prompt_batch(*rows: list[int], width: int = 4) -> TensorDict:
    ids, mask = left_pad(rows, width, PAD)
    return TensorDict(
        {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids_from(mask)}, batch_size=[len(rows)]
    )


def completion(*token_ids: int) -> Completion:
    return Completion(list(token_ids), [-0.5 - i for i in range(len(token_ids))], "stop")


def test_prompts_without_their_padding() -> None:
    assert prompts_from(prompt_batch([1, 2], [3, 4, 5, 6], [PAD])) == [[1, 2], [3, 4, 5, 6], [PAD]]


def test_f1_positions_go_on_through_the_response() -> None:
    """Row F1: positions count valid tokens only, and go on through the response."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    positions = position_ids_from(mask)
    assert positions[0, 2:].tolist() == [0, 1, 2] and positions[1, 1:3].tolist() == [0, 1]
    through = position_ids_from(torch.cat([mask, torch.tensor([[1, 1, 0], [1, 0, 0]])], dim=1))
    assert through.tolist() == [[0, 0, 0, 1, 2, 3, 4, 4], [0, 0, 1, 1, 1, 2, 2, 2]]


def test_columns_of_a_response() -> None:
    batch = responses_to_batch(prompt_batch([1, 2, 3], [4]), [completion(5, 6), completion(7)], 3, PAD)
    assert batch["prompts"].tolist() == [[9, 1, 2, 3], [9, 9, 9, 4]]
    assert batch["responses"].tolist() == [[5, 6, 9], [7, 9, 9]]
    assert batch["input_ids"].tolist() == [[9, 1, 2, 3, 5, 6, 9], [9, 9, 9, 4, 7, 9, 9]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 0, 1, 2, 3, 4, 4], [0, 0, 0, 0, 1, 1, 1]]
    assert batch["response_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch["rollout_log_probs"].tolist() == [[-0.5, -1.5, 0.0], [-0.5, 0.0, 0.0]]
    assert batch["rollout_log_probs"].dtype == torch.float32
    assert {str(batch[key].dtype) for key in batch.keys() if key != "rollout_log_probs"} == {"torch.int64"}  # noqa: SIM118


def test_an_end_token_counts_where_its_id_is_the_pad_id() -> None:
    batch = responses_to_batch(prompt_batch([1], [2]), [completion(5, PAD), completion(PAD)], 3, PAD)
    assert batch["response_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch["attention_mask"][:, 4:].tolist() == [[1, 1, 0], [1, 0, 0]]


def test_prompts_padded_on_the_right_are_moved_to_their_response() -> None:
    rows = TensorDict(
        {"input_ids": torch.tensor([[0, 5, 6, 0, 0]]), "attention_mask": torch.tensor([[0, 1, 1, 0, 0]])},
        batch_size=[1],
    )
    batch = responses_to_batch(rows, [completion(7)], 2, PAD)
    assert batch["input_ids"].tolist() == [[9, 9, 9, 5, 6, 7, 9]]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 0, 1, 2, 2]]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, PAD), min_size=1, max_size=4), st.lists(st.integers(0, PAD), min_size=1, max_size=5)
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_masks_widths_and_positions_of_any_rows(rows: list[tuple[list[int], list[int]]], spare: int) -> None:
    response_length = 5 + spare
    made = [completion(*response) for _, response in rows]
    batch = responses_to_batch(prompt_batch(*[prompt for prompt, _ in rows]), made, response_length, PAD)
    assert batch["prompts"].shape == (len(rows), 4)
    assert batch["responses"].shape == batch["response_mask"].shape == (len(rows), response_length)
    assert torch.equal(batch["input_ids"], torch.cat([batch["prompts"], batch["responses"]], dim=1))
    assert batch["response_mask"].sum(-1).tolist() == [len(response) for _, response in rows]
    assert torch.equal(batch["attention_mask"][:, 4:], batch["response_mask"])
    assert (batch["rollout_log_probs"] != 0).long().equal(batch["response_mask"])
    for i, (prompt, response) in enumerate(rows):
        valid = batch["attention_mask"][i].bool()
        assert batch["input_ids"][i][valid].tolist() == prompt + response
        assert batch["position_ids"][i][valid].tolist() == list(range(len(prompt) + len(response)))
        assert batch["position_ids"][i].max() == len(prompt) + len(response) - 1
        assert batch["responses"][i, : len(response)].tolist() == response


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([completion(1)], "1 completions for 2 prompts"),
        ([completion(1), completion()], "row 1: its completion has 0 tokens, expected 1 to 3"),
        ([completion(1, 2, 3, 4), completion(1)], "row 0: its completion has 4 tokens, expected 1 to 3"),
        ([completion(1), Completion([1, 2], [-1.0], "stop")], "row 1: its completion has 2 tokens but 1 log-probs"),
    ],
)
def test_completions_that_do_not_fit(made: list[Completion], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        responses_to_batch(prompt_batch([1], [2]), made, 3, PAD)
