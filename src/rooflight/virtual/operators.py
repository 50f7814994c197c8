"""Operators that a build with CUDA has kernels of, and a CPU build takes apart: autograd is to see them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

from rooflight.virtual.mode import VirtualMode

_KEPT: Final[list[Any]] = []
_SPLIT: Final = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Those with a composite kernel beside CUDA's: autograd would run the composite where there is no kernel of CUDA's."""


def install(mode: VirtualMode) -> None:
    """Register kernels that are never reached, since the mode answers before them; let LBFGS iterate as often as it
    may, since it ends where numbers say so.
    """
    begin = torch.optim.LBFGS.__init__

    def init(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, params, *args, **kwargs)
        mode.answers.note("when LBFGS has found a minimum", "after all its iterations")
        for group in self.param_groups:
            group["tolerance_grad"] = group["tolerance_change"] = -1

    torch.optim.LBFGS.__init__ = init  # type: ignore[method-assign]
    library = torch.library.Library("aten", "IMPL")
    for name in _SPLIT:
        if hasattr(torch.ops.aten, name) and not has_kernel(f"aten::{name}", "CUDA"):
            library.impl(name, _never, "CUDA")
    for name, made in _SHAPES.items():
        if not has_kernel(f"aten::{name}", "Meta"):
            library.impl(name, made, "Meta")
    _KEPT.append(library)


def _never(*_: Any, **__: Any) -> Any:
    raise RuntimeError("there is no GPU: this operator ran outside the virtual one")


def _statistics(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tuple(tensor.new_empty(tensor.shape[1], dtype=dtype) for _ in range(count))


_SHAPES: Final[dict[str, Callable[..., Any]]] = {
    "batch_norm_stats": lambda tensor, *_: _statistics(tensor, 2),
    "batch_norm_gather_stats_with_counts": lambda tensor, *_: _statistics(tensor, 2),
    "batch_norm_elemt": lambda tensor, *_: torch.empty_like(tensor),
    "batch_norm_backward_reduce": lambda gradient, *_: _statistics(gradient, 4),
    "batch_norm_backward_elemt": lambda gradient, *_: torch.empty_like(gradient),
}
"""Results of operators that torch describes for CUDA alone: those of SyncBatchNorm."""
