"""Tensors for inputs: random but always the same on a real device, on meta only their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooflight.workloads.extras import need_torch

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Draw:
    """Draws tensors of one device; the same sequence of calls gives the same numbers."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        self.torch = need_torch()
        self.device = device
        self.dtype = dtype
        self.generator = None if device.type == "meta" else self.torch.Generator(device).manual_seed(0)

    @property
    def on_meta(self) -> bool:
        """Whether tensors have shapes and no numbers."""
        return self.generator is None

    def ids(self, *shape: int, below: int) -> Tensor:
        """Random integers from 0 to ``below``, which is excluded."""
        if self.on_meta:
            return self._empty(shape, self.torch.int64)
        drawn: Tensor = self.torch.randint(0, below, shape, generator=self.generator, device=self.device)
        return drawn

    def normal(self, *shape: int) -> Tensor:
        """Normally distributed numbers, in the dtype of the weights."""
        if self.on_meta:
            return self._empty(shape, self.dtype)
        drawn: Tensor = self.torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return drawn

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between 0 and 1, in float32, as labels have them."""
        if self.on_meta:
            return self._empty(shape, self.torch.float32)
        drawn: Tensor = self.torch.rand(shape, generator=self.generator, device=self.device)
        return drawn

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made: Tensor = self.torch.empty(shape, dtype=dtype, device=self.device)
        return made
