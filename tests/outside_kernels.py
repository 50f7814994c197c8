"""Kernels that torch's dispatcher does not see, as those of Transformer Engine, Apex and raw Triton are: they allocate
by ``torch.empty`` and write through a pointer.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import nn


def write(out: torch.Tensor, values: Any) -> torch.Tensor:
    """Copy ``values``, computed by numpy, to a tensor's address."""
    data = np.ascontiguousarray(np.broadcast_to(values, tuple(out.shape)), dtype=np.float32)
    assert out.dtype is torch.float32
    assert out.is_contiguous()
    ctypes.memmove(out.data_ptr(), data.ctypes.data, data.nbytes)
    return out


def read(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's values, taken from its address."""
    tensor = tensor.detach()
    strides = tuple(stride * 4 for stride in tensor.stride())
    count = tensor.untyped_storage().nbytes() // 4
    flat = np.ctypeslib.as_array((ctypes.c_float * count).from_address(tensor.untyped_storage().data_ptr()))
    return np.lib.stride_tricks.as_strided(flat[tensor.storage_offset() :], tuple(tensor.shape), strides).copy()


def doubled(x: torch.Tensor) -> torch.Tensor:
    """2 x, by a kernel that nobody sees."""
    return write(torch.empty_like(x), 2 * read(x))


class Doubling(nn.Module):
    """A layer whose kernel bypasses the dispatcher."""

    def forward(self, x):
        return doubled(x)
