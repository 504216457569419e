from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl.config import DataConfig
from verl.config.data import SamplerConfig
from verl.data import EpochSampler, PromptDataset, build_dataloader
from verl.data.sampler import (
    CurriculumSampler,
    LengthSampler,
    MixedSampler,
    TokenBatchSampler,
    make_sampler,
    pack,
    pack_by_length,
)

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)


@given(LENGTHS, st.integers(1, 9), st.integers(0, 3), st.integers(0, 2))
def test_every_sampler_visits_each_row_once(lengths: np.ndarray, batch: int, seed: int, epoch: int) -> None:
    sources = ["abc"[length % 3] for length in lengths]
    every = Counter(range(len(lengths)))
    for sampler in (
        LengthSampler(lengths, batch, seed, batches=3),
        MixedSampler(sources, {}, seed),
        CurriculumSampler(lengths, seed),
    ):
        assert Counter(sampler.order(epoch).tolist()) == every
        assert sampler.order(epoch).tolist() == sampler.order(epoch).tolist()


@given(LENGTHS, st.integers(60, 200), st.booleans(), st.integers(0, 2))
def test_token_batches_hold_each_row_once_and_no_more_than_they_may(
    lengths: np.ndarray, max_tokens: int, shuffle: bool, epoch: int
) -> None:
    batches = TokenBatchSampler(lengths, max_tokens, 1, shuffle, stretch=16).order(epoch)
    assert Counter(row for batch in batches for row in batch) == Counter(range(len(lengths)))
    for batch in batches:
        cells = len(batch) * max(lengths[batch])
        assert cells <= max_tokens
        assert not shuffle or cells - sum(lengths[batch]) <= max_tokens / 8


def test_token_batches_in_order() -> None:
    lengths = np.array([2, 3, 3, 1, 5, 1])
    assert TokenBatchSampler(lengths, 6, 0, shuffle=False).order(0).tolist() == [[0, 1], [2, 3], [4], [5]]
    with pytest.raises(ValueError, match="row 4 has 5 tokens, more than a batch of 4 tokens holds"):
        TokenBatchSampler(lengths, 4, 0)


def test_a_long_row_does_not_pad_short_ones() -> None:
    """8 rows of 1, 2 of 4 and one of 8; of 40 cells at most 5 may be padding."""
    lengths = np.array([1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 8])
    assert pack(np.arange(11), lengths, 40) == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10]]
    assert pack_by_length(np.arange(11), lengths, 40) == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9], [10]]


def test_batches_by_length_are_tight_and_at_random() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 640)
    sampler = LengthSampler(lengths, 8, 0)
    batches = lengths[sampler.order(0)].reshape(-1, 8)
    assert np.mean(batches.max(1) - batches.min(1)) < 30  # of shuffled rows it is about 780
    assert sampler.order(0).tolist() != sampler.order(1).tolist()
    firsts = batches[:, 0]
    assert (np.diff(firsts) > 0).any() and (np.diff(firsts) < 0).any()


def test_the_rows_that_fill_no_batch_come_last() -> None:
    lengths = np.arange(1, 12)
    order = LengthSampler(lengths, 4, 0).order(0)
    assert sorted(order[-3:].tolist()) == [8, 9, 10]


def test_mixing_keeps_the_ratio_everywhere() -> None:
    """Weights 3 to 1: of any first 4k rows, 3k and k, to within one, until a source ends."""
    sources = ["a"] * 60 + ["b"] * 20
    order = MixedSampler(sources, {"a": 3, "b": 1}, 0).order(0)
    for count in range(4, 81, 4):
        of_b = sum(row >= 60 for row in order[:count])
        assert abs(of_b - count / 4) <= 1
    uneven = MixedSampler(["a"] * 4 + ["b"] * 10, {"a": 1, "b": 1}, 0).order(0)
    assert sum(row < 4 for row in uneven[:8]) == 4


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"c": 1}, "no row has the data source 'c', only a, b"), ({"a": 0}, "above 0"), ({"a": -1}, "above 0")],
)
def test_impossible_mixtures(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixedSampler(["a", "b"], weights, 0)


def test_a_curriculum_rises() -> None:
    values = [3, 1, 2, 1, 3, 2]
    sampler = CurriculumSampler(values, 0)
    assert [values[row] for row in sampler.order(0)] == [1, 1, 2, 2, 3, 3]
    assert len({tuple(sampler.order(epoch)) for epoch in range(20)}) > 1
    with pytest.raises(ValueError, match="data.sampler.column=level: row 1 has no number there"):
        CurriculumSampler([1, None], 0, "level")
    with pytest.raises(ValueError, match="a curriculum needs numbers"):
        CurriculumSampler(["easy", "hard"], 0, "level")


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int = 23) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.tensor([row])}

    def lengths(self) -> np.ndarray:
        return np.arange(1, self.rows + 1) % 7 + 1

    def column(self, name: str) -> list[Any]:
        values = [{"data_source": "ab"[row % 2], "level": row % 5, "number": row} for row in range(self.rows)]
        return [value.get(name) for value in values]


SAMPLERS = [
    SamplerConfig(),
    SamplerConfig("length"),
    SamplerConfig("mixed", weights={"a": 2}),
    SamplerConfig("curriculum", column="level"),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
def test_the_order_depends_on_no_workers_and_survives_a_restart(sampler: SamplerConfig, workers: int) -> None:
    def loader(workers: int) -> Any:
        config = DataConfig(dataloader_num_workers=workers, sampler=sampler)
        return build_dataloader(Rows(), config, train=True, batch_size=4, seed=3)

    def seen(batches: Any) -> list[list[int]]:
        return [batch["x"].flatten().tolist() for batch in batches]

    whole = loader(0)
    expected = seen(whole) + seen(whole)
    assert len({row for batch in expected[:5] for row in batch}) == 20  # 23 rows, the last 3 fill no batch
    first = loader(workers)
    stream = iter(first)
    head = seen(next(stream) for _ in range(3))
    state = first.state_dict()
    del stream
    second = loader(workers)
    second.load_state_dict(state)
    assert head + seen(second) + seen(second) == expected


def test_a_place_in_one_order_is_none_in_another() -> None:
    """The last order is that of a sampler given as an object."""

    def loader(sampler: SamplerConfig, batch_size: int = 4, own: Any = None, rows: int = 23) -> Any:
        config = DataConfig(sampler=sampler)
        return build_dataloader(Rows(rows), config, train=True, batch_size=batch_size, seed=3, sampler=own)

    backwards = EpochSampler(23, 3, shuffle=False)
    orders = {
        "random": lambda: loader(SamplerConfig()),
        "length": lambda: loader(SamplerConfig("length")),
        "length of 6": lambda: loader(SamplerConfig("length"), 6),
        "longer": lambda: loader(SamplerConfig("length"), rows=24),
        "a": lambda: loader(SamplerConfig("mixed", weights={"a": 2})),
        "b": lambda: loader(SamplerConfig("mixed", weights={"b": 2})),
        "level": lambda: loader(SamplerConfig("curriculum", column="level")),
        "number": lambda: loader(SamplerConfig("curriculum", column="number")),
        "own": lambda: loader(SamplerConfig(), own=backwards),
    }
    states = {}
    for name, build in orders.items():
        source = build()
        next(iter(source))
        states[name] = source.state_dict()
    for name, build in orders.items():
        for saved, state in states.items():
            if saved == name:
                build().load_state_dict(state)
            else:
                with pytest.raises(ValueError, match="the data order was saved with .* but is now made with .*"):
                    build().load_state_dict(state)
    for name, saved, message in [
        (
            "length",
            "random",
            "saved with data.sampler.name=random but is now made with data.sampler.name=length, data.t",
        ),
        ("length of 6", "length", "saved with data.train_batch_size=4 but is now made with data.train_batch_size=6,"),
        ("a", "b", r"data.sampler.weights=\{'a': 1.0, 'b': 2.0\} but .* data.sampler.weights=\{'a': 2.0, 'b': 1.0\}"),
        ("level", "number", "saved with data.sampler.column=number, values of .* made with data.sampler.column=level,"),
        ("longer", "length", r"saved with rows=23, lengths of prompts \(digest\)=[0-9a-f]{12} but .* rows=24, lengths"),
        ("random", "own", "saved with sampler=EpochSampler, data.shuffle=False but .* data.sampler.name=random,"),
    ]:
        with pytest.raises(ValueError, match=message):
            orders[name]().load_state_dict(states[saved])


def test_a_place_among_batches_of_tokens_is_one_for_the_same_tokens(tiny_tokenizer: Any) -> None:
    prompts = ["x" * (1 + number % 5) for number in range(12)]

    def loader(max_tokens: int | None) -> Any:
        dynamic = {} if max_tokens is None else {"dynamic_batching": True, "max_tokens_per_batch": max_tokens}
        dataset = PromptDataset(prompts, tiny_tokenizer, **dynamic)  # type: ignore[arg-type]
        return build_dataloader(dataset, DataConfig(), train=True, batch_size=4, seed=3)

    source, rows = loader(10), loader(None)
    next(iter(source)), next(iter(rows))
    loader(10).load_state_dict(source.state_dict())
    with pytest.raises(ValueError, match="max_tokens_per_batch=10 but is now made with max_tokens_per_batch=20"):
        loader(20).load_state_dict(source.state_dict())
    with pytest.raises(ValueError, match="with data.sampler.name=random but is now made with max_tokens_per_batch=10"):
        loader(10).load_state_dict(rows.state_dict())


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
def test_an_epoch_of_the_loader_is_each_row_once(sampler: SamplerConfig, workers: int) -> None:
    """24 rows in batches of 4, so that none is left over."""
    config = DataConfig(dataloader_num_workers=workers, sampler=sampler)
    loader = build_dataloader(Rows(24), config, train=True, batch_size=4, seed=3)
    for _ in range(2 if workers == 0 else 1):
        assert sorted(row for batch in loader for row in batch["x"].flatten().tolist()) == list(range(24))


def test_a_sampler_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Backwards:\n"
        "    def __init__(self, data_source, data_config):\n"
        "        self.rows = len(data_source)\n"
        "    def __iter__(self):\n"
        "        return iter(range(self.rows - 1, -1, -1))\n"
        "    def __len__(self):\n"
        "        return self.rows\n"
    )
    config = DataConfig(sampler=SamplerConfig(class_path=str(file), class_name="Backwards"))
    loader = build_dataloader(Rows(6), config, train=True, batch_size=3, seed=0)
    assert [batch["x"].flatten().tolist() for batch in loader] == [[5, 4, 3], [2, 1, 0]]
    plain = build_dataloader(Rows(6), DataConfig(), train=True, batch_size=3, seed=0)
    with pytest.raises(ValueError, match="mine.py, data.sampler.class_name=Backwards but .* data.sampler.name=random"):
        plain.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="data.sampler.name=random, .* but .*mine.py, data.sampler.class_name=Backwar"):
        loader.load_state_dict(plain.state_dict())
    for broken, message in [
        (SamplerConfig(class_path=str(file)), "without data.sampler.class_name"),
        (SamplerConfig(class_path=str(file), class_name="Backward"), "data.sampler: .*did you mean 'Backwards'"),
        (SamplerConfig("curriculum"), "needs data.sampler.column"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_sampler(Rows(), DataConfig(sampler=broken), 0, 4)


def test_a_sampler_needs_what_it_sorts_by() -> None:
    class Plain(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 3

    for name, method in [("length", "lengths"), ("mixed", "column"), ("curriculum", "column")]:
        config = DataConfig(sampler=SamplerConfig(name, column="x"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"data.sampler.name={name}: Plain has no method {method}\(\)"):
            make_sampler(Plain(), config, 0, 1)
