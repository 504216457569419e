"""Making the number of rows fit the number of processes."""

import numpy as np

from verl.protocol.data_proto import DataProto
from verl.protocol.schema import LOSS_MASK_KEYS


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
