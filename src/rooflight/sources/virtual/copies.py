"""Numbers and copies that leave the device or come to it, and checks whose outcome is assumed."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.sources.capture.op_call import OpCall
from rooflight.sources.virtual.likely import guess
from rooflight.sources.virtual.mode import HANDLERS, VirtualMode, one_device
from rooflight.sources.virtual.values import covers, is_small

_aten = torch.ops.aten


def _item(mode: VirtualMode, call: OpCall) -> Any:
    return mode.value_of(call.args[0]) if isinstance(call.args[0], FakeTensor) else NotImplemented


def _is_nonzero(mode: VirtualMode, call: OpCall) -> Any:
    return bool(mode.value_of(call.args[0])) if isinstance(call.args[0], FakeTensor) else NotImplemented


def _move(mode: VirtualMode, call: OpCall) -> Any:
    """``.to(device)``: what was real keeps its values."""
    source, device = call.args[0], call.kwargs.get("device")
    to_gpu = device is not None and torch.device(device).type == "cuda"
    if isinstance(source, FakeTensor):
        if device is None or to_gpu or torch.device(device).type != "cpu":
            return NotImplemented
        return _to_host(mode, call)
    if not to_gpu:
        return NotImplemented
    with mode.fake:
        out = call.op(mode.fake_of(source), *call.args[1:], **{**call.kwargs, "device": mode.with_index(device)})
    if is_small(source) and covers(out):
        mode.values.hold(out, source.detach())
    return out


def _to_host(mode: VirtualMode, call: OpCall) -> Any:
    """A copy in the host's memory is real where its values are known, and else stays fake."""
    known = mode.values.of(call.args[0])
    if known is not None:
        return call.op(known, *call.args[1:], **call.kwargs)
    with mode.fake:
        out = call.run()
    guess("_to_copy", call, out, view=False)
    return out


def _copy(mode: VirtualMode, call: OpCall) -> Any:
    """``copy_``, between what is fake and what is real too."""
    target, source = call.args[:2]
    if not isinstance(target, FakeTensor) and isinstance(source, FakeTensor):
        target.copy_(mode.real_of(source))
        return target
    return NotImplemented


def _index(_mode: VirtualMode, call: OpCall) -> Any:
    """Indices are on the host, or where what they choose of is."""
    if call.args[0].device.type == "cpu":
        one_device(call.args[0].device, call.args[1])
    return NotImplemented


def _device(_mode: VirtualMode, call: OpCall) -> Any:
    """C++ asks a tensor of Python's where it is, several times for each op."""
    return call.args[0].device if isinstance(call.args[0], FakeTensor) else NotImplemented


def _pinned(_mode: VirtualMode, call: OpCall) -> Any:
    return call.args[0].pin_memory()


def _is_set_to(_mode: VirtualMode, call: OpCall) -> bool:
    one, other = (
        (each.untyped_storage()._cdata, each.storage_offset(), each.shape, each.stride()) for each in call.args
    )
    return bool(one == other)


def _finds_no_inf(mode: VirtualMode, call: OpCall) -> Any:
    """A scaler's check of gradients finds nothing, or no step would follow."""
    if not any(isinstance(each, FakeTensor) for each in call.args[0]):
        return NotImplemented
    for each in call.args[0]:
        mode.values.forget(each)
    return None


def _pads(mode: VirtualMode, _: OpCall) -> bool:
    """Whether a mask leaves the beginning of each sequence, so that an encoder may leave out its padding."""
    mode.answers.note("whether padding is at the end of sequences", "no: it is computed with")
    return False


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
            _aten._nested_tensor_from_mask_left_aligned.default: _pads,
            _aten._pin_memory.default: _pinned,
            _aten.is_pinned.default: lambda _, call: getattr(call.args[0], "_is_pinned", False),
            _aten.is_set_to.default: _is_set_to,
            _aten._amp_foreach_non_finite_check_and_unscale_.default: _finds_no_inf,
        }
    )
