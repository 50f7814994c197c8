"""Calls of whole recurrent networks (``nn.LSTM``, ``nn.GRU``, ``nn.RNN``): how a call and its backward are accounted.

cuDNN and MIOpen run such a call as one op; other hosts run it layer by layer or step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from rooflight.capture.describe import gradients_of, signature_of, tensors_in
from rooflight.capture.schemas import attribute_value, schema_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

_PACKETS: Final = (torch.ops.aten.lstm, torch.ops.aten.gru, torch.ops.aten.rnn_tanh, torch.ops.aten.rnn_relu)
OPS: Final = tuple(overload for packet in _PACKETS for overload in (packet.input, packet.data))
"""The second overload of each op takes a packed batch."""

_GATES: Final = {"lstm": 4, "gru": 3}


def autocast_dtype(args: tuple[Any, ...]) -> str | None:
    """The dtype in which autocast runs the products of a call; None where autocast does not change it."""
    x = args[0]
    device = x.device.type
    if device == "meta" or x.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return None
    return str(attribute_value(torch.get_autocast_dtype(device)))


def signature(op: Any, args: tuple[Any, ...], out: Any) -> OpSignature:
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


def backward(op: Any, forward: OpSignature, args: tuple[Any, ...]) -> OpSignature:
    """The backward of a call if every result has a gradient: gradients of x, states and weights that require one."""
    out = forward.outputs[0]
    inputs: list[tuple[str, TensorSpec]] = [
        ("grad_output", out),
        *(("grad_state", state) for state in forward.outputs[1:]),
        *((name, tensor) for name, tensor in zip(forward.input_names, forward.inputs, strict=True)),
        ("output", out),
    ]
    inputs = [each for each in inputs if each[0] != "batch_sizes"]
    of = operands(op, args)
    return OpSignature(
        name=f"rooflight::{_cell(op)}_backward",
        inputs=tuple(tensor for _, tensor in inputs),
        input_names=tuple(name for name, _ in inputs),
        outputs=gradients_of(of),
        attributes=(*forward.attributes, ("grad_input_mask", tuple(tensor.requires_grad for tensor in of))),
    )


def operands(op: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
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
    """The results of a call on the meta device, laid out as cuDNN's; None for shapes that do not fit each other."""
    given, x = _named(op, args), args[0]
    states, params = tensors_in(given["hx"]), given["params"]
    packed = "batch_sizes" in given
    tensors = [x, *states, *params]
    if any(tensor.device != x.device or tensor.dtype != x.dtype for tensor in tensors) or x.dim() != 3 - packed:
        return None
    if 0 in x.shape or not params or states[0].dim() != 3:
        return None
    count, batch, width = states[0].shape
    hidden = params[0].shape[0] // _GATES.get(_cell(op), 1)
    if [tuple(weight.shape) for weight in params] != _shapes(given, _cell(op), x.shape[-1], hidden, width):
        return None
    directions = 1 + given["bidirectional"]
    if count != given["num_layers"] * directions or any(state.shape != (count, batch, hidden) for state in states[1:]):
        return None
    if packed:
        out = x.new_empty((x.shape[0], directions * width))
    else:
        batch_first = given["batch_first"]
        steps = x.shape[1 if batch_first else 0]
        if x.shape[0 if batch_first else 1] != batch:
            return None
        out = x.new_empty((steps, batch, directions * width))
        out = out.transpose(0, 1) if batch_first else out
    return out, *(x.new_empty(state.shape) for state in states)


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
