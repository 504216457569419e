"""Cutting a batch into micro-batches, and putting the results back into the order of the batch."""

import torch
from torch import Tensor

from verl.engine.base import MicroBatching, Outputs


def split_rows(lengths: Tensor, micro: MicroBatching) -> list[Tensor]:
    """Row indices of each micro-batch; `lengths` [B] counts the valid tokens of each row.

    Rows of nearly equal length come together, so that little padding is computed: the rows, longest first, are cut
    where `micro.rows` rows or `micro.max_tokens` tokens are full. One row with more tokens than that is a micro-batch
    of its own. A batch without rows gives one empty micro-batch.
    """
    order = lengths.argsort(descending=True, stable=True)
    if micro.max_tokens is None:
        return list(order.split(micro.rows or max(len(order), 1)))
    pieces: list[list[int]] = [[]]
    tokens = 0
    for row, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if pieces[-1] and tokens + length > micro.max_tokens:
            pieces.append([])
            tokens = 0
        pieces[-1].append(row)
        tokens += length
    return [torch.tensor(piece, dtype=torch.long, device=lengths.device) for piece in pieces]


def join_rows(parts: list[Outputs], pieces: list[Tensor]) -> Outputs:
    """Outputs in the order of the batch, from those of micro-batches and the row indices that `split_rows` gave."""
    order = torch.cat(pieces)
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return {name: torch.empty_like(values).index_copy_(0, order, values) for name, values in joined.items()}
