"""Experts of serving engines: layers whose tokens each go to k of E experts, in one op or in two.

Convention: T tokens take T k multiply-adds per weight of one expert, whichever they go to; every token goes to k
experts of this rank, whose part of an expert is its share of the width. Which experts are picked is data: at least k
of them are, whose weights are read once; this is the least, and usual only for few tokens. Where a map of experts is
given, some are on other ranks, and perhaps no token goes to one of this rank: then tokens alone are counted.

Schemas: vLLM's ``fused_moe/fused_moe.py``, ``fused_moe/layer.py`` and ``csrc/moe/torch_bindings.cpp``, SGLang's
``fused_moe_triton/fused_moe.py`` and ``sgl-kernel/csrc/common_extension.cc``, AITER's ``aiter/ops/moe_op.py``.
"""

from __future__ import annotations

from math import prod

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.families.matmul import product
from rooflight.costs.families.normalization import FORWARD_FLOPS
from rooflight.costs.rules import Family, integer, tensor_bytes
from rooflight.records.signature import (
    EXPERT_BITS,
    EXPERT_WEIGHTS,
    EXPERTS_PER_TOKEN,
    HIDDEN_SIZE,
    PRODUCT_DTYPE,
    OpSignature,
)
from rooflight.records.tensor import TensorSpec

expert_ops = Family("moe")

NO_WIDTH = Uncosted("an expert's width, and how many experts a token goes to, are in no shape: give the model's config")
LEAST_NOTE = "the weights of the fewest experts that a token goes to are counted"
ELSEWHERE_NOTE = "some experts are on other ranks: their work is not counted, nor is that of the others"


@expert_ops("vllm::moe_forward vllm::moe_forward_shared")
def moe_forward(op: OpSignature) -> OpCost | Uncosted:
    """x [T, H or padded], router's logits [T, E], to [T, H]; experts of a known size."""
    x, logits = op.inputs[:2]
    known = (HIDDEN_SIZE, EXPERT_WEIGHTS, EXPERTS_PER_TOKEN, EXPERT_BITS)
    hidden, weights, per_token, bits = (integer(op, key, 0) for key in known)
    if not (hidden and weights and per_token and bits):
        return NO_WIDTH
    tokens = prod(x.shape[:-1])
    dtype = op.attribute(PRODUCT_DTYPE)
    moved = tokens * hidden * x.item_bytes
    dtype = dtype if isinstance(dtype, str) else x.dtype
    count, read = tokens * per_token * weights, logits.nbytes + (per_token * weights * bits // 8 if tokens else 0)
    return product(op, count, x, read=moved + read, bytes_written=moved, matrix_dtype=dtype, note=LEAST_NOTE)


def _experts(
    x: TensorSpec, weights: tuple[TensorSpec, TensorSpec], per_token: int, result: int, *, here: bool
) -> OpCost:
    """x [T, H], weights [E, I or 2 I, H] and [E, H, I], perhaps several to a number along the last dimension."""
    first, second = weights
    tokens, hidden = prod(x.shape[:-1]), x.shape[-1]
    packed = max(hidden // max(first.shape[-1], 1), 1)
    rows, width = first.shape[1], second.shape[-1] * packed
    least = per_token * (first.nbytes + second.nbytes) // max(first.shape[0], 1) if tokens else 0
    return OpCost(
        matrix_flops=2 * tokens * per_token * hidden * (rows + width) * here,
        matrix_dtype=_multiplied(x, first),
        bytes_read=x.nbytes + least * here,
        bytes_written=result,
        note=LEAST_NOTE if here else ELSEWHERE_NOTE,
    )


def _multiplied(x: TensorSpec, weight: TensorSpec) -> str:
    """The dtype of the products: that of weights in 8 bits, to which tokens are rounded too; others are widened."""
    return weight.dtype if weight.dtype.startswith("float8") or weight.dtype == "int8" else x.dtype


def _has_map(op: OpSignature, experts: int) -> bool:
    """Whether a list of more ints than there are experts here tells where each of all experts is."""
    return any(
        len(tensor.shape) == 1 and tensor.dtype in ("int32", "int64") and tensor.numel > experts
        for tensor in op.inputs[5:]
    )


@expert_ops(
    "vllm::inplace_fused_experts vllm::outplace_fused_experts vllm::rocm_aiter_fused_moe "
    "sglang::inplace_fused_experts sglang::outplace_fused_experts aiter::fused_moe_ aiter::fused_moe"
)
def fused_experts(op: OpSignature) -> OpCost:
    """x [T, H], weights [E, 2 I, H] and [E, H, I], shares and numbers of the experts of each token [T, k]."""
    x, first, second, shares = op.inputs[:4]
    here = not _has_map(op, first.shape[0])
    return _experts(x, (first, second), shares.shape[-1], x.nbytes, here=here)


@expert_ops(
    "aiter::fmoe aiter::fmoe_int8_g1u0 aiter::fmoe_g1u1 aiter::fmoe_g1u1_tkw1 aiter::fmoe_int8_g1u0_a16 "
    "aiter::fmoe_g1u1_a16 aiter::fmoe_fp8_blockscale_g1u1"
)
def fmoe(op: OpSignature) -> OpCost:
    """The result [T, H], x, weights [E, I or 2 I, H] and [E, H, I], tokens sorted by experts, ..., k at place 8."""
    result, x, first, second = op.inputs[:4]
    return _experts(x, (first, second), max(integer(op, "arg8", 1), 1), result.nbytes, here=True)


def _one(rows: int, x: TensorSpec, weight: TensorSpec, contracted: int, experts: int, result: int) -> OpCost:
    """So many rows, each times one of the matrices [E, N, K]; at least so many ``experts`` are read."""
    return OpCost(
        matrix_flops=2 * rows * contracted * weight.shape[1],
        matrix_dtype=_multiplied(x, weight),
        bytes_read=x.nbytes + (experts * weight.nbytes // max(weight.shape[0], 1) if rows else 0),
        bytes_written=result,
        note=LEAST_NOTE,
    )


def _up(op: OpSignature, per_token: int) -> OpCost:
    """x [T, H], weights [E, 2 I, H] and [E, H, I], sorted tokens and experts, their number, the result [T, k, I], k."""
    x, first, result = op.inputs[0], op.inputs[1], op.inputs[6]
    return _one(prod(x.shape[:-1]) * per_token, x, first, x.shape[-1], per_token, result.nbytes)


def _down(op: OpSignature) -> OpCost:
    """The middle [T, k, I], weights [E, 2 I, H] and [E, H, I], ..., the result [T, H]: the way back."""
    middle, second = op.inputs[0], op.inputs[2]
    return _one(prod(middle.shape[:-1]), middle, second, middle.shape[-1], 1, op.inputs[6].nbytes)


def _wna16(op: OpSignature) -> OpCost:
    """x [T, K], the result [T, k, N], weights [E, N, K bits / 8], ...: each row of the result times one expert."""
    x, result, weight = op.inputs[:3]
    return _one(prod(result.shape[:-1]), x, weight, x.shape[-1], 1, result.nbytes)


expert_ops.rows(
    {
        lambda op: _up(op, max(integer(op, "arg7", 1), 1)): "aiter::ck_moe_stage1 aiter::ck_moe_stage1_fwd",
        # k is in the shape of the result
        lambda op: _up(op, op.inputs[6].shape[1] if len(op.inputs[6].shape) == 3 else 1): "aiter::moe_stage1_g1u1",
        _down: "aiter::ck_moe_stage2 aiter::ck_moe_stage2_fwd",
        _wna16: "_moe_C::moe_wna16_gemm",
        # numbers of experts [T, k] to the order of tokens by experts; padding is not counted
        lambda op: OpCost(bytes_read=op.inputs[0].nbytes, bytes_written=op.inputs[0].numel * 4): (
            "_moe_C::moe_align_block_size _moe_C::sgl_moe_align_block_size sgl_kernel::moe_align_block_size "
            "aiter::moe_align_block_size"
        ),
        # x [T, k, H] summed over k into [T, H]
        lambda op: OpCost(
            vector_flops=op.inputs[0].numel - op.inputs[1].numel,
            bytes_read=op.inputs[0].nbytes,
            bytes_written=op.inputs[1].nbytes,
        ): "_moe_C::moe_sum aiter::moe_sum sgl_kernel::moe_sum",
    }
)


@expert_ops("_moe_C::moe_wna16_marlin_gemm sgl_kernel::moe_wna16_marlin_gemm")
def wna16_marlin(op: OpSignature) -> OpCost | Uncosted:
    """x [rows, K], the result [rows k, N], weights [E, ...] in Marlin's order, ...."""
    x, result, weight = op.input("arg0"), op.input("arg1"), op.input("arg2")
    if x is None or result is None or weight is None:
        return Uncosted("it was given no tensor for its result")
    read, written = x.nbytes + weight.nbytes // max(weight.shape[0], 1), result.nbytes
    return product(op, result.numel * x.shape[-1], x, read=read, bytes_written=written, note=LEAST_NOTE)


@expert_ops(
    "_C::cutlass_moe_mm _C::cutlass_fp4_group_mm _C::cutlass_mxfp4_group_mm _C::cutlass_w4a8_moe_mm "
    "sgl_kernel::cutlass_fp4_group_mm sgl_kernel::cutlass_w4a8_moe_mm"
)
def group_mm(op: OpSignature) -> OpCost:
    """The result [rows, N], a [rows, K], b [E, K, N] or [E, N, K], ...: each row times one expert."""
    result, a, b = op.inputs[:3]
    four_bits = "fp4" in op.name
    contracted = a.shape[-1] * (2 if four_bits else 1)
    dtype = "float4_e2m1fn_x2" if four_bits else a.dtype
    read = a.nbytes + (b.nbytes // max(b.shape[0], 1) if result.numel else 0)
    count, written = result.numel * contracted, result.nbytes
    return product(op, count, a, read=read, bytes_written=written, matrix_dtype=dtype, upper=True, note=LEAST_NOTE)


@expert_ops(
    "_moe_C::topk_softmax _moe_C::topk_sigmoid sgl_kernel::topk_softmax sgl_kernel::topk_sigmoid aiter::topk_softmax"
)
def topk_softmax(op: OpSignature) -> OpCost:
    """Shares [T, k], numbers [T, k], perhaps places [T, k], the router's logits [T, E]; choosing k is not counted."""
    logits = max(op.inputs, key=lambda tensor: tensor.numel)
    written = tensor_bytes(*op.inputs[: min(op.inputs.index(logits), 2)])
    flops = FORWARD_FLOPS * logits.numel
    return OpCost(vector_flops=flops, vector_dtype="float32", bytes_read=logits.nbytes, bytes_written=written)
