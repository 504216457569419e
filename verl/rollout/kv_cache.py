"""Attention keys and values while decoding, and the memory they take."""

from typing import Any

import torch
from torch import Tensor

from verl.utils.memory import available_memory

MAX_ROWS = 256
"""Rows decoded at once, at most: beyond it a step takes longer in proportion, so nothing is won."""

_MEMORY_SHARE = {"cpu": 0.3, "cuda": 0.8}
"""What generation may take of the memory that is free now; on a CPU other workers share it."""


class RowCache:
    """The keys and values of B rows, in buffers of full length, so that a step copies only what is new.

    It answers what the attention layers and masks of transformers ask of their own cache. The first forward pass
    (prefill) may hold each distinct prompt once: row i then starts as a copy of prefilled row `owner[i]`.

    Args:
        owner: int64 [B].
        capacity: tokens that a row can hold.
    """

    is_compileable = False

    def __init__(self, owner: Tensor, capacity: int) -> None:
        self._owner = owner
        self._capacity = capacity
        self._rows = len(owner)
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys, values [B, heads, capacity, head_dim]
        self._lengths: dict[int, int] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the `keys` and `values` [rows, heads, new tokens, head_dim] of a layer; returns all of that layer's."""
        if layer_idx not in self._buffers:
            self._buffers[layer_idx] = (self._spread(keys), self._spread(values))
            self._lengths[layer_idx] = keys.shape[2]
            return keys, values
        start = self._lengths[layer_idx]
        end = self._lengths[layer_idx] = start + keys.shape[2]
        all_keys, all_values = (buffer[: self._rows, :, :end] for buffer in self._buffers[layer_idx])
        all_keys[:, :, start:] = keys
        all_values[:, :, start:] = values
        return all_keys, all_values

    def _spread(self, prefilled: Tensor) -> Tensor:
        _, heads, length, size = prefilled.shape
        buffer = prefilled.new_empty((self._rows, heads, self._capacity, size))
        buffer[:, :, :length] = prefilled[self._owner]
        return buffer

    def keep(self, order: Tensor) -> None:
        """Keep the rows `order` [rows left], in that order; only rows that change their place are copied."""
        self._rows = len(order)
        moved = (order != torch.arange(len(order), device=order.device)).nonzero().squeeze(-1)
        source = order[moved]
        for layer, buffers in self._buffers.items():
            length = self._lengths[layer]
            for buffer in buffers:
                buffer[moved, :, :length] = buffer[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._lengths.get(layer_idx, 0)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0


def rows_that_fit(config: Any, dtype: torch.dtype, device: torch.device, prompt: int, new: int) -> int:
    """How many rows of `prompt` + `new` tokens generate at once in the memory that is free: 1 to MAX_ROWS.

    `config` is the Hugging Face configuration of a decoder.
    """
    budget = _MEMORY_SHARE[device.type] * available_bytes(device)
    return max(1, min(MAX_ROWS, int(budget / row_bytes(config, dtype, prompt, new))))


def row_bytes(config: Any, dtype: torch.dtype, prompt: int, new: int) -> int:
    """Bytes for generating one row: its keys and values, one layer's activations in prefill, and its logits."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads  # families without grouped heads do not name them
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = 2 * config.num_hidden_layers * kv_heads * head_dim * dtype.itemsize * (prompt + new)
    activations = 16 * config.hidden_size * dtype.itemsize * prompt  # residual, attention and a 4x wide MLP
    logits = 32 * config.vocab_size  # fp32 logits, log-probs and probabilities, fp64 running sums, and room to sort
    return cache + activations + logits


def available_bytes(device: torch.device) -> int:
    """Memory that can still be taken on a device, by this process."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return available_memory()
