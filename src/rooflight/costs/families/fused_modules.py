"""Modules of other libraries whose kernels bypass the dispatcher: attention, linear layers, norms.

Attention (Transformer Engine's, flash-attn's, Megatron's wrappers of them) is one ``aten::_flash_attention_forward``,
so windows count, and a causal mask is aligned to the bottom right. Packed sequences are taken as equally long.
A mask given as a tensor hides nothing, and the call is marked.

Linear layers are Transformer Engine's, Megatron's wrappers of them, Apex's: x [..., k] @ weight [n, k]^T is one
``aten::linear``, backward one ``aten::linear_backward`` for each of dx and dw, so that a kernel which computes one of
them alone (Megatron's fused gradient accumulation) is found. In an FP8 (or FP4) region operands count as one byte
(half a byte) an element, at that format's peak.

Norms and softmaxes are Apex's, Transformer Engine's, flash-attn's, Megatron's.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from rooflight.costs.modules import ModuleCall, ModuleOp, ModuleWork, Operand, module_formula
from rooflight.records.signature import AttributeValue

ATTENTION = (
    "DotProductAttention TEDotProductAttention FlashAttention FlashSelfAttention FlashCrossAttention FusedAttention"
)


_ALL, _PAIR = ("qkv", "qkv_layer"), ("kv", "kv_layer")
"""Arguments of flash-attn and Transformer Engine that hold several tensors side by side."""


@module_formula(*ATTENTION.split())
def attention(call: ModuleCall) -> ModuleWork | None:
    """q, k and v, or qkv [..., 3, heads, d], or q and kv [..., 2, heads, d]; batch or sequence first, or packed."""
    found = _query_key_value(call)
    if found is None or not call.outputs:
        return None
    out = call.outputs[0]
    query, key, value = found
    result = out.viewed(*query.shape[:-1], value.shape[-1])
    logsumexp = call.new(*query.shape[:-1], dtype="float32")
    lengths = _lengths(call)
    packed = {} if lengths is None else {"cum_seq_q": lengths}
    attributes = dict(_settings(call))
    mask = call.arguments.get("attention_mask")
    bias = {"attn_bias": mask} if isinstance(mask, Operand) and not attributes["is_causal"] else {}
    inputs = {"query": query, "key": key, "value": value}
    gradient = {"grad_out": call.gradient(out).viewed(*result.shape), **inputs, "out": result, "logsumexp": logsumexp}

    def op(way: str, inputs: dict[str, Operand], outputs: list[Operand]) -> ModuleOp:
        name = f"aten::_flash_attention_{way}"
        return ModuleOp(name=name, inputs={**inputs, **packed, **bias}, outputs=outputs, attributes=attributes)

    gradients = [call.gradient(each.origin).viewed(*each.shape) for each in (query, key, value)]
    return ModuleWork(
        forward=[op("forward", inputs, [result, logsumexp])], backward=[op("backward", gradient, gradients)]
    )


def _lengths(call: ModuleCall) -> Operand | None:
    """Where packed sequences begin, [sequences + 1]; Megatron has them inside ``packed_seq_params``."""
    for name in ("cu_seqlens_q", "cu_seqlens"):
        if isinstance(found := call.arguments.get(name), Operand):
            return found
    inside = getattr(call.arguments.get("packed_seq_params"), "cu_seqlens_q", None)
    return None if inside is None else call.new(*inside.shape, dtype="int32")


def _query_key_value(call: ModuleCall) -> tuple[Operand, Operand, Operand] | None:
    """Laid out as flash-attn does: [B, N, heads, d], packed [T, heads, d]."""
    tensors = [operand for operand in call.inputs if len(operand.shape) >= 3]
    if not tensors:
        return None
    names = {id(operand): name for name, operand in call.arguments.items() if isinstance(operand, Operand)}
    first = tensors[0]
    if names.get(id(first)) in _ALL or (len(tensors) == 1 and len(first.shape) >= 4 and first.shape[-3] == 3):
        part = _part(call, first)
        return part, part.viewed(*part.shape), part.viewed(*part.shape)
    if names.get(id(tensors[1] if len(tensors) > 1 else first)) in _PAIR:
        part = _part(call, tensors[1])
        return _batch_first(call, first), part, part.viewed(*part.shape)
    if len(tensors) < 3 or len({len(tensor.shape) for tensor in tensors[:3]}) > 1:
        return None
    query, key, value = (_batch_first(call, tensor) for tensor in tensors[:3])
    return query, key, value


def _part(call: ModuleCall, packed: Operand) -> Operand:
    """One of what lies side by side in a tensor, [..., 3, heads, d] or [..., heads, 3, d]."""
    place = len(packed.shape) + int(call.setting("qkv_interleave_dim", -3))
    return _batch_first(call, packed.viewed(*packed.shape[:place], *packed.shape[place + 1 :]))


def _batch_first(call: ModuleCall, tensor: Operand) -> Operand:
    """Transformer Engine's kernels are told a layout of all three, ``sbhd_sbhd_sbhd``."""
    flash = "Flash" in type(call.module).__name__
    layout = str(call.setting("qkv_layout") or call.setting("qkv_format", "bshd" if flash else "sbhd"))
    if len(tensor.shape) == 4 and layout.startswith("sb"):
        length, batch, heads, size = tensor.shape
        return tensor.viewed(batch, length, heads, size)
    return tensor.viewed(*tensor.shape)


def _settings(call: ModuleCall) -> Iterator[tuple[str, AttributeValue]]:
    mask_type = call.setting("attn_mask_type", "")
    mask_name = str(getattr(mask_type, "name", mask_type))  # Megatron has an enum, Transformer Engine a string
    yield "is_causal", bool(call.setting("causal", False)) or "causal" in mask_name
    window: Any = call.setting("window_size")
    if isinstance(window, tuple | list) and len(window) == 2:
        yield "window_size_left", int(window[0])
        yield "window_size_right", int(window[1])


NORMS = (
    "LayerNorm RMSNorm TENorm FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm FastLayerNorm "
    "FastRMSNorm"
)
"""LayerNorm and RMSNorm are Transformer Engine's and Apex's; torch's own are passed over."""


@module_formula(*NORMS.split())
def norm(call: ModuleCall) -> ModuleWork | None:
    """x [..., n], weight and bias [n] to y [..., n]."""
    if not call.inputs or not call.outputs or call.inputs[0].shape != call.outputs[0].shape:
        return None
    return norm_ops(call, call.inputs[0], call.outputs[0])


@module_formula("FusedScaleMaskSoftmax")
def softmax(call: ModuleCall) -> ModuleWork | None:
    """Scores [b, heads, q, k] to probabilities of the same shape."""
    if not call.inputs or not call.outputs:
        return None
    x, y = call.inputs[0], call.outputs[0]
    backward = {"grad_output": call.gradient(y), "output": y}
    return ModuleWork(
        forward=[ModuleOp(name="aten::_softmax", inputs={"self": x}, outputs=[y])],
        backward=[ModuleOp(name="aten::_softmax_backward_data", inputs=backward, outputs=[call.gradient(x)])],
    )


def norm_ops(call: ModuleCall, x: Operand, y: Operand, prefix: str = "") -> ModuleWork | None:
    """x [..., n] to y: RMS norm where the module or its class says so or there is no bias, else layer norm. ``prefix``
    is that of the parameters' names.
    """
    weight = call.parameters.get(f"{prefix}weight")
    bias = call.parameters.get(f"{prefix}bias")
    if weight is None and call.parameters:
        return None
    width = prod(weight.shape) if weight is not None else x.shape[-1]
    rows = prod(x.shape) // max(1, width)
    kind = str(call.setting("normalization", "")) + type(call.module).__name__
    is_rms = "rms" in kind.lower() or (weight is not None and bias is None and "layernorm" not in kind.lower())
    given = {"weight": weight, "bias": None if is_rms else bias}
    parameters = {name: operand for name, operand in given.items() if operand is not None}
    statistics = [call.new(rows, dtype="float32") for _ in range(1 if is_rms else 2)]
    name = "_fused_rms_norm" if is_rms else "native_layer_norm"
    saved = dict(zip(("rstd",) if is_rms else ("mean", "rstd"), statistics, strict=True))
    backward = ModuleOp(
        name=f"aten::{name}_backward",
        inputs={"grad_out": call.gradient(y), "input": x, **saved, **parameters},
        outputs=[call.gradient(x), *(call.gradient(parameter) for parameter in parameters.values())],
    )
    forward = ModuleOp(name=f"aten::{name}", inputs={"input": x, **parameters}, outputs=[y, *statistics])
    return ModuleWork(forward=[forward], backward=[backward])


_FP8, _FP4 = "float8_e4m3fn", "float4_e2m1fn_x2"
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "geglu": "gelu", "silu": "silu", "swiglu": "silu", "reglu": "relu"}


LINEAR = (
    "Linear TELinear TEColumnParallelLinear TERowParallelLinear ColumnParallelLinear RowParallelLinear "
    "GroupedLinear TEGroupedLinear TEColumnParallelGroupedLinear TERowParallelGroupedLinear FusedDense"
)
"""Linear is Transformer Engine's; torch's own is passed over."""


@module_formula(*LINEAR.split())
def linear(call: ModuleCall) -> ModuleWork | None:
    """x [..., k], weight [n, k] (several, as of experts: [n, k] each) and bias [n] to [..., n]."""
    if not call.inputs or not call.outputs:
        return None
    given = call.arguments.get("weight")  # Megatron passes that of the embedding to its output layer
    weights = [given] if isinstance(given, Operand) else _matrices(call, "weight")
    bias = None if call.setting("skip_bias_add") else _bias(call)
    return _products(call, call.inputs[0], weights, bias, call.outputs[0])


@module_formula("LayerNormLinear", "TELayerNormColumnParallelLinear")
def layer_norm_linear(call: ModuleCall) -> ModuleWork | None:
    """x [..., k] normalized, then as a linear layer."""
    if not call.inputs or not call.outputs:
        return None
    x, out = call.inputs[0], call.outputs[0]
    normed = _intermediate(call, x)
    norm = norm_ops(call, x, normed, "layer_norm_")
    product = _products(call, normed, _matrices(call, "weight"), _bias(call), out)
    if norm is None or product is None:
        return None
    return ModuleWork(forward=[*norm.forward, *product.forward], backward=[*product.backward, *norm.backward])


@module_formula("LayerNormMLP")
def layer_norm_mlp(call: ModuleCall) -> ModuleWork | None:
    """x [..., k] normalized, fc1 [f or 2 f, k], an activation (gated: times the other half), fc2 [k, f]."""
    return _mlp(call, "layer_norm_", "fc1_", "fc2_")


@module_formula("TEFusedMLP")
def fused_mlp(call: ModuleCall) -> ModuleWork | None:
    """Megatron's: the same with the parameters of two linear layers, the first of which may have no norm."""
    return _mlp(call, "linear_fc1.layer_norm_", "linear_fc1.", "linear_fc2.")


def _mlp(call: ModuleCall, norm_prefix: str, one: str, two: str) -> ModuleWork | None:
    first, second = (call.parameters.get(f"{prefix}weight") for prefix in (one, two))
    if not call.inputs or not call.outputs or first is None or second is None:
        return None
    x, out = call.inputs[0], call.outputs[0]
    normed = _intermediate(call, x) if f"{norm_prefix}weight" in call.parameters else x
    hidden = _intermediate(call, x.viewed(*x.shape[:-1], first.shape[0]))
    active = _intermediate(call, x.viewed(*x.shape[:-1], second.shape[1]))
    norm = ModuleWork(forward=[]) if normed is x else norm_ops(call, x, normed, norm_prefix)
    up = _products(call, normed, [first], call.parameters.get(f"{one}bias"), hidden)
    down = _products(call, active, [second], call.parameters.get(f"{two}bias"), out)
    if norm is None or up is None or down is None:
        return None
    act = _activation(call, hidden, active)
    return ModuleWork(
        forward=[*norm.forward, *up.forward, *act.forward, *down.forward],
        backward=[*down.backward, *act.backward, *up.backward, *norm.backward],
    )


def _activation(call: ModuleCall, hidden: Operand, active: Operand) -> ModuleWork:
    name = _ACTIVATIONS.get(str(call.setting("activation", "gelu")), "relu")
    gradient = {"relu": "threshold_backward"}.get(name, f"{name}_backward")
    value, dx = hidden.viewed(*active.shape), call.gradient(hidden)
    both = {"grad_output": call.gradient(active), "self": value}
    gated = hidden.shape[-1] == 2 * active.shape[-1]
    forward = [ModuleOp(name=f"aten::{name}", inputs={"self": value}, outputs=[active])]
    if gated:
        forward.append(ModuleOp(name="aten::mul", inputs={"self": active, "other": value}, outputs=[active]))
    backward = [
        ModuleOp(name=f"aten::{each}", inputs=both, outputs=[dx.viewed(*active.shape)])
        for each in (gradient, *(["mul"] if gated else []))
    ]
    return ModuleWork(forward=forward, backward=backward)


def _intermediate(call: ModuleCall, like: Operand) -> Operand:
    made = call.new(*like.shape, dtype=like.dtype)
    made.requires_grad = True
    return made


def _matrices(call: ModuleCall, name: str) -> list[Operand]:
    """The weights [n, k] of a layer, that of all experts as [experts n, k]; several have names that say what for."""
    return [
        parameter if len(parameter.shape) == 2 else parameter.viewed(prod(parameter.shape[:2]), parameter.shape[2])
        for key, parameter in call.parameters.items()
        if name in key and "norm" not in key and len(parameter.shape) in (2, 3)
    ]


def _bias(call: ModuleCall) -> Operand | None:
    """The bias, None where it is returned beside the output: Megatron's wrappers say so on their own too."""
    return None if call.setting("te_return_bias") or call.setting("return_bias") else call.parameters.get("bias")


def _products(
    call: ModuleCall, x: Operand, weights: list[Operand], bias: Operand | None, out: Operand
) -> ModuleWork | None:
    if not weights or any(weight.shape[1] != x.shape[-1] or "float" not in weight.dtype for weight in weights):
        return None  # a quantized weight: its kernel may run at another peak
    weight = weights[0]
    if len(weights) > 1:  # read as one, row by row
        weight = weight.viewed(sum(each.shape[0] for each in weights), weight.shape[1])
    rows = max(
        prod(x.shape[:-1]), prod(out.shape[:-1])
    )  # sequence parallelism gathers rows before, or scatters them after
    experts = int(call.setting("num_gemms", 1))
    width = weight.shape[0] // experts if len(weights) == 1 else out.shape[-1]
    dtype = _operand_dtype(call) or x.dtype
    x_read, weight_read = x.viewed(rows, x.shape[-1], dtype=dtype), weight.viewed(*weight.shape, dtype=dtype)
    product = out.viewed(rows, width)
    dy = call.gradient(out).viewed(rows, width, dtype=dtype)
    inputs = {"input": x_read, "weight": weight_read, **({"bias": bias} if bias is not None else {})}
    gradients = {"self": x_read, "grad_output": dy, "weight": weight_read}
    backward = []
    if x.requires_grad:
        backward.append(_backward(gradients, [call.gradient(x).viewed(rows, x.shape[-1])], (True, False, False)))
    if weights[0].requires_grad:
        made = [call.gradient(each) for each in (*weights, *([bias] if bias is not None else []))]
        backward.append(_backward(gradients, made, (False, True, bias is not None)))
    forward = ModuleOp(name="aten::linear", inputs=inputs, outputs=[product])
    return ModuleWork(forward=[forward], backward=backward)


def _backward(inputs: dict[str, Operand], outputs: list[Operand], mask: tuple[bool, bool, bool]) -> ModuleOp:
    return ModuleOp(name="aten::linear_backward", inputs=inputs, outputs=outputs, attributes={"output_mask": mask})


def _operand_dtype(call: ModuleCall) -> str | None:
    if not getattr(call.module, "fp8", False):
        return None
    recipe = getattr(call.module, "fp8_meta", {}).get("recipe")
    return _FP4 if "FP4" in type(recipe).__name__ else _FP8
