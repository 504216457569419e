"""Equality by value, for the things a batch may hold."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def values_equal(left: Any, right: Any) -> bool:
    """Whether two values are the same all the way down. NaN equals NaN in the same place.

    Tensors and arrays must agree in shape and dtype too (strings of another width, "<U3" and "<U5", count as one
    dtype); containers are compared item by item; anything else by `==`.
    """
    if left is right:
        return True
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and _tensors_equal(left, right)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and _arrays_equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(values_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(map(values_equal, left, right))
    # A NaN is the one value that differs from itself.
    return bool(left == right) or bool(left != left and right != right)


def _tensors_equal(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    right = right.to(left.device)
    if left.is_floating_point() or left.is_complex():
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
    return torch.equal(left, right)


def _arrays_equal(left: np.ndarray, right: np.ndarray) -> bool:
    same_dtype = left.dtype == right.dtype or left.dtype.kind == right.dtype.kind == "U"
    if left.shape != right.shape or not same_dtype:
        return False
    if left.dtype == object:
        return all(map(values_equal, left.ravel(), right.ravel()))
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
