"""What a generation engine can do. Prompts and completions are token ids, never text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy; `top_p` 1 and `top_k` -1 keep all tokens."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    n: int = 1
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or above, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.top_k == 0 or self.top_k < -1:
            raise ValueError(f"top_k must be -1 (all tokens) or at least 1, not {self.top_k}")
        if self.n < 1:
            raise ValueError(f"n must be at least 1, not {self.n}")


@dataclass(frozen=True)
class Completion:
    """One sampled response. The end token, when one was sampled, is part of it.

    `log_probs[t]` is log p(token_ids[t]) under softmax(logits / temperature), before top-p and top-k; greedy
    decoding takes temperature 1 for them.
    """

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]


class RolloutEngine(Protocol):
    """A model that generates. It knows nothing of training; the worker that hosts it brings the weights."""

    version: int
    """That of the last `update_weights`."""

    @property
    def has_weights(self) -> bool:
        """Whether it could generate: false before the first update, and after a sleep that lost the weights."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """`sampling.n` completions for each prompt, those of one prompt side by side, in the order of `prompts`.

        `seeds` (one per completion) fix each completion by itself: the same seed and prompt give the same tokens
        whatever the other rows are and however many replicas there are. Without them the engine's own seed counts.
        """
        ...

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take new weights under their Hugging Face names."""
        ...

    def weight_errors(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """For each weight, how far the engine's own is from it, relative to the largest number; NaN if not found."""
        ...

    def sleep(self) -> None:
        """Give memory back until `wake_up`; weights may be lost and must then come again by `update_weights`."""
        ...

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take back the memory of `tags`: "weights" to update them, "kv_cache" to generate; None is both."""
        ...

    def close(self) -> None:
        """End the engine, if it is more than an object; it cannot be used again."""
        ...
