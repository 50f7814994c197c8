"""Recurrent networks: whole ones as one call, forward and backward, single layers and cells, and their quantized kin.

Conventions: T tokens (steps times batch, of a packed batch those that are there), and for each layer and direction
weights [g H, I], [g H, H] with g gates (LSTM 4, GRU 3, plain RNN 1), two biases [g H], and [P, H] where the state is
projected, the second matrix then [g H, P]. Every token meets every matrix once, 2 FLOPs per token and weight. Vector
FLOPs per hidden unit are those of the cell: LSTM 19, GRU 14, plain RNN 2, and one for each entry of a bias; 2 per
element dropped between layers.

x, states and weights are read once and results written once, though a kernel that cannot hold the weights on chip
rereads them in every step. What a kernel keeps for backward (cuDNN's reserve, oneDNN's workspace) counts as no byte:
it can be computed again. Backward: a gradient of what comes into each product, one of each weight, the cell as in
forward. It does not go back to the first token's state, nor to x, unless asked.

With packed int8 weights the same is counted, the weights' sizes taken from those of input and states, at one byte an
element and without biases; float16 weights (``dtype``) at two, their products at float16's peak. Of a GRU and of cells
the dtype is unknown: int8, the least. Packing reads the weight and writes it as it was, as float16 where the op says
so.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.costs.cost import Float32Kind, Needs, OpCost
from rooflight.costs.families.matmul import product
from rooflight.costs.rules import Family, copies, first_input, flags, integer, moving, nothing, read_bytes
from rooflight.records.dtypes import item_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec, distinct_bytes

recurrent_ops = Family("recurrent", float32=Float32Kind.RNN)

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
CELL_FLOPS = {"lstm": 19, "gru": 14, "rnn": 2}
"""Of one hidden unit, without biases: sums of both products, gates (sigmoid 3, tanh 1), new state."""
DROPOUT_FLOPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Net:
    """Sizes of a call: tokens, the matrices of each layer and direction, and the entries of all biases."""

    cell: str
    tokens: int
    layers: list[tuple[TensorSpec, ...]]
    biases: int

    @property
    def weights(self) -> int:
        """Entries of all matrices."""
        return sum(matrix.numel for layer in self.layers for matrix in layer)

    @property
    def vector_flops(self) -> int:
        """Of all cells, one way."""
        units = sum(layer[0].shape[0] // GATES[self.cell] for layer in self.layers)
        return self.tokens * (CELL_FLOPS[self.cell] * units + self.biases)


def _net(cell: str, x: TensorSpec, params: tuple[TensorSpec, ...]) -> _Net:
    """``params`` are those of one layer after the other: w_ih, w_hh, b_ih, b_hh, w_hr, without those it has not."""
    matrices = [weight for weight in params if len(weight.shape) == 2]
    projects = matrices[1].shape[1] != matrices[0].shape[0] // GATES[cell]
    size = 3 if projects else 2
    return _Net(
        cell=cell,
        tokens=x.numel // max(1, x.shape[-1]),
        layers=[tuple(matrices[first : first + size]) for first in range(0, len(matrices), size)],
        biases=sum(bias.numel for bias in params if len(bias.shape) == 1),
    )


def weights_by_layer(op: OpSignature) -> list[int]:
    """Entries of the matrices of each layer, of each direction of it, in the order of their numbers."""
    net = _net(_cell_of(op), op.inputs[0], op.named("params"))
    return [sum(matrix.numel for matrix in layer) for layer in net.layers]


def _forward(op: OpSignature, net: _Net, *unread: str) -> OpCost:
    x, flops = op.inputs[0], net.vector_flops + _dropped(op, op.outputs[0], net.tokens)
    dtype, written = _product_dtype(op, x), distinct_bytes(op.outputs[:3])
    count = net.tokens * net.weights
    return product(op, count, x, unread, vector_flops=flops, matrix_dtype=dtype, bytes_written=written)


def _product_dtype(op: OpSignature, x: TensorSpec) -> str:
    """x's, unless autocast chose another, which Rooflight notes on the calls that it records as one."""
    return str(op.attribute("autocast") or x.dtype)


def _dropped(op: OpSignature, out: TensorSpec, tokens: int) -> int:
    return DROPOUT_FLOPS * bool(op.attribute("dropout")) * tokens * out.shape[-1] * (integer(op, "num_layers", 1) - 1)


def _cell_of(op: OpSignature) -> str:
    return op.name.partition("::")[2].partition("_")[0]


def _mode(op: OpSignature) -> str:
    """torch's mode number: 0 and 1 plain RNN, 2 LSTM, 3 GRU."""
    return {2: "lstm", 3: "gru"}.get(op.attribute("mode") or 0, "rnn")  # type: ignore[arg-type]


@recurrent_ops("lstm gru rnn_tanh rnn_relu", epilogue=True, needs=Needs.RECURRENT)
def recurrent(op: OpSignature) -> OpCost:
    """x [T, B, I], of a packed batch [tokens, I], to all outputs and the last states."""
    return _forward(op, _net(_cell_of(op), op.inputs[0], op.named("params")), "batch_sizes")


@recurrent_ops("rooflight::lstm_backward rooflight::gru_backward rooflight::rnn_backward")
def recurrent_backward(op: OpSignature) -> OpCost:
    """Gradients of x, states and params as ``grad_input_mask`` asks (in this order), from x, states, params, output
    and the gradients of the results that have one.
    """
    (x,), (out,), (state, *_), params = (op.named(name) for name in ("input", "output", "hx", "params"))
    net = _net(_cell_of(op), x, params)
    wants = flags(op, "grad_input_mask", ())
    wants_params = wants[len(wants) - len(params) :]
    wants_x, wants_state = wants[0], any(wants[1 : len(wants) - len(params)])
    per_layer = len(params) // len(net.layers)
    directions = 1 + bool(op.attribute("bidirectional"))
    later_tokens = net.tokens - (0 if wants_state else state.shape[-2])
    count, goes_below = 0, wants_x
    for first in range(0, len(net.layers), directions):
        layers = net.layers[first : first + directions]
        wants_here = wants_params[first * per_layer : (first + directions) * per_layer]
        if goes_below or wants_state or any(wants_here):
            for into_x, into_state, *projection in layers:
                count += later_tokens * into_state.numel + net.tokens * sum(each.numel for each in projection)
                count += net.tokens * into_x.numel * goes_below
            goes_below = True
    count += net.tokens * sum(
        weight.numel for weight, wanted in zip(params, wants_params, strict=True) if wanted and len(weight.shape) == 2
    )
    read = [*op.named("grad_output"), *op.named("grad_state"), *(each for each in params if len(each.shape) == 2)]
    if any(wants_params):
        read += [x, *op.named("hx"), out]
    flops, dtype = net.vector_flops + _dropped(op, out, net.tokens), _product_dtype(op, x)
    return product(op, count, x, vector_flops=flops, read=distinct_bytes(read), matrix_dtype=dtype)


def _mkldnn_net(op: OpSignature) -> _Net:
    return _net(_mode(op), op.inputs[0], op.inputs[1 : 5 if op.attribute("has_biases") else 3])


def _cudnn_net(op: OpSignature) -> _Net:
    return _net(_mode(op), op.inputs[0], op.named("weight"))


recurrent_ops.rows(
    {
        # one layer and direction: x [T, B, I], weight0 [gates x H, I], weight1 [gates x H, H], two biases or zeros
        lambda op: _forward(op, _mkldnn_net(op), *(() if op.attribute("has_biases") else ("weight2", "weight3"))): (
            "mkldnn_rnn_layer"
        ),
        # gradients of x and the weights, whether asked for or not: twice the products of the forward
        lambda op: _backward(op, _mkldnn_net(op), times=2): "mkldnn_rnn_layer_backward",
        # x [T, B, I] and the weights of all layers and directions, which share one buffer
        lambda op: _forward(op, _cudnn_net(op), "weight_buf", "dropout_state"): "_cudnn_rnn miopen_rnn",
    }
)


@recurrent_ops("_cudnn_rnn_backward miopen_rnn_backward")
def cudnn_rnn_backward(op: OpSignature) -> OpCost:
    """dx, dh0, dc0 as asked (one forward's worth together), dweights (another)."""
    wanted = flags(op, "output_mask", (True, True, True, True))
    return _backward(op, _cudnn_net(op), "weight_buf", "dropout_state", times=any(wanted[:3]) + wanted[3])


def _backward(op: OpSignature, net: _Net, *unread: str, times: int) -> OpCost:
    unread, count = (*unread, "reserve", "workspace"), times * net.tokens * net.weights
    return product(op, count, op.inputs[0], vector_flops=net.vector_flops, unread=unread)


def _cell_flops(op: OpSignature, cell: str) -> int:
    batch, hidden = op.outputs[0].shape
    biases = sum(bias.numel for name in ("input_bias", "hidden_bias") for bias in op.named(name))
    return batch * (CELL_FLOPS[cell] * hidden + biases)


recurrent_ops.rows(
    {
        # gate products [B, gates H] of input and state, perhaps their biases, cell or state [B, H] to the next ones
        moving(lambda op: _cell_flops(op, "lstm")): "_thnn_fused_lstm_cell",
        moving(lambda op: _cell_flops(op, "gru")): "_thnn_fused_gru_cell",
        # gradients of state and cell [B, H] to those of the gates: about as much again
        first_input(CELL_FLOPS["lstm"]): "_thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl "
        "_thnn_differentiable_lstm_cell_backward",
        first_input(CELL_FLOPS["gru"]): "_thnn_fused_gru_cell_backward _thnn_differentiable_gru_cell_backward",
        copies: "_cudnn_rnn_flatten_weight",  # all weights into one buffer
    }
)


@recurrent_ops("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def cell(op: OpSignature) -> OpCost:
    """x [B, I], the state and two weight matrices."""
    params = tuple(tensor for name in ("w_ih", "w_hh", "b_ih", "b_hh") for tensor in op.named(name))
    return _forward(op, _net(_cell_of(op), op.inputs[0], params))


quantized_ops = Family("quantized")

PACKED_NOTE = "packed weights taken as int8, without biases"


@quantized_ops(
    "quantized_lstm quantized_gru "
    "quantized::quantized_lstm_cell_dynamic quantized::quantized_gru_cell_dynamic "
    "quantized::quantized_rnn_relu_cell_dynamic quantized::quantized_rnn_tanh_cell_dynamic"
)
def quantized_recurrent(op: OpSignature) -> OpCost:
    """x [T, B, I] and states [layers x directions, B, H]; a later layer reads all directions of the one before. Of
    a cell x [B, I] and the state [B, H].
    """
    kind = op.name.partition("quantized_")[2].partition("_")[0]
    x, state = op.inputs[0], op.named("hx")[0]
    width, hidden = x.shape[-1], state.shape[-1]
    layers, directions = integer(op, "num_layers", 1), 1 + bool(op.attribute("bidirectional"))
    rows = directions * GATES[kind] * hidden
    weights = rows * (width + hidden) + (layers - 1) * rows * (directions + 1) * hidden
    tokens, dtype = x.numel // max(1, width), "float16" if op.attribute("dtype") == "float16" else "int8"
    read, flops = read_bytes(op) + weights * item_bytes(dtype), CELL_FLOPS[kind] * tokens * layers * directions * hidden
    note = PACKED_NOTE.replace("int8", dtype)
    return product(op, tokens * weights, x, read=read, matrix_dtype=dtype, vector_flops=flops, note=note)


@quantized_ops(
    "quantized::linear_prepack quantized::linear_prepack_fp16 quantized::conv1d_prepack quantized::conv2d_prepack "
    "quantized::conv3d_prepack quantized::conv_transpose1d_prepack quantized::conv_transpose2d_prepack "
    "quantized::conv_transpose3d_prepack"
)
def prepack(op: OpSignature) -> OpCost:
    """A weight and its bias into an object of the library's, which no signature shows."""
    weight = op.inputs[0]
    size = 2 if op.name.endswith("fp16") else weight.item_bytes
    return OpCost(bytes_read=read_bytes(op), bytes_written=weight.numel * size)


quantized_ops.rows(
    {nothing: "make_quantized_cell_params make_quantized_cell_params_dynamic make_quantized_cell_params_fp16"},
    "quantized",
)
