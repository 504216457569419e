"""From items of a data set to the columns of a batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl.protocol.columns import object_column


def collate_fn(items: Sequence[dict[str, Any]]) -> dict[str, Tensor | np.ndarray]:
    """Columns for `DataProto.from_single_dict`.

    Tensors of equal shape are stacked to `[B, ...]`. All else becomes a 1-D object array with one entry per item, so
    that lists and dicts stay what they are; None stands where an item lacks a key that another has.

    Raises ValueError for tensors of several shapes, and for a key that holds a tensor in some items only.
    """
    columns: dict[str, Tensor | np.ndarray] = {}
    for key in dict.fromkeys(key for item in items for key in item):
        values = [item.get(key) for item in items]
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not tensors:
            columns[key] = object_column(values)
            continue
        shapes = sorted({tuple(tensor.shape) for tensor in tensors})
        if len(tensors) < len(values) or len(shapes) > 1:
            raise ValueError(
                f"cannot stack {key!r}: {len(tensors)} of {len(values)} items have a tensor, of shapes {shapes}"
            )
        columns[key] = torch.stack(tensors)
    return columns
