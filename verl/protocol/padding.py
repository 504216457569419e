"""Making the number of rows fit the number of processes, and batches fit each other."""

from collections.abc import Collection, Sequence
from typing import cast

import numpy as np
from torch import Tensor, nn

from verl.protocol.columns import object_column
from verl.protocol.data_proto import DataProto
from verl.protocol.schema import LOSS_MASK_KEYS, SCHEMA


def pad_dataproto_to_divisor(data: DataProto, divisor: int) -> tuple[DataProto, int]:
    """Append rows until `divisor` divides their number. Returns the padded batch and how many rows were added.

    Pad rows repeat the batch from its start, again and again if need be, so that a model can run on them. Their
    loss masks (`schema.LOSS_MASK_KEYS`, such as `response_mask`) are zero, so that they count in no loss or metric.
    A batch without any column (only `meta_info`) has no rows to divide and comes back as it is.

    Raises ValueError for a divisor below 1 and for columns with 0 rows: there is nothing to repeat.
    """
    if divisor < 1:
        raise ValueError(f"pad_dataproto_to_divisor: the divisor must be at least 1, not {divisor}")
    rows = len(data)
    if rows == 0 and (data.batch is not None or data.non_tensor_batch):
        raise ValueError(f"pad_dataproto_to_divisor: 0 rows cannot be padded to a multiple of {divisor}")
    pad_size = -rows % divisor
    if pad_size == 0:
        return data.slice(), 0
    padded = data.select_idxs(np.arange(rows + pad_size) % rows)
    if padded.batch is not None:
        for key in LOSS_MASK_KEYS.intersection(padded.batch.keys()):
            padded.batch[key][rows:] = 0  # rows picked by an index are copies: the input keeps its mask
    return padded, pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Drop the last `pad_size` rows. ValueError if there are not so many."""
    if not 0 <= pad_size <= len(data):
        raise ValueError(f"unpad_dataproto: cannot drop {pad_size} of {len(data)} rows")
    return data.slice(0, len(data) - pad_size)


def align(parts: Sequence[DataProto]) -> list[DataProto]:
    """`parts`, batches of responses, as `DataProto.concat` takes them.

    Prompts get the width of the widest part, padded on the left by cells of id 0 under a mask of 0. A non-tensor column
    that a part lacks is None in its rows.
    """
    width = max((part.batch["prompts"].shape[1] for part in parts), default=0)
    names = {name for part in parts for name in part.non_tensor_batch}
    return [_aligned(part, width - part.batch["prompts"].shape[1], names) for part in parts]


def _aligned(part: DataProto, cells: int, names: Collection[str]) -> DataProto:
    columns = cast("dict[str, Tensor]", dict(part.batch.items()))
    tensors = {
        name: nn.functional.pad(column, (cells, 0)) if _begins_with_prompt(name) else column
        for name, column in columns.items()
    }
    missing = {name: object_column([None] * len(part)) for name in sorted(names) if name not in part.non_tensor_batch}
    return DataProto.from_dict(tensors, {**part.non_tensor_batch, **missing}, part.meta_info)


def _begins_with_prompt(name: str) -> bool:
    return name in SCHEMA and SCHEMA[name].shape[1:] in (("P",), ("P+R",))
