"""How the rows of a batch are laid out for one forward pass: aligned to the left, or packed end to end.

A batch comes with prompts padded on the left and responses on the right. Neither layout keeps that padding: the
valid tokens of a row are moved together, so that they stand at positions 0, 1, 2, ... A causal model never looks to
the right, so rows aligned to the left need no attention mask, which also lets attention take its fastest kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """The tokens as the model gets them, and where each token of the batch went.

    `input_ids` is [b, W] (aligned, W = the longest row) or [1, T] (packed, T = all valid tokens). `attention_mask` is
    of the same shape, 1 on real tokens. `position_ids` restart at 0 for every packed row. `slot` [b, L] is the index
    of each valid token of the batch in the flattened `input_ids`, and `rank` [b, L] its position in its own row.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    slot: Tensor
    rank: Tensor
    packed: bool


def layout_tokens(input_ids: Tensor, attention_mask: Tensor, packed: bool = False) -> TokenLayout:
    """Lay out [b, L] ids whose valid tokens have attention_mask 1. Rows without any valid token may get a dummy one."""
    valid = attention_mask.bool()
    rank = (valid.long().cumsum(1) - 1).clamp_min(0)
    lengths = valid.sum(1)
    if packed:
        starts = lengths.cumsum(0) - lengths
        shape = (1, max(int(lengths.sum()), 1))
    else:
        width = max(int(lengths.max()), 1)
        starts = torch.arange(len(lengths), device=lengths.device) * width
        shape = (len(lengths), width)
    slot = starts[:, None] + rank
    taken = slot[valid]

    def place(values: Tensor) -> Tensor:
        return values.new_zeros(shape).view(-1).index_copy(0, taken, values[valid]).view(shape)

    position_ids = place(rank) if packed else torch.arange(shape[1], device=rank.device).expand(shape)
    return TokenLayout(place(input_ids), place(attention_mask), position_ids, slot, rank, packed)


def response_slots(layout: TokenLayout, attention_mask: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rows [n], columns [n], slots [n]) of the n response tokens with mask 1; a slot is that of the token BEFORE it.

    That is the position whose hidden state predicts the response token. ValueError when a response token is hidden
    from attention, or has no token before it.
    """
    prompt_width = attention_mask.shape[1] - response_mask.shape[1]
    rows, columns = response_mask.nonzero(as_tuple=True)
    at = (rows, columns + prompt_width)
    if bool((attention_mask[at] == 0).any()):
        bad = int(rows[attention_mask[at] == 0][0])
        raise ValueError(f"row {bad}: response_mask is 1 on a token whose attention_mask is 0")
    if bool((layout.rank[at] == 0).any()):
        bad = int(rows[layout.rank[at] == 0][0])
        raise ValueError(f"row {bad}: the response has no token before it (an empty prompt), so nothing predicts it")
    return rows, columns, layout.slot[at] - 1


def one_or_more_sequences(forward: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """Let the `forward` of a model for rows [b, L] also take rows of k sequences each, [b, k, L].

    Such a row (a chosen and a rejected response) is never torn apart by micro-batches or ranks. Outputs get the
    dimensions [b, k] in the place of [b].
    """

    @wraps(forward)
    def run(self: Any, batch: TensorDict, **kwargs: Any) -> dict[str, Tensor]:
        shape = batch["input_ids"].shape[:-1]
        if len(shape) == 1:
            return forward(self, batch, **kwargs)
        flat = TensorDict({key: value.flatten(0, 1) for key, value in batch.items()}, batch_size=[shape.numel()])
        return {name: values.unflatten(0, shape) for name, values in forward(self, flat, **kwargs).items()}

    return run
