import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from verl.models.token_stats import chunked_token_statistics, token_statistics


def test_literal_numbers() -> None:
    # logits 0, ln 2, ln 5: probabilities 1/8, 2/8, 5/8
    logits = torch.tensor([[0.0, math.log(2), math.log(5)]])
    log_probs, entropy = token_statistics(logits, torch.tensor([1]), with_entropy=True)
    assert log_probs.item() == pytest.approx(math.log(2 / 8))
    expected = -(1 / 8 * math.log(1 / 8) + 2 / 8 * math.log(2 / 8) + 5 / 8 * math.log(5 / 8))
    assert entropy is not None and entropy.item() == pytest.approx(expected)
    # at temperature 1/2 the odds are squared: 1, 4, 25 of 30
    cold, _ = token_statistics(logits, torch.tensor([1]), temperature=0.5)
    assert cold.item() == pytest.approx(math.log(4 / 30))


def test_impossible_tokens_are_no_nan() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    log_probs, entropy = token_statistics(logits, torch.tensor([0]), with_entropy=True)
    assert entropy is not None
    assert log_probs.item() == pytest.approx(math.log(0.5)) and entropy.item() == pytest.approx(math.log(2))
    (log_probs + entropy).sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, 0.0, -0.5]]))


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_statistics(torch.zeros(1, 2), torch.tensor([0]), temperature=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradient_is_that_of_the_definition(temperature: float) -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.tensor([0, 4, 2]), torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.0, -1.0]])
    log_probs, entropy = token_statistics(logits, labels, temperature, with_entropy=True)
    assert entropy is not None
    (log_probs @ weights[0] + entropy @ weights[1]).backward()
    log_softmax = (logits / temperature).log_softmax(-1)
    direct = log_softmax.gather(1, labels[:, None])[:, 0] @ weights[0].double()
    direct = direct - (log_softmax.exp() * log_softmax).sum(-1) @ weights[1].double()
    (expected,) = torch.autograd.grad(direct, logits)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-5, atol=1e-6)


@settings(deadline=None)
@given(st.integers(0, 7), st.integers(1, 4), st.booleans())
def test_chunks_change_nothing(tokens: int, chunk: int, with_entropy: bool) -> None:
    torch.manual_seed(0)
    head, hidden, labels = nn.Linear(4, 9), torch.randn(tokens, 4, requires_grad=True), torch.randint(9, (tokens,))

    def total(log_probs: Tensor, entropy: Tensor | None) -> Tensor:
        return (log_probs * torch.arange(tokens)).sum() + (entropy.sum() if entropy is not None else 0)

    parts = chunked_token_statistics(hidden, head, 9, labels, 0.8, with_entropy, chunk_size=chunk)
    whole = token_statistics(head(hidden), labels, 0.8, with_entropy)
    torch.testing.assert_close(parts[0], whole[0])
    inputs = (hidden, head.weight)
    for chunked, direct in zip(
        torch.autograd.grad(total(*parts), inputs), torch.autograd.grad(total(*whole), inputs), strict=True
    ):
        torch.testing.assert_close(chunked, direct)


class LargestTensor(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_no_matrix_of_all_tokens_and_the_vocabulary() -> None:
    head, hidden = nn.Linear(4, 1000), torch.randn(64, 4, requires_grad=True)
    labels = torch.randint(1000, (64,))
    with LargestTensor() as largest:
        log_probs, entropy = chunked_token_statistics(hidden, head, 1000, labels, with_entropy=True, chunk_size=8)
        assert entropy is not None
        (log_probs + entropy).sum().backward()
    assert largest.elements == 8 * 1000
