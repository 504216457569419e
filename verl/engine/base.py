"""What a training engine can do, whatever shards the model underneath."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from verl.utils.metrics import Metrics

Outputs = dict[str, Tensor]
"""What a model returns for a micro-batch of b rows: `log_probs`, `entropy` or `values` [b, R], or `scores` [b]."""

LossFn = Callable[[Outputs, TensorDict], tuple[Tensor, Metrics]]
"""(outputs, micro-batch) -> (loss SUM over the micro-batch, metrics). Never a mean: the engine divides."""


@dataclass(frozen=True)
class MicroBatching:
    """How a batch is cut for forward passes: at most `rows` rows or `max_tokens` valid tokens; neither: one piece."""

    rows: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.max_tokens is not None:
            raise ValueError(f"micro-batches are cut by rows ({self.rows}) or by tokens ({self.max_tokens}), not both")


class TrainEngine(Protocol):
    """One model, sharded over the processes of a mesh. Every process must make the same calls in the same order."""

    def forward(self, batch: TensorDict, micro: MicroBatching, **model_kwargs: Any) -> Outputs:
        """Outputs for all rows of `batch`, in the order of `batch`, without gradients."""
        ...

    def forward_backward(
        self, batch: TensorDict, loss_fn: LossFn, denominator: float, micro: MicroBatching, **model_kwargs: Any
    ) -> Metrics:
        """Add the gradient of (sum of loss_fn over all micro-batches of all processes) / denominator.

        `denominator` is that of the whole mini-batch, the same number on every process, so that neither the
        size of micro-batches nor the number of processes changes the gradient.
        """
        ...

    def optim_step(self) -> dict[str, float]:
        """Clip, step and clear. Returns `grad_norm` (before clipping), `lr` (used) and `skipped` (1 if not finite)."""
        ...

    def named_weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under their Hugging Face names, one at a time; all processes must consume it in step."""
        ...

    def move(self, device: str, params: bool = True, optimizer: bool = True) -> None:
        """Move weights and optimizer state to `device` ("cpu" or the engine's own)."""
        ...

    def save_checkpoint(self, path: Path) -> None:
        """Save weights, optimizer and schedule, sharded; any number of processes can load them."""
        ...

    def load_checkpoint(self, path: Path) -> None: ...

    def save_hf(self, path: Path) -> None:
        """Save the weights as a Hugging Face folder (process 0 writes)."""
        ...
