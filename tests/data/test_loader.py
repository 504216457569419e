import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import SequentialSampler

from verl.config import DataConfig
from verl.data import EpochSampler, build_dataloader, collate_fn
from verl.protocol import DataProto


class Numbers(torch.utils.data.Dataset):
    """Row i is the tensor [i] and a list."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.tensor([row]), "items": [row]}


def loader(rows: int, batch_size: int, workers: int = 0, **options: Any) -> Any:
    config = DataConfig(dataloader_num_workers=workers, shuffle=options.pop("shuffle", True))
    settings = {"train": True, "seed": 1, **options}
    return build_dataloader(Numbers(rows), config, batch_size=batch_size, **settings)


def seen(batches: Any) -> list[list[int]]:
    return [batch["x"].flatten().tolist() for batch in batches]


def test_collate_keeps_lists_as_items() -> None:
    """E6."""
    first = collate_fn([{"a": ["a"]}, {"a": ["b"]}])
    second = collate_fn([{"a": ["a"]}, {"a": ["b", "c"]}])
    assert [column["a"].shape for column in (first, second)] == [(2,), (2,)]
    assert [column["a"].dtype for column in (first, second)] == [object, object]
    joined = DataProto.concat([DataProto.from_single_dict(first), DataProto.from_single_dict(second)])
    assert joined.non_tensor_batch["a"].tolist() == [["a"], ["b"], ["a"], ["b", "c"]]


def test_collate_stacks_tensors_and_fills_absent_keys_with_none() -> None:
    columns = collate_fn([{"t": torch.ones(3), "s": "x"}, {"t": torch.zeros(3), "extra": 1}])
    assert isinstance(columns["t"], torch.Tensor) and columns["t"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert columns["s"].tolist() == ["x", None]
    assert columns["extra"].tolist() == [None, 1]
    with pytest.raises(ValueError, match=r"cannot stack 't': 2 of 2 items have a tensor, of shapes \[\(2,\), \(3,\)\]"):
        collate_fn([{"t": torch.ones(2)}, {"t": torch.ones(3)}])
    with pytest.raises(ValueError, match="cannot stack 't': 1 of 2"):
        collate_fn([{"t": torch.ones(2)}, {}])


def test_validation_sees_every_row_in_order() -> None:
    """F5: 10 rows, batch 4."""
    assert seen(loader(10, 4, train=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen(loader(3, 99, train=False)) == [[0, 1, 2]]


def test_a_training_batch_bigger_than_the_data_is_refused_with_both_numbers() -> None:
    """F5."""
    with pytest.raises(ValueError, match="data.train_batch_size=4 is more than the 3 training prompts"):
        loader(3, 4)


def test_training_drops_what_fills_no_batch() -> None:
    epoch = seen(loader(10, 4))
    assert [len(batch) for batch in epoch] == [4, 4]
    assert seen(loader(10, 4, shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_order_follows_from_seed_and_epoch() -> None:
    first, again, other = loader(8, 2), loader(8, 2), loader(8, 2, seed=2)
    epochs = [seen(first) for _ in range(3)]
    torch.rand(5)
    random.random()
    assert [seen(again) for _ in range(3)] == epochs
    assert epochs[0] != epochs[1] != epochs[2]
    assert seen(other) != epochs[0]
    assert epochs[1] == np.random.default_rng([1, 1]).permutation(8).reshape(4, 2).tolist()


def test_the_loader_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    seen(loader(8, 2))
    assert torch.equal(torch.get_rng_state(), before)


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_an_epoch_is_each_row_once(rows: int, seed: int, epoch: int, shuffle: bool) -> None:
    order = EpochSampler(rows, seed, shuffle).order(epoch)
    assert Counter(order.tolist()) == Counter(range(rows))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6, 8])
def test_a_saved_place_survives_a_restart(taken: int, workers: int) -> None:
    """Three epochs of four batches, cut after `taken` batches, also at the end of an epoch."""
    whole = loader(9, 2)
    expected = [batch for _ in range(3) for batch in seen(whole)]

    def endless(source: Any) -> Any:
        while True:
            yield from source

    before = loader(9, 2, workers)
    stream = endless(before)
    head = seen(next(stream) for _ in range(taken))
    state = before.state_dict()
    stream.close()
    after = loader(9, 2, workers)
    after.load_state_dict(state)
    stream = endless(after)
    tail = seen(next(stream) for _ in range(12 - taken))
    assert head + tail == expected


def test_a_state_of_other_data_is_refused() -> None:
    source = loader(8, 2)
    next(iter(source))
    target = loader(10, 2)
    with pytest.raises(
        ValueError, match="saved with rows=8 but is now made with rows=10, .*trainer.resume_mode=disable"
    ):
        target.load_state_dict(source.state_dict())
    for option, message in ({"seed": 2}, "data.seed=1 but"), ({"shuffle": False}, "data.shuffle=True but"):
        with pytest.raises(ValueError, match=message):
            loader(8, 2, **option).load_state_dict(source.state_dict())


def test_a_state_that_tells_no_order_is_refused() -> None:
    """As torchdata's own loader saves it."""
    state = loader(8, 2).state_dict()
    del state["order"]
    with pytest.raises(
        ValueError, match="saved by an earlier version, .*: begin anew with trainer.resume_mode=disable"
    ):
        loader(8, 2).load_state_dict(state)


def test_worker_processes_change_no_order() -> None:
    assert seen(loader(12, 3, workers=2)) == seen(loader(12, 3))


def test_own_sampler_and_collate() -> None:
    source = loader(4, 2, sampler=SequentialSampler(range(4)), collate_fn=len)
    assert list(source) == [2, 2]


def test_negative_seed() -> None:
    with pytest.raises(ValueError, match="at least 0, not -1"):
        EpochSampler(3, -1)


def test_state_fits_a_file(tmp_path: Path) -> None:
    source = loader(8, 2)
    next(iter(source))
    torch.save(source.state_dict(), tmp_path / "dataloader.pt")
    target = loader(8, 2)
    target.load_state_dict(torch.load(tmp_path / "dataloader.pt", weights_only=False))
    assert seen(target) == seen(loader(8, 2))[1:]
