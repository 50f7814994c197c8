"""Composite ops that some device runs as one kernel: how a call and its backward are accounted, wherever they run.

A composite is split below autograd, where the recorder sits, and each host splits it differently: the CPU shows a flash
kernel for SDPA and six small ops for RMS norm, CUDA one kernel for either. A bound for another device must account the
call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]

from rooflight.capture.describe import signature_of, spec_of
from rooflight.capture.schemas import known_int, schema_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

ATTENTION_BACKWARD: Final = "rooflight::scaled_dot_product_attention_backward"

Arguments = tuple[Any, ...]

_DESCRIBED_LIMIT: Final = 1 << 14
_described: dict[tuple[Any, ...], tuple[OpSignature, OpSignature]] = {}


@dataclass(frozen=True, slots=True)
class Composite:
    """A composite op accounted as one.

    ``applies`` says which calls are (arguments in schema order), ``forward`` describes a call with its result, and
    ``backward`` its backward, from the forward and the arguments.
    """

    op: Any
    applies: Callable[[Arguments], bool]
    forward: Callable[[Arguments, torch.Tensor], OpSignature]
    backward: Callable[[OpSignature, Arguments], OpSignature]

    def describe(self, args: Arguments, out: torch.Tensor) -> tuple[OpSignature, OpSignature]:
        """A call and its backward. Calls that look alike are described once, for a model has as many as layers."""
        try:
            key = (self.op._schema.name, *_look(args), out.stride(), out.requires_grad)
            known = _described.get(key)
        except (TypeError, NotImplementedError):  # symbolic sizes cannot be hashed, torch.func's tensors have no memory
            return self._describe(args, out)
        if known is None:
            if len(_described) >= _DESCRIBED_LIMIT:
                _described.clear()
            known = _described[key] = self._describe(args, out)
        return known

    def _describe(self, args: Arguments, out: torch.Tensor) -> tuple[OpSignature, OpSignature]:
        forward = self.forward(args, out)
        return forward, self.backward(forward, args)

    def arguments(self, args: Arguments, kwargs: dict[str, Any]) -> Arguments:
        """All arguments in schema order, defaults filled in."""
        return schema_of(self.op).positional(args, kwargs)


def _look(args: Arguments) -> list[Any]:
    """All that a description depends on, hashable: layouts, settings, and which tensors share memory, how far apart."""
    seen: dict[int, tuple[int, int]] = {}
    look: list[Any] = []
    for place, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            offset = int(value.storage_offset())
            first, base = seen.setdefault(_storage_id(value), (place, offset))
            look.append((value.shape, value.dtype, value.stride(), value.requires_grad, first, offset - base))
        else:
            look.append(tuple(value) if isinstance(value, list) else value)
    return look


def attention_signature(args: Arguments, out: torch.Tensor) -> OpSignature:
    """An SDPA call: its result, and the log-sum-exp that training has to keep."""
    op = signature_of(schema_of(SDPA), args, {}, out)
    if not out.requires_grad:
        return op
    logsumexp = TensorSpec(tuple(known_int(size) for size in out.shape[:-1]), "float32")
    return replace(op, outputs=(*op.outputs, logsumexp))


def attention_backward(forward: OpSignature, args: Arguments) -> OpSignature:
    """The backward of an SDPA call: gradients for those of query, key and value that require one."""
    out, *logsumexp = forward.outputs
    return OpSignature(
        name=ATTENTION_BACKWARD,
        inputs=(out, *forward.inputs, out, *logsumexp),
        input_names=("grad_out", *forward.input_names, "out", *["logsumexp"] * len(logsumexp)),
        outputs=_gradients(args[:3]),
        attributes=(*forward.attributes, ("grad_input_mask", tuple(tensor.requires_grad for tensor in args[:3]))),
    )


def _rms_norm(args: Arguments, out: torch.Tensor) -> OpSignature:
    """``_fused_rms_norm``: the result, and one reciprocal root a row."""
    x, normalized_shape, weight, _ = args
    rows = prod(x.shape) // max(1, prod(normalized_shape))
    given = [("input", x)] + ([] if weight is None else [("weight", weight)])
    return OpSignature(
        name="aten::_fused_rms_norm",
        inputs=tuple(spec_of(tensor) for _, tensor in given),
        input_names=tuple(name for name, _ in given),
        outputs=(spec_of(out), TensorSpec((known_int(rows),), "float32")),
    )


def _rms_norm_backward(forward: OpSignature, args: Arguments) -> OpSignature:
    out, rstd = forward.outputs
    x, *weight = forward.inputs
    return OpSignature(
        name="aten::_fused_rms_norm_backward",
        inputs=(out, x, rstd, *weight),
        input_names=("grad_out", "input", "rstd", *["weight"] * len(weight)),
        outputs=_gradients((args[0], args[2])),
    )


def _dropout(args: Arguments, out: torch.Tensor) -> OpSignature:
    """``native_dropout``: the result and a mask of one byte an element."""
    mask = TensorSpec(tuple(known_int(size) for size in out.shape), "bool")
    return OpSignature(
        name="aten::native_dropout",
        inputs=(spec_of(args[0]),),
        input_names=("input",),
        outputs=(spec_of(out), mask),
        attributes=(("train", True),),
    )


def _dropout_backward(forward: OpSignature, args: Arguments) -> OpSignature:
    return OpSignature(
        name="aten::native_dropout_backward",
        inputs=forward.outputs,
        input_names=("grad_output", "mask"),
        outputs=_gradients(args[:1]),
    )


def _gradients(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(
        replace(spec_of(tensor), strides=None) for tensor in tensors if tensor is not None and tensor.requires_grad
    )


SDPA: Final = torch.ops.aten.scaled_dot_product_attention.default

ATTENTION: Final = Composite(SDPA, lambda args: True, attention_signature, attention_backward)  # noqa: ARG005

COMPOSITES: Final = (
    ATTENTION,
    Composite(
        torch.ops.aten.rms_norm.default,
        lambda args: args[0].numel() > 0,
        _rms_norm,
        _rms_norm_backward,
    ),
    Composite(
        torch.ops.aten.dropout.default,
        lambda args: bool(args[2]) and 0 < args[1] < 1 and args[0].numel() > 0,  # else nothing is dropped
        _dropout,
        _dropout_backward,
    ),
)
