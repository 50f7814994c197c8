"""Products of quantized matrices, the ops that quantize, and grouped products.

Conventions: products of two narrow operands run at the narrow type's peak (int8, float8, float4); products that only
store weights narrowly (int4 or int8 weights, 16-bit activations) run at the activation's, and unpacking a weight is 2
vector FLOPs (subtract the zero point, scale). ``float4_e2m1fn_x2`` holds two values per byte, so the contracted size
is twice the shape's. Scales are read at their own size. Quantizing is 4 FLOPs per element (scale, round, shift, clamp
as one), dequantizing 2, fake quantization 6.

Grouped products are the experts of a mixture, each with its own rows: T rows routed to G groups take 2 K N T matrix
FLOPs however they are routed. Which experts are active is data: of T / k tokens that each go to k of G experts alike,
G (1 - (1 - k/G)^(T/k)) are expected to have rows, and only their weights are read; a bound takes the fewest, k. Where
no config tells k, it is 1. Rows beyond the last offset are padding that no kernel touches, so counts are ``upper``.
"""

from __future__ import annotations

from dataclasses import replace
from math import trunc

from rooflight.costs.cost import OpCost
from rooflight.costs.families.matmul import product
from rooflight.costs.rules import Family, further_bytes, integer, per_input, read_bytes, uncosted
from rooflight.records.signature import EXPERTS_PER_TOKEN, OpSignature
from rooflight.records.tensor import TensorSpec

quantizing = Family("quantized", fusable=True)
quantized_products = quantizing.having(epilogue=True)

UNPACK_FLOPS = 2


def values_per_byte(operand: TensorSpec) -> int:
    """How many numbers one element of a packed tensor holds."""
    return 2 if operand.dtype == "float4_e2m1fn_x2" else 1


@quantized_products("_scaled_mm _scaled_mm_v2")
def scaled_mm(op: OpSignature) -> OpCost:
    """float8 (or float4) [m, k] @ [k, n], scales per tensor, row or block, to [m, n]; then the scale and the bias."""
    a, b = op.inputs[:2]
    (m, k), n = a.shape, b.shape[-1]
    flops, dtype = (2 if op.input("bias") else 1) * m * n, op.outputs[0].dtype
    return product(op, m * n * k * values_per_byte(a), a, vector_flops=flops, vector_dtype=dtype)


@quantized_products("fbgemm::f8f8bf16 fbgemm::f8f8bf16_rowwise fbgemm::f8f8bf16_tensorwise fbgemm::f8f8bf16_blockwise")
def fbgemm_scaled_mm(op: OpSignature) -> OpCost:
    """float8 [..., m, k] @ [n, k]', scales per tensor, row or block, to bfloat16 [..., m, n], and the scale."""
    a, b = op.inputs[:2]
    elements = a.numel // max(1, a.shape[-1]) * b.shape[0]
    dtype, flops, written = "bfloat16", elements, 2 * elements
    count = elements * a.shape[-1]
    return product(op, count, a, vector_flops=flops, vector_dtype=dtype, bytes_written=written)


def _narrow_weights(op: OpSignature, features: int, dtype: str) -> OpCost:
    """x [..., k] times a packed weight of k x ``features`` values."""
    x = op.inputs[0]
    weights = x.shape[-1] * features
    count, unpacking = x.numel // max(1, x.shape[-1]) * weights, UNPACK_FLOPS * weights
    return product(op, count, x, matrix_dtype=dtype, vector_flops=unpacking, vector_dtype=x.dtype)


quantized_products.rows(
    {
        # int8 [..., m, k] @ [..., k, n]
        lambda op: product(op, op.outputs[0].numel * op.inputs[0].shape[-1], op.inputs[0], matrix_dtype="int8"): (
            "_int_mm quantized::matmul"
        ),
        # x [..., k] at 16 or 32 bits, n x k weights at 4 or 8 bits with scales, to [..., n]
        lambda op: _narrow_weights(op, op.outputs[0].shape[-1], op.inputs[0].dtype): (
            "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros "
            "_weight_int8pack_mm _mixed_dtypes_linear quantized::int4mm_packed_weight_cpu"
        ),
        # x [..., k], quantized to int8 as it is read, times n x k weights at 4 bits
        lambda op: _narrow_weights(op, integer(op, "out_features", op.outputs[0].shape[-1]), "int8"): (
            "_dyn_quant_matmul_4bit"
        ),
    }
)


@quantized_products(
    "quantized::linear quantized::linear_relu quantized::linear_leaky_relu quantized::linear_tanh "
    "quantized::linear_dynamic quantized::linear_relu_dynamic"
)
def quantized_linear(op: OpSignature) -> OpCost:
    """x [..., k] times an int8 weight [n, k] hidden in a packed object, its size taken from the shapes."""
    x, out = op.inputs[0], op.outputs[0]
    read, note = read_bytes(op) + x.shape[-1] * out.shape[-1], "packed weight taken as int8, without bias"
    return product(op, out.numel * x.shape[-1], x, read=read, matrix_dtype="int8", vector_flops=out.numel, note=note)


quantizing.rows(
    {
        per_input(4): "quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel "
        "fbgemm::quantize_fp8_per_tensor fbgemm::quantize_fp8_per_row fbgemm::quantize_fp8_per_col "
        "fbgemm::quantize_fp8_per_tensor_fixed_scale fbgemm::get_fp8_per_tensor_scale "
        "fbgemm::FloatToFused8BitRowwiseQuantized fbgemm::HalfToFused8BitRowwiseQuantized "
        "fbgemm::FloatToFP8Quantized fbgemm::FloatToFP8RowwiseQuantized fbgemm::FloatToBfloat16Quantized",
        per_input(2): "dequantize _choose_qparams_per_tensor choose_qparams_optimized "
        "fbgemm::Fused8BitRowwiseQuantizedToFloat fbgemm::Fused8BitRowwiseQuantizedToHalf "
        "fbgemm::FP8QuantizedToFloat fbgemm::FP8RowwiseQuantizedToFloat fbgemm::Bfloat16QuantizedToFloat",
        per_input(6): "fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams fake_quantize_per_channel_affine "
        "fake_quantize_per_channel_affine_cachemask _fake_quantize_learnable_per_tensor_affine "
        "_fake_quantize_learnable_per_channel_affine",
        per_input(8): "fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper "
        "_fused_moving_avg_obs_fq_helper_functional _fake_quantize_learnable_per_tensor_affine_backward "
        "_fake_quantize_learnable_per_channel_affine_backward",
        per_input(1): "fake_quantize_per_tensor_affine_cachemask_backward "
        "fake_quantize_per_channel_affine_cachemask_backward _saturate_weight_to_fp16",
        per_input(0): "int_repr _make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor "
        "_convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_pack_4bit_weight "
        "mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight",
    }
)
quantizing.rows(
    {
        per_input(3): "add mul add_relu mul_relu add_scalar mul_scalar add_scalar_relu mul_scalar_relu relu6 threshold "
        "clamp leaky_relu elu celu hardswish sigmoid prelu",
        per_input(8): "layer_norm group_norm instance_norm",
        per_input(7): "softmax",
        per_input(0): "cat",
        uncosted("the packed weight holds the kernel's shape"): "conv1d conv2d conv3d conv1d_relu conv2d_relu "
        "conv3d_relu conv2d_add conv2d_add_relu conv_transpose1d conv_transpose2d conv_transpose3d conv1d_dynamic "
        "conv2d_dynamic conv3d_dynamic conv_transpose1d_dynamic conv_transpose2d_dynamic conv_transpose3d_dynamic",
        uncosted("the packed table is hidden"): "embedding_byte embedding_4bit embedding_bag_byte embedding_bag_4bit",
    },
    "quantized",
)


quantizing.rows(
    {
        per_input(4): "quantize_per_tensor quantize_per_channel quantize_per_channel_group quantize_per_token",
        per_input(2): "dequantize_per_tensor dequantize_per_channel dequantize_per_channel_group dequantize_per_token "
        "choose_qparams choose_qparams_symmetric choose_qparams_per_token choose_qparams_per_token_asymmetric",
        per_input(6): "fake_quant_per_channel",
        per_input(0): "convert_element_type",
    },
    "quantized_decomposed",
)


moe_ops = Family("moe", fusable=True, epilogue=True)

ROUTING_NOTE = "T/k tokens, each to k of G experts alike: G (1 - (1 - k/G)^(T/k)) are active, in a bound k"
ROWS_NOTE = "rows beyond the last offset counted"


def active_experts(num_experts: int, num_rows: int, per_token: int = 1) -> float:
    """Experts expected to have at least one of so many rows, if each token has ``per_token`` and goes to any alike."""
    if num_experts == 0:
        return 0.0
    idle: float = (1 - min(1.0, per_token / num_experts)) ** (num_rows / per_token)
    return num_experts * (1 - idle)


@moe_ops("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2")
def grouped_mm(op: OpSignature) -> OpCost:
    """a [T, K] @ b [G, K, N], a [G, M, K] @ b [K, T], a [M, T] @ b [T, N] per group, or batched 3-D @ 3-D."""
    a, b = op.inputs[:2]
    contracted, added = a.shape[-1] * values_per_byte(a), op.outputs[0].numel if op.input("bias") else 0
    read, note, avoidable = further_bytes(op, 2) + a.nbytes + b.nbytes, "", 0
    if len(a.shape) == len(b.shape) == 2:  # the weights' gradient: T, split into groups, is contracted away
        count, note = a.shape[0] * contracted * b.shape[1], ROWS_NOTE
    elif len(a.shape) == len(b.shape):
        count = a.shape[0] * a.shape[1] * contracted * b.shape[2]
    else:
        rows, experts, columns = (a.shape[0], b, b.shape[2]) if len(a.shape) == 2 else (b.shape[1], a, a.shape[1])
        count, note = rows * contracted * columns, ROUTING_NOTE
        per_token, each = max(1, integer(op, EXPERTS_PER_TOKEN, 1)), experts.nbytes / max(1, experts.shape[0])
        active = trunc(each * active_experts(experts.shape[0], rows, per_token))
        avoidable = max(0, active - trunc(each * per_token))
        read -= experts.nbytes - active
    cost = product(op, count, a, vector_flops=added, read=read, upper=bool(note), note=note)
    return replace(cost, avoidable_read=avoidable) if avoidable else cost
