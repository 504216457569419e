"""Statistics over the valid cells of a tensor.

Cells under a mask of 0 are replaced before anything is computed, so NaN, inf and garbage there reach neither a value
nor a gradient. All functions take a mask of the values' shape (1 or True = valid) and compute in at least float32.
"""

import torch
from torch import Tensor


def promote(values: Tensor) -> Tensor:
    """`values` in float32, or in their own dtype if that is wider. Half precision is for storage only."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def keep_valid(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is set, 0 elsewhere (also for the gradient).

    Raises:
        ValueError: the shapes differ. Broadcasting a mask would hide a mistake.
    """
    if values.shape != mask.shape:
        raise ValueError(f"values {tuple(values.shape)} and mask {tuple(mask.shape)} must have one shape")
    return torch.where(mask.bool(), promote(values), 0.0)


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over valid cells, of all or along `dim`."""
    return keep_valid(values, mask).sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over valid cells, of all or along `dim`; 0 where there is none."""
    return masked_sum(values, mask, dim) / mask.bool().sum(dim).clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, ddof: int = 1) -> Tensor:
    """Variance over all valid cells, divided by (count - ddof); 0 if no more than `ddof` cells are valid."""
    valid = keep_valid(values, mask)
    squares = masked_sum((valid - masked_mean(values, mask)) ** 2, mask)
    return squares / (mask.bool().sum() - ddof).clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over all valid cells, with the sample variance; 0 in the others.

    One valid cell, or equal ones, give 0. With `shift_mean=False` only the scale changes: x / sqrt(var + 1e-8).
    """
    # float64 makes the mean of equal float32 values exact, else its rounding error is blown up by 1 / sqrt(1e-8).
    wide = keep_valid(values, mask).double()
    shifted = wide - masked_mean(wide, mask) if shift_mean else wide
    whitened = shifted * torch.rsqrt(masked_var(wide, mask) + 1e-8)
    return keep_valid(whitened, mask).to(promote(values).dtype)
