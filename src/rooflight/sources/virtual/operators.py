"""Operators that a build with CUDA has kernels of, and a CPU build takes apart: autograd is to see them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

from rooflight.sources.virtual.mode import VirtualMode

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


def _wide(state: torch.Tensor, times: int) -> torch.Tensor:
    return state.new_empty(state.shape[0], times * state.shape[1])


_SHAPES: Final[dict[str, Callable[..., Any]]] = {
    "batch_norm_stats": lambda tensor, *_: _statistics(tensor, 2),
    "batch_norm_gather_stats_with_counts": lambda tensor, *_: _statistics(tensor, 2),
    "batch_norm_elemt": lambda tensor, *_: torch.empty_like(tensor),
    "batch_norm_backward_reduce": lambda gradient, *_: _statistics(gradient, 4),
    "batch_norm_backward_elemt": lambda gradient, *_: torch.empty_like(gradient),
    "_thnn_fused_gru_cell": lambda _gates, _hidden, state, *_: (torch.empty_like(state), _wide(state, 5)),
    "_thnn_fused_gru_cell_backward": lambda gradient, *_: (
        *(_wide(gradient, 3) for _ in range(2)), torch.empty_like(gradient),
        *(gradient.new_empty(3 * gradient.shape[1]) for _ in range(2)),
    ),
    "_thnn_fused_lstm_cell": lambda _gates, _hidden, cell, *_: (
        torch.empty_like(cell), torch.empty_like(cell), _wide(cell, 4)),
    "_thnn_fused_lstm_cell_backward_impl": lambda _grad, _grad_cell, cell, *_: (
        _wide(cell, 4), torch.empty_like(cell), cell.new_empty(4 * cell.shape[1])),
}  # fmt: skip
"""Results of operators that torch describes for CUDA alone: those of SyncBatchNorm, and of cells of recurrent
networks, whose states are [batch, width].
"""
