"""Composite ops that some device runs as one kernel: how a call and its backward are accounted on every host.

A composite is split before its ops reach the recorder, and each host splits it differently: a CPU runs a flash kernel
for SDPA, six small ops for RMS norm and the steps of a GRU, CUDA one kernel for each. A bound for another device must
account for the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]

from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.sources.capture.record.schemas import attribute_value, known_int, schema_of
from rooflight.sources.capture.record.signatures import gradients_of, signature_of, spec_of, tensors_in

ATTENTION_BACKWARD: Final = "rooflight::scaled_dot_product_attention_backward"

Arguments = tuple[Any, ...]

_DESCRIBED_LIMIT: Final = 1 << 14
_described: dict[tuple[Any, ...], tuple[OpSignature, OpSignature]] = {}


@dataclass(frozen=True, slots=True)
class Composite:
    """A composite op accounted as one.

    ``applies`` returns whether a call is accounted as one (arguments in schema order), ``forward`` describes a call
    with its result, and ``backward`` describes its backward, from the forward and the arguments. ``surroundings`` are
    other things on which a description depends. ``stepwise``: the call uses its inputs in every step, its backward adds
    up gradients, and not every result needs to have one; ``saved`` are the inputs that the backward takes, beside the
    first result. ``mask`` is what hides keys from queries.

    On the meta device ``on_meta`` makes the results of a call (None for one that must raise), ``reserve_on_meta`` the
    memory that it keeps for its backward and ``gradient_on_meta`` the gradient of a tensor. Without ``on_meta`` such
    calls are decomposed too.
    """

    op: Any
    applies: Callable[[Arguments], bool]
    forward: Callable[[Arguments, Any], OpSignature]
    backward: Callable[[OpSignature, Arguments], OpSignature]
    surroundings: Callable[[Arguments], Hashable] = lambda args: None  # noqa: ARG005
    stepwise: bool = False
    saved: Callable[[Arguments], list[torch.Tensor]] = tensors_in
    mask: Callable[[Arguments], Any] = lambda args: None  # noqa: ARG005
    on_meta: Callable[[Arguments], tuple[torch.Tensor, ...] | None] | None = None
    reserve_on_meta: Callable[[Arguments], torch.Tensor | None] = lambda args: None  # noqa: ARG005
    gradient_on_meta: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like

    def describe(self, args: Arguments, out: Any) -> tuple[OpSignature, OpSignature]:
        """A call and its backward. Equal calls are described once, since a model has as many of them as layers."""
        try:
            results = [(result.stride(), result.requires_grad) for result in tensors_in(out)]
            key = (self.op.name(), self.surroundings(args), *_look(args), *results)
            known = _described.get(key)
        except (TypeError, NotImplementedError):  # symbolic sizes cannot be hashed, torch.func's tensors have no memory
            return self._describe(args, out)
        if known is None:
            if len(_described) >= _DESCRIBED_LIMIT:
                _described.clear()
            known = _described[key] = self._describe(args, out)
        return known

    def _describe(self, args: Arguments, out: Any) -> tuple[OpSignature, OpSignature]:
        forward = self.forward(args, out)
        return forward, self.backward(forward, args)

    def arguments(self, args: Arguments, kwargs: dict[str, Any]) -> Arguments:
        """All arguments in schema order, defaults filled in."""
        return schema_of(self.op).positional(args, kwargs)


def _look(args: Arguments) -> list[Any]:
    seen: dict[int, tuple[int, int]] = {}
    look: list[Any] = []
    for value in args:
        tensors = tensors_in(value)
        look.append(len(tensors) if tensors else tuple(value) if isinstance(value, list) else value)
        for tensor in tensors:
            offset = int(tensor.storage_offset())
            first, base = seen.setdefault(_storage_id(tensor), (len(look), offset))
            look.append((tensor.shape, tensor.dtype, tensor.stride(), tensor.requires_grad, first, offset - base))
    return look


def attention_signature(args: Arguments, out: torch.Tensor) -> OpSignature:
    """An SDPA call: its result, and the log-sum-exp that training has to keep."""
    op = signature_of(schema_of(SDPA), args, {}, out)
    if not out.requires_grad:
        return op
    logsumexp = TensorSpec(tuple(known_int(size) for size in out.shape[:-1]), "float32")
    return replace(op, outputs=(*op.outputs, logsumexp))


def attention_backward(forward: OpSignature, args: Arguments) -> OpSignature:
    """The backward of an SDPA call: gradients of query, key and value, as far as they require one."""
    out, *logsumexp = forward.outputs
    return OpSignature(
        name=ATTENTION_BACKWARD,
        inputs=(out, *forward.inputs, out, *logsumexp),
        input_names=("grad_out", *forward.input_names, "out", *["logsumexp"] * len(logsumexp)),
        outputs=gradients_of(args[:3]),
        attributes=(*forward.attributes, ("grad_input_mask", tuple(tensor.requires_grad for tensor in args[:3]))),
    )


def _attention_on_meta(args: Arguments) -> tuple[torch.Tensor] | None:
    """A result with the layout that flash kernels give it."""
    query, key, value = args[:3]
    if query.dim() < 3 or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return None
    if key.shape[:-2] != value.shape[:-2]:
        return None
    return (_empty_like_flash(query, value.shape[-1]),)


def _empty_like_flash(tensor: torch.Tensor, width: int | None = None) -> torch.Tensor:
    *batch, heads, length, own = tensor.shape
    return tensor.new_empty((*batch, length, heads, own if width is None else width)).transpose(-3, -2)


def _rms_norm(args: Arguments, out: torch.Tensor) -> OpSignature:
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
        outputs=gradients_of((args[0], args[2])),
    )


def _dropout(args: Arguments, out: torch.Tensor) -> OpSignature:
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
        outputs=gradients_of(args[:1]),
    )


def with_gradients(op: OpSignature, candidates: Sequence[int], sizes: Sequence[int]) -> tuple[OpSignature, list[int]]:
    """The backward of a call, not every result of which has a gradient, with the gradients that arrived; and which of
    the ``candidates`` they are: for each the first that is large enough. ``sizes`` are bytes by candidate.
    """
    waiting = list(candidates)
    left_out: list[int] = []
    found: list[int] = []
    for place, (name, tensor) in enumerate(zip(op.input_names, op.inputs, strict=True)):
        if not name.startswith("grad_"):
            break
        fitting = next((one for one in waiting if sizes[one] >= tensor.nbytes), None)
        if fitting is None:
            left_out.append(place)
        else:
            waiting.remove(fitting)
            found.append(fitting)
    places = [place for place in range(len(op.inputs)) if place not in left_out]
    inputs, names = tuple(op.inputs[place] for place in places), tuple(op.input_names[place] for place in places)
    return replace(op, inputs=inputs, input_names=names), found


_PACKETS: Final = (torch.ops.aten.lstm, torch.ops.aten.gru, torch.ops.aten.rnn_tanh, torch.ops.aten.rnn_relu)
RECURRENT: Final = tuple(overload for packet in _PACKETS for overload in (packet.input, packet.data))
"""The second overload of each op takes a packed batch."""

_GATES: Final = {"lstm": 4, "gru": 3}


def autocast_dtype(args: tuple[Any, ...]) -> str | None:
    """The dtype in which autocast runs the products of a call; None where autocast does not change it."""
    lowered = _lowered(args[0])
    return None if lowered is None else str(attribute_value(lowered))


def _lowered(x: torch.Tensor) -> torch.dtype | None:
    device = x.device.type
    if device == "meta" or x.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def recurrent_signature(op: Any, args: tuple[Any, ...], out: Any) -> OpSignature:
    """A call. Its sequences are called ``input`` even if they are packed. It has attributes that torch's schema has
    not: ``autocast``, the dtype of its products, and ``dropout``, whether any is active.
    """
    given = _named(op, args)
    found = signature_of(schema_of(op), args, {}, out)
    settings = list(found.attributes)
    dtype = autocast_dtype(args)
    if dtype is not None:
        settings.append(("autocast", dtype))
    if given["train"] and given["dropout"] > 0 and given["num_layers"] > 1:
        settings.append(("dropout", True))
    names = tuple("input" if name == "data" else name for name in found.input_names)
    return replace(found, input_names=names, attributes=tuple(settings))


def recurrent_backward(op: Any, forward: OpSignature, args: tuple[Any, ...]) -> OpSignature:
    """The backward of a call if every result has a gradient: gradients of x, states and weights that require one."""
    out = forward.outputs[0]
    inputs: list[tuple[str, TensorSpec]] = [
        ("grad_output", out),
        *(("grad_state", state) for state in forward.outputs[1:]),
        *((name, tensor) for name, tensor in zip(forward.input_names, forward.inputs, strict=True)),
        ("output", out),
    ]
    inputs = [each for each in inputs if each[0] != "batch_sizes"]
    of = recurrent_operands(op, args)
    return OpSignature(
        name=f"rooflight::{_cell(op)}_backward",
        inputs=tuple(tensor for _, tensor in inputs),
        input_names=tuple(name for name, _ in inputs),
        outputs=gradients_of(of),
        attributes=(*forward.attributes, ("grad_input_mask", tuple(tensor.requires_grad for tensor in of))),
    )


def recurrent_operands(op: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """x, states and weights: the sizes of a packed batch are on the host."""
    given = _named(op, args)
    return [args[0], *tensors_in(given["hx"]), *given["params"]]


def reserve_on_meta(op: Any, args: tuple[Any, ...]) -> Any:
    """The memory that a backward pass needs which computes no product again. Per token, layer and direction: the gates,
    with LSTM's cell (5 H) or the product of GRU's state (4 H); per token and layer except the last: the output.
    """
    given, x = _named(op, args), args[0]
    width, hidden = tensors_in(given["hx"])[0].shape[-1], given["params"][0].shape[0] // _GATES.get(_cell(op), 1)
    layers, directions = given["num_layers"], 1 + given["bidirectional"]
    per_token = layers * directions * {"lstm": 5, "gru": 4}.get(_cell(op), 0) * hidden
    return x.new_empty((x.numel() // x.shape[-1] * (per_token + (layers - 1) * directions * width),))


def results_on_meta(op: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...] | None:
    """The results of a call on the meta device, laid out as cuDNN's; None for shapes that do not fit each other. Of
    tensors on a GPU autocast casts all.
    """
    given, x = _named(op, args), args[0]
    states, params = tensors_in(given["hx"]), given["params"]
    packed, lowered = "batch_sizes" in given, _lowered(x) if x.is_cuda else None
    tensors = [x, *states, *params]
    if any(each.device != x.device or (each.dtype != x.dtype and not lowered) for each in tensors):
        return None
    make = partial(x.new_empty, dtype=lowered)
    if x.dim() != 3 - packed or 0 in x.shape or not params or states[0].dim() != 3:
        return None
    count, batch, width = states[0].shape
    hidden = params[0].shape[0] // _GATES.get(_cell(op), 1)
    if [tuple(weight.shape) for weight in params] != _shapes(given, _cell(op), x.shape[-1], hidden, width):
        return None
    directions = 1 + given["bidirectional"]
    if count != given["num_layers"] * directions or any(state.shape != (count, batch, hidden) for state in states[1:]):
        return None
    if packed:
        out = make((x.shape[0], directions * width))
    else:
        batch_first = given["batch_first"]
        steps = x.shape[1 if batch_first else 0]
        if x.shape[0 if batch_first else 1] != batch:
            return None
        out = make((steps, batch, directions * width))
        out = out.transpose(0, 1) if batch_first else out
    return out, *(make(state.shape) for state in states)


def _shapes(given: dict[str, Any], cell: str, inputs: int, hidden: int, width: int) -> list[tuple[int, ...]]:
    """Shapes of the weights: w_ih, w_hh, b_ih, b_hh, w_hr of each layer and direction; ``width`` is the state's."""
    rows = _GATES.get(cell, 1) * hidden
    directions = 1 + given["bidirectional"]
    biases = [(rows,), (rows,)] if given["has_biases"] else []
    projection = [(width, hidden)] if width != hidden else []
    shapes: list[tuple[int, ...]] = []
    for layer in range(given["num_layers"]):
        into = inputs if layer == 0 else directions * width
        shapes += [(rows, into), (rows, width), *biases, *projection] * directions
    return shapes


def _named(op: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(schema_of(op).names, args, strict=True))


def _cell(op: Any) -> str:
    name: str = op._schema.name
    return name.removeprefix("aten::").partition("_")[0]


SDPA: Final = torch.ops.aten.scaled_dot_product_attention.default

COMPOSITES: Final = (
    Composite(
        SDPA,
        lambda args: True,  # noqa: ARG005
        attention_signature,
        attention_backward,
        mask=lambda args: args[3],
        on_meta=_attention_on_meta,
        gradient_on_meta=_empty_like_flash,
    ),
    *[
        Composite(
            op,
            lambda args: True,  # noqa: ARG005
            partial(recurrent_signature, op),
            partial(recurrent_backward, op),
            surroundings=autocast_dtype,
            stepwise=True,
            saved=partial(recurrent_operands, op),
            reserve_on_meta=partial(reserve_on_meta, op),
            on_meta=partial(results_on_meta, op),
        )
        for op in RECURRENT
    ],
    Composite(
        torch.ops.aten.rms_norm.default,
        lambda args: args[0].numel() > 0,
        _rms_norm,
        _rms_norm_backward,
    ),
    Composite(
        torch.ops.aten.dropout.default,
        lambda args: bool(args[2]) and 0 < args[1] < 1 and args[0].numel() > 0,  # otherwise nothing is dropped
        _dropout,
        _dropout_backward,
    ),
)
