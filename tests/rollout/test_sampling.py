"""The choice of tokens, against numbers that can be checked by hand and a plain Python version."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from verl.rollout import sampling as module
from verl.rollout.base import Sampling
from verl.rollout.sampling import choose, filtered_probs, inverse_cdf, log_probs_of, uniforms

HALVES = torch.tensor([[0.125, 0.5, 0.25, 0.125]])


def u(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def kept(probs: Tensor, top_k: int = -1, top_p: float = 1.0) -> list[list[int]]:
    return [row.nonzero().squeeze(-1).tolist() for row in filtered_probs(probs.log(), top_k, top_p)]


@pytest.mark.parametrize(
    ("number", "token"),
    [(0.0, 0), (0.1249, 0), (0.125, 1), (0.6249, 1), (0.625, 2), (0.8749, 2), (0.875, 3), (1 - 2**-53, 3)],
)
def test_token_is_the_first_whose_running_probability_exceeds_u(number: float, token: int) -> None:
    """Running sums of 1/8, 1/2, 1/4, 1/8: .125, .625, .875, 1."""
    assert inverse_cdf(HALVES, u(number)).tolist() == [token]


def test_weights_of_zero_are_never_chosen_and_need_no_scale() -> None:
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]]).expand(5, 5)
    assert inverse_cdf(weights, u(0.0, 0.7499, 0.75, 0.999, 1 - 2**-53)).tolist() == [1, 1, 3, 3, 3]


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9).filter(any),
    st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2**-53)),
)
def test_running_share_passes_u_at_the_chosen_token(weights: list[float], number: float) -> None:
    [token] = inverse_cdf(torch.tensor([weights]), u(number)).tolist()
    before, after = (math.fsum(weights[:end]) / math.fsum(weights) for end in (token, token + 1))
    assert weights[token] > 0
    assert before <= number * (1 + 1e-12) and number <= after * (1 + 1e-12)


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
    tokens, log_probs = choose(HALVES.log(), u(0.99), Sampling(1, top_k=1))
    assert tokens.tolist() == [1]
    assert log_probs.tolist() == pytest.approx([math.log(0.5)])


def test_greedy_takes_the_most_likely_whatever_u_and_filters() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]]).expand(2, 3)
    tokens, log_probs = choose(logits, u(0.0, 0.999), Sampling(1, temperature=0, top_p=0.5))
    assert tokens.tolist() == [1, 1]
    assert torch.allclose(log_probs, logits.log_softmax(-1)[:, 1])


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit the same alone, together, and in pieces of any size."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 301, generator=generator) * 3
    numbers = torch.rand(7, generator=generator, dtype=torch.float64)
    setting = Sampling(1, temperature=0.8, top_k=200, top_p=0.95)
    together = choose(logits, numbers, setting)
    alone = [choose(logits[i : i + 1], numbers[i : i + 1], setting) for i in range(7)]
    monkeypatch.setattr(module, "CPU_ELEMENTS", 700)
    for parts in (zip(*alone, strict=True), [(part,) for part in choose(logits, numbers, setting)]):
        tokens, log_probs = (torch.cat(tuple(part)) for part in parts)
        assert torch.equal(tokens, together[0]) and torch.equal(log_probs, together[1])


def test_logits_that_are_not_finite_show_in_the_log_probs() -> None:
    logits = torch.tensor([[0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [0.0, -math.inf, 0.0]])
    for setting in (Sampling(1), Sampling(1, temperature=0), Sampling(1, top_p=0.5), Sampling(1, top_k=2)):
        tokens, log_probs = choose(logits, u(0.5, 0.5, 0.5), setting)
        assert log_probs.isfinite().tolist() == [False, False, True]
        assert tokens[2] in (0, 2)


@pytest.mark.parametrize("setting", [Sampling(1), Sampling(1, temperature=0.7, top_k=3, top_p=0.85)])
def test_frequencies_over_many_seeds(setting: Sampling) -> None:
    """40000 seeds: each token's share is within 4 standard deviations of its probability."""
    logits = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).log()
    count = 40_000
    numbers = uniforms(range(count), 1)[:, 0]
    tokens, _ = choose(logits.expand(count, 5), numbers, setting)
    weights = filtered_probs(log_probs_of(logits, setting.temperature), setting.top_k, setting.top_p)[0].double()
    expected = weights / weights.sum()
    seen = tokens.bincount(minlength=5) / count
    assert ((seen - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


def test_uniforms_are_fixed_by_all_bits_of_each_seed() -> None:
    numbers = uniforms([5, 7, 5 + 2**32], 6)
    assert numbers.shape == (3, 6) and numbers.dtype == torch.float64
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert torch.equal(uniforms([7], 3)[0], numbers[1, :3]), "a longer row starts with the shorter one"
    assert not torch.equal(numbers[0], numbers[2]), "seeds that share their lower 32 bits"
    assert torch.equal(uniforms([-1], 2), uniforms([2**64 - 1], 2))
