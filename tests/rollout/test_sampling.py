"""The choice of tokens, against numbers that can be checked by hand and a plain Python version."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from verl.rollout import sampling as module
from verl.rollout.base import Sampling
from verl.rollout.sampling import RowNoise, choose, filtered_probs, log_probs_of, race

HALVES = torch.tensor([[0.125, 0.5, 0.25, 0.125]])


def numbers(*values: float) -> Tensor:
    """Noise [1, ...] of one row: one number for each block, then one for each token of a block."""
    return torch.tensor([values], dtype=torch.float64)


def kept(probs: Tensor, top_k: int = -1, top_p: float = 1.0) -> list[list[int]]:
    return [row.nonzero().squeeze(-1).tolist() for row in filtered_probs(probs.log(), top_k, top_p)]


@pytest.mark.parametrize(
    ("noise", "token"),
    [
        (numbers(1, 1, 1, 1), 1),  # blocks 5/8 and 3/8: the first; within it 1/8 and 1/2
        (numbers(1, 1, 0.2, 1), 0),  # 1/8 / .2 = .625 beats 1/2
        (numbers(1, 1, 0.3, 1), 1),  # 1/8 / .3 = .417 does not
        (numbers(1, 0.5, 1, 1), 2),  # 3/8 / .5 = .75 beats 5/8: the second block
        (numbers(1, 0.5, 1, 0.4), 3),  # 1/8 / .4 = .3125 beats 1/4
    ],
)
def test_race_among_blocks_and_then_within(monkeypatch: pytest.MonkeyPatch, noise: Tensor, token: int) -> None:
    monkeypatch.setattr(module, "BLOCK", 2)
    assert race(HALVES, noise).tolist() == [token]
    assert race(HALVES * 3, noise).tolist() == [token], "the scale of the weights does not matter"


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.5, 1.0]), min_size=1, max_size=9).filter(any), st.integers(0, 2**64))
def test_a_weight_of_zero_never_wins(weights: list[float], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 2)
        [token] = race(torch.tensor([weights]), RowNoise([seed]).draw([0], len(weights))).tolist()
    assert weights[token] > 0


def test_rounding_of_logits_hardly_ever_changes_a_choice() -> None:
    """Errors of 1e-5, as when the number of rows changes: of 4000 choices among 5000 tokens at most 1 differs."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5000, generator=generator) * 2.5
    noise = RowNoise(range(4000)).draw(range(4000), 5000)
    error = 1e-5 * torch.randn(logits.shape, generator=generator)
    changed = choose(logits, noise, Sampling(1))[0] != choose(logits + error, noise, Sampling(1))[0]
    assert changed.sum() <= 1


def test_top_k_keeps_the_k_most_likely() -> None:
    assert kept(HALVES, top_k=1) == [[1]]
    assert kept(HALVES, top_k=2) == [[1, 2]]
    assert kept(HALVES, top_k=3) == [[0, 1, 2]], "of two tokens with 1/8 the lower id stays"
    assert kept(HALVES, top_k=4) == kept(HALVES, top_k=9) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [
        (1e-9, [1]),
        (0.49, [1]),
        (0.5, [1]),
        (0.51, [1, 2]),
        (0.75, [1, 2]),
        (0.76, [0, 1, 2]),
        (0.875, [0, 1, 2]),
        (0.88, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, tokens: list[int]) -> None:
    assert kept(HALVES, top_p=top_p) == [tokens]


def test_top_p_counts_within_top_k() -> None:
    """Of .5 and .25 alone the first has a share of 2/3."""
    assert kept(HALVES, top_k=2, top_p=0.6) == [[1]]
    assert kept(HALVES, top_k=2, top_p=0.7) == [[1, 2]]
    assert kept(HALVES, top_k=100, top_p=0.6) == [[1, 2]], "a top_k beyond the vocabulary changes nothing"


def test_all_tokens_equal() -> None:
    flat = torch.full((2, 8), 0.125)
    assert kept(flat, top_k=3) == [[0, 1, 2]] * 2
    assert kept(flat, top_p=0.5) == [[0, 1, 2, 3]] * 2


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=5, max_size=5), min_size=1, max_size=4),
    st.sampled_from([-1, 1, 2, 3, 5, 7]),
    st.sampled_from([1.0, 0.05, 0.3, 0.55, 0.9]),
    st.integers(1, 5),
)
@settings(deadline=None)
def test_filter_equals_a_plain_version(rows: list[list[int]], top_k: int, top_p: float, candidates: int) -> None:
    """Small whole weights make many ties; few candidates make top-p fall back to sorting."""
    probs = torch.tensor(rows, dtype=torch.float32)
    probs = probs / probs.sum(-1, keepdim=True)
    expected = []
    for row in rows:
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))[: top_k if top_k > 0 else None]
        mass, chosen = sum(row[i] for i in order), []
        for i in order:
            chosen.append(i)
            if sum(row[j] for j in chosen) >= top_p * mass - 1e-4:
                break
        expected.append(sorted(order if top_p == 1 else chosen))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TOP_P_CANDIDATES", candidates)
        assert kept(probs, top_k, top_p) == expected


def test_log_probs_are_those_of_the_scaled_logits() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert log_probs_of(logits, 1.0).exp()[0].tolist() == pytest.approx([0.25, 0.75])
    assert log_probs_of(logits, 0.5).exp()[0].tolist() == pytest.approx([0.1, 0.9])  # 3 squared is 9
    assert torch.equal(log_probs_of(logits, 0.0), log_probs_of(logits, 1.0))
    assert log_probs_of(logits.bfloat16(), 0.7).dtype == torch.float32
    assert log_probs_of(torch.tensor([[3e4, 2e4]]), 1e-38)[0].tolist() == [0.0, -math.inf]


def test_choose_reports_log_probs_before_the_filters() -> None:
    tokens, log_probs = choose(HALVES.log(), RowNoise([0]).draw([0], 4), Sampling(1, top_k=1))
    assert tokens.tolist() == [1]
    assert log_probs.tolist() == pytest.approx([math.log(0.5)])


def test_without_noise_the_most_likely_is_taken() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]]).expand(2, 3)
    tokens, log_probs = choose(logits, None, Sampling(1, temperature=0, top_p=0.5))
    assert tokens.tolist() == [1, 1]
    assert torch.allclose(log_probs, logits.log_softmax(-1)[:, 1])


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit the same alone, together, and in pieces of any size."""
    logits = torch.randn(7, 301, generator=torch.Generator().manual_seed(0)) * 3
    noise = RowNoise(range(7)).draw(range(7), 301)
    setting = Sampling(1, temperature=0.8, top_k=200, top_p=0.95)
    together = choose(logits, noise, setting)
    alone = [choose(logits[i : i + 1], noise[i : i + 1], setting) for i in range(7)]
    monkeypatch.setattr(module, "CPU_ELEMENTS", 700)
    for parts in (zip(*alone, strict=True), [(part,) for part in choose(logits, noise, setting)]):
        tokens, log_probs = (torch.cat(tuple(part)) for part in parts)
        assert torch.equal(tokens, together[0]) and torch.equal(log_probs, together[1])


def test_logits_that_are_not_finite_show_in_the_log_probs() -> None:
    logits = torch.tensor([[0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [0.0, -math.inf, 0.0]])
    noise = RowNoise(range(3)).draw(range(3), 3)
    for setting in (Sampling(1), Sampling(1, top_p=0.5), Sampling(1, top_k=2)):
        for drawn in (noise, None):
            tokens, log_probs = choose(logits, drawn, setting)
            assert log_probs.isfinite().tolist() == [False, False, True]
            assert tokens[2] in (0, 2)


@pytest.mark.parametrize("block", [2, 256])
@pytest.mark.parametrize("setting", [Sampling(1), Sampling(1, temperature=0.7, top_k=3, top_p=0.85)])
def test_frequencies_over_many_seeds(monkeypatch: pytest.MonkeyPatch, setting: Sampling, block: int) -> None:
    """20000 seeds: each token's share is within 4 standard deviations of its probability."""
    monkeypatch.setattr(module, "BLOCK", block)
    logits = torch.tensor([[0.3, 0.1, 0.4, 0.05, 0.15]]).log()
    count = 20_000
    tokens, _ = choose(logits.expand(count, 5), RowNoise(range(count)).draw(range(count), 5), setting)
    weights = filtered_probs(log_probs_of(logits, setting.temperature), setting.top_k, setting.top_p)[0].double()
    expected = weights / weights.sum()
    seen = tokens.bincount(minlength=5) / count
    assert ((seen - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


def test_noise_is_exponential_and_fixed_by_all_bits_of_each_seed() -> None:
    noise = RowNoise([5, 7, 5 + 2**32])
    first = noise.draw([0, 1, 2], 512)
    assert first.shape == (3, 2 + 256) and first.dtype == torch.float64
    assert (first > 0).all() and abs(first.mean() - 1) < 4 / math.sqrt(first.numel())
    assert not torch.equal(first[0], first[2]), "seeds that share their lower 32 bits"
    second = noise.draw([2, 1], 512)
    assert not torch.equal(second[1], first[1]), "a stream goes on"
    alone = RowNoise([7])
    assert torch.equal(alone.draw([0], 512)[0], first[1]) and torch.equal(alone.draw([0], 512)[0], second[1])
    assert torch.equal(RowNoise([-1]).draw([0], 2), RowNoise([2**64 - 1]).draw([0], 2))
