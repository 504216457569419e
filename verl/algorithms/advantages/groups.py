"""Statistics over the samples of one prompt, for all prompts at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from verl.algorithms.advantages.base import AdvantageInputs, Advantages
from verl.algorithms.masked import keep_valid, masked_sum, promote


@dataclass(frozen=True)
class Groups:
    """Which rows of a batch belong together. Rows without a valid token are members of nothing.

    Attributes:
        index: int64 [B], the number of each row's group, counted from 0.
        member: bool [B], whether the row counts.
        size: float64 [B], how many members the row's group has.
    """

    index: Tensor
    member: Tensor
    size: Tensor

    @classmethod
    def of(cls, batch: AdvantageInputs) -> "Groups":
        assert batch.group_ids is not None
        index = torch.unique(batch.group_ids, return_inverse=True)[1]
        member = batch.response_mask.bool().any(-1)
        return cls(index, member, _sum_by(index, member.double()))

    @property
    def alone(self) -> Tensor:
        """bool [B]: members that nothing can be compared with."""
        return self.member & (self.size == 1)

    def sum(self, values: Tensor) -> Tensor:
        """[B] float64: the sum of `values` [B] over the members of each row's group."""
        return _sum_by(self.index, keep_valid(values.double(), self.member))

    def mean(self, values: Tensor) -> Tensor:
        """[B] float64: the mean over the members of each row's group; 0 in a group without members."""
        return self.sum(values) / self.size.clamp(min=1)

    def std(self, values: Tensor) -> Tensor:
        """[B] float64: the sample standard deviation (ddof 1) in each row's group; 0 for fewer than two members."""
        return (self.sum((values - self.mean(values)) ** 2) / (self.size - 1).clamp(min=1)).sqrt()

    def max(self, values: Tensor) -> Tensor:
        """[B] float64: the largest of `values` [B] over the members of each row's group; -inf without members."""
        candidates = torch.where(self.member, values.double(), -torch.inf)
        largest = torch.full_like(candidates, -torch.inf).scatter_reduce(0, self.index, candidates, "amax")
        return largest[self.index]

    def metrics(self, scores: Tensor) -> dict[str, float]:
        """Groups that teach nothing: `groups_of_one` without a baseline and `groups_all_equal` in score, counts."""
        equal = self.member & (self.size > 1) & (self.std(scores) == 0)
        return {
            "groups_of_one": float(self.alone.sum()),
            "groups_all_equal": float(torch.unique(self.index[equal]).numel()),
        }


def outcome_scores(batch: AdvantageInputs) -> Tensor:
    """[B] float64: the sum of each row's valid token rewards.

    float64, so that the mean of equal float32 scores is exactly that score and not divided into noise by a tiny std.
    """
    return masked_sum(batch.token_level_rewards.double(), batch.response_mask, dim=-1)


def spread(per_row: Tensor, batch: AdvantageInputs) -> Tensor:
    """[B, R]: the number of a row [B] on each of its valid tokens, in the dtype of the rewards (at least float32)."""
    wide = per_row[:, None].expand(batch.response_mask.shape)
    return keep_valid(wide, batch.response_mask).to(promote(batch.token_level_rewards).dtype)


def outcome_advantages(per_row: Tensor, batch: AdvantageInputs, metrics: dict[str, float]) -> Advantages:
    """Advantages that give every valid token of a row the same number; the returns are the same."""
    spread_out = spread(per_row, batch)
    return Advantages(spread_out, spread_out, metrics)


def _sum_by(index: Tensor, values: Tensor) -> Tensor:
    """[B]: for each row the sum of `values` [B] over the rows that share its index."""
    return torch.zeros_like(values).index_add(0, index, values)[index]
