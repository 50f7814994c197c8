"""Numbers and copies that leave the device or come to it, and checks whose outcome is assumed."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.sources.virtual.likely import guess
from rooflight.sources.virtual.mode import HANDLERS, VirtualMode, one_device
from rooflight.sources.virtual.values import covers, is_small

_aten = torch.ops.aten


def _item(mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return mode.value_of(args[0]) if isinstance(args[0], FakeTensor) else NotImplemented


def _is_nonzero(mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return bool(mode.value_of(args[0])) if isinstance(args[0], FakeTensor) else NotImplemented


def _move(mode: VirtualMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``.to(device)``: what was real keeps its values."""
    source, device = args[0], kwargs.get("device")
    to_gpu = device is not None and torch.device(device).type == "cuda"
    if isinstance(source, FakeTensor):
        if device is None or to_gpu or torch.device(device).type != "cpu":
            return NotImplemented
        return _to_host(mode, func, args, kwargs)
    if not to_gpu:
        return NotImplemented
    with mode.fake:
        out = func(mode.fake_of(source), *args[1:], **{**kwargs, "device": mode.with_index(device)})
    if is_small(source) and covers(out):
        mode.values.hold(out, source.detach())
    return out


def _to_host(mode: VirtualMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A copy in the host's memory is real where its values are known, and else stays fake."""
    known = mode.values.of(args[0])
    if known is not None:
        return func(known, *args[1:], **kwargs)
    with mode.fake:
        out = func(*args, **kwargs)
    guess("_to_copy", args, kwargs, args[:1], out, view=False)
    return out


def _copy(mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """``copy_``, between what is fake and what is real too."""
    target, source = args[:2]
    if not isinstance(target, FakeTensor) and isinstance(source, FakeTensor):
        target.copy_(mode.real_of(source))
        return target
    return NotImplemented


def _index(_mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Indices are on the host, or where what they choose of is."""
    if args[0].device.type == "cpu":
        one_device(args[0].device, args[1])
    return NotImplemented


def _device(_mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """C++ asks a tensor of Python's where it is, several times for each op."""
    return args[0].device if isinstance(args[0], FakeTensor) else NotImplemented


def _pinned(mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    mode.pins = True
    return args[0]


def _finds_no_inf(mode: VirtualMode, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """A scaler's check of gradients finds nothing, or no step would follow."""
    if not any(isinstance(each, FakeTensor) for each in args[0]):
        return NotImplemented
    for each in args[0]:
        mode.values.forget(each)
    return None


def install() -> None:
    """Have the mode leave these ops to the functions above."""
    HANDLERS.update(
        {
            torch.ops.prim.device.default: _device,
            _aten._local_scalar_dense.default: _item,
            _aten.is_nonzero.default: _is_nonzero,
            _aten._to_copy.default: _move,
            _aten.copy_.default: _copy,
            _aten.index.Tensor: _index,
            _aten.index_put_.default: _index,
            _aten._pin_memory.default: _pinned,
            _aten.is_pinned.default: lambda *_: True,
            _aten._amp_foreach_non_finite_check_and_unscale_.default: _finds_no_inf,
        }
    )
