"""Kernels of a device that is not there: ops that come past the mode, and those that a CPU build takes apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._prims_common import suggest_memory_format

from rooflight.sources.virtual.mode import VirtualMode

_KEPT: Final[list[Any]] = []
_SPLIT: Final = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Those with a composite kernel beside CUDA's: autograd would run the composite where there is no kernel of CUDA's."""


def install(mode: VirtualMode) -> None:
    """Register kernels: some that are never reached, since the mode answers before, so that autograd sees their ops
    whole, and some that hand to the mode what C++ runs past it, as where it makes an index of a list. Let LBFGS iterate
    as often as it may, since it ends where numbers say so.
    """
    begin = torch.optim.LBFGS.__init__

    def init(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, params, *args, **kwargs)
        mode.answers.note("when LBFGS has found a minimum", "after all its iterations")
        for group in self.param_groups:
            group["tolerance_grad"] = group["tolerance_change"] = -1

    torch.optim.LBFGS.__init__ = init  # type: ignore[method-assign]
    vars(torch._meta_registrations)["rnn_cell_checkSizes"] = lambda *_: None  # fails of cells without biases
    loss: Any = torch.ctc_loss

    def ctc_loss(logs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> torch.Tensor:
        """With lengths of the host as numbers: beside subclasses of tensors torch leaves them where they are."""
        lengths = (each.tolist() if isinstance(each, torch.Tensor) and not each.is_cuda else each for each in rest)
        found: torch.Tensor = loss(logs, labels, *lengths)
        return found

    torch.ctc_loss = ctc_loss  # type: ignore[assignment]
    vars(torch._C)["_conv_determine_backend_memory_format"] = _layout_of_convolution
    library = torch.library.Library("aten", "IMPL")
    for name in _SPLIT:
        if hasattr(torch.ops.aten, name) and not has_kernel(f"aten::{name}", "CUDA"):
            library.impl(name, _never, "CUDA")
    for name, made in _SHAPES.items():
        if not has_kernel(f"aten::{name}", "Meta"):
            library.impl(name, made, "Meta")
    for op in (torch.ops.aten.copy_.default, *_without_kernel()):
        library.impl(op, partial(_handed, mode, op), "CUDA")
    for packet in (torch.ops.aten._use_cudnn_ctc_loss, torch.ops.aten._use_miopen_ctc_loss):
        for overload in packet.overloads():
            library.impl(getattr(packet, overload), lambda *_: False, "CUDA")
    _KEPT.append(library)


def _layout_of_convolution(images: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.memory_format:
    """The layout of what cuDNN makes: channels last where images or weights are, not in float64
    (``cudnn_conv_suggest_memory_format`` of ATen/native/ConvUtils.h).
    """
    if torch.float64 in (images.dtype, weight.dtype):
        return torch.contiguous_format
    found = {suggest_memory_format(images), suggest_memory_format(weight)} - {torch.contiguous_format}
    return found.pop() if found else torch.contiguous_format


_running: Final = ContextVar[tuple[Any, ...]]("_running", default=())


def _handed(mode: VirtualMode, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What the mode makes of an op that came past it. Raises NotImplementedError where that leads here again."""
    if op in _running.get():
        if not op._schema.returns:  # it writes in place
            return None
        if op._schema.name.endswith("_backward") and len(op._schema.returns) == 1:
            return torch.empty_like(args[1])  # the gradient of what follows it
        if (out := kwargs.get("out")) is not None and "default" in op.overloadpacket.overloads():
            with mode.fake:  # the rule for a result of its own
                made = op.overloadpacket.default(*args, **{name: kwargs[name] for name in kwargs if name != "out"})
            return out if made.shape == out.shape else out.resize_(made.shape)
        raise NotImplementedError(f"a virtual GPU cannot run {op}: torch has no rule for its results' shapes") from None
    token = _running.set((*_running.get(), op))
    try:
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.Python, False):
            return mode.__torch_dispatch__(op, (), args, kwargs)
    finally:
        _running.reset(token)


def _without_kernel() -> Iterator[Any]:
    """Ops that the CPU has a kernel of and CUDA has not; those that autograd takes apart are left as they are."""
    for full in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        name, _, overload = full.removeprefix("aten::").partition(".")
        if "::" not in name and not (has_kernel(full, "CUDA") or has_kernel(full, "CompositeImplicitAutograd")):
            yield getattr(getattr(torch.ops.aten, name), overload or "default")


def _never(*_: Any, **__: Any) -> Any:
    raise RuntimeError("there is no GPU: this operator ran outside the virtual one")


def _statistics(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tuple(tensor.new_empty(tensor.shape[1], dtype=dtype) for _ in range(count))


def _wide(state: torch.Tensor, times: int) -> torch.Tensor:
    return state.new_empty(state.shape[0], times * state.shape[1])


_SHAPES: Final[dict[str, Callable[..., Any]]] = {
    "_sample_dirichlet": lambda tensor, *_: torch.empty_like(tensor),
    "_dirichlet_grad": lambda tensor, *_: torch.empty_like(tensor),
    "geqrf": lambda tensor: (
        torch.empty_like(tensor.mT, memory_format=torch.contiguous_format).mT,
        tensor.new_empty(*tensor.shape[:-2], min(tensor.shape[-2:])),
    ),
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
"""Results of operators that torch describes for devices alone: those of SyncBatchNorm, and of cells of recurrent
networks, whose states are [batch, width].
"""
