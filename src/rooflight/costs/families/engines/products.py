"""Products of matrices in serving engines and training libraries, most of them with weights in few bits.

Convention: x [..., k] times a weight of k n numbers takes 2 k n FLOPs for each row of x; the weight, packed as it is,
and its scales are read once. Weights of fewer bits than x are widened first, so that the product runs in x's dtype.
Results that the op returns, and that a trace does not show, have n columns of 2 bytes, or of x's size if x is wider.

Schemas: vLLM's ``csrc/torch_bindings.cpp``, ``csrc/libtorch_stable/torch_bindings.cpp``,
``csrc/rocm/torch_bindings.cpp`` and ``vllm/model_executor/layers/utils.py``, SGLang's
``sgl-kernel/csrc/common_extension.cc``, AITER's ``aiter/ops/gemm_op_a8w8.py`` and its neighbours, TransformerEngine's
``pytorch/csrc/ts_fp8_op.cpp``, Primus-Turbo's ``pytorch/kernels/grouped_gemm``.
"""

from __future__ import annotations

from math import isqrt, prod

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, integer, tensor_bytes
from rooflight.records import signature as engine_facts
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

product = Family("matmul", epilogue=True, product=True)

FLOAT4 = "float4_e2m1fn_x2"
NO_COLUMNS = Uncosted("the trace does not show how many columns its result has")
_FLOAT32 = 6  # of c10::ScalarType


def _times(
    x: TensorSpec, columns: int, read: int, *, contracted: int = 0, dtype: str = "", wide: bool = False
) -> OpCost:
    """x [..., k] times [k, columns], with so many bytes read; ``wide``: the result is of float32."""
    rows = prod(x.shape[:-1])
    return OpCost(
        matrix_flops=2 * rows * (contracted or x.shape[-1]) * columns,
        matrix_dtype=dtype or x.dtype,
        bytes_read=read,
        bytes_written=rows * columns * (4 if wide else max(2, x.item_bytes)),
    )


def _into(result: TensorSpec, x: TensorSpec, read: int, *, contracted: int = 0, dtype: str = "") -> OpCost:
    """x [..., k] times a weight, into a result [..., n] that the op is given."""
    return OpCost(
        matrix_flops=2 * result.numel * (contracted or x.shape[-1]),
        matrix_dtype=dtype or x.dtype,
        bytes_read=read,
        bytes_written=result.nbytes,
    )


def into(*, result: int = 0, x: int = 1, read: slice = slice(1, None), four_bits: bool = False) -> Formula:
    """A formula: the ``result`` [.., n], the operand ``x`` [.., k], ...; ``read`` are those that are read; they have
    two numbers a byte if they have ``four_bits``.
    """

    def cost(op: OpSignature) -> OpCost:
        operand, read_bytes = op.inputs[x], tensor_bytes(*op.inputs[read])
        contracted, dtype = (2 * operand.shape[-1], FLOAT4) if four_bits else (0, "")
        return _into(op.inputs[result], operand, read_bytes, contracted=contracted, dtype=dtype)

    return cost


def returning(
    *, x: int = 0, weight: int = 1, columns: int = 0, read: slice = slice(None), four_bits: bool = False
) -> Formula:
    """A formula: the input at ``x`` [.., k] times that at ``weight``, whose dimension ``columns`` is n."""

    def cost(op: OpSignature) -> OpCost:
        operand = op.inputs[x]
        contracted, dtype = (2 * operand.shape[-1], FLOAT4) if four_bits else (0, "")
        columns_of = op.inputs[weight].shape[columns]
        read_bytes = tensor_bytes(*op.inputs[read])
        return _times(operand, columns_of, read_bytes, contracted=contracted, dtype=dtype)

    return cost


product.rows(
    {
        # the result, a [m, k], b [k, n], their scales, perhaps more to add
        into(): "_C::cutlass_scaled_mm _C::cutlass_scaled_mm_azp",
        # the result, a [m, k / 2] and b [n, k / 2] of two numbers a byte, their scales
        into(four_bits=True): "_C::cutlass_scaled_fp4_mm sgl_kernel::cutlass_scaled_fp4_mm",
        # the result, a [m, k], b of k n numbers
        into(read=slice(1, 3)): "_C::dsv3_fused_a_gemm _C::fp32_router_gemm sgl_kernel::dsv3_fused_a_gemm "
        "sgl_kernel::dsv3_router_gemm",
        into(result=2, x=0, read=slice(2)): "sgl_kernel::bmm_fp8",  # a [b, m, k], b, the result [b, m, n], scales
        # x [..., k], w [n, k], perhaps a bias
        returning(): "aiter::gemm_a16w16 vllm::rocm_unquantized_gemm vllm::rocm_aiter_tuned_gemm "
        "bitsandbytes::int8_linear_matmul",
        # w [n, k], x [m, k] of few rows
        returning(x=1, weight=0, read=slice(2)): "_rocm_C::wvSplitK _rocm_C::wv_splitk_small_fp16_bf16 _rocm_C::LLMM1",
        returning(
            weight=2, columns=-1
        ): "_C::awq_gemm",  # x, w [k, n / 8] of eight numbers an int, scales [.., n], zeros
        # x, w [k bits / 32, n], zeros, scales [groups, n], the order of groups
        returning(columns=-1): "_C::gptq_gemm sgl_kernel::gptq_gemm _C::machete_mm",
    }
)
product.rows(
    {
        # x [m, k], w [n, k], their scales, perhaps the result [m, n] or a bias
        returning(read=slice(4)): "gemm_a8w8 gemm_a8w8_ck gemm_a8w8_asm gemm_a8w8_cktile gemm_a8w8_bpreshuffle "
        "gemm_a8w8_bpreshuffle_ck gemm_a8w8_bpreshuffle_cktile gemm_a8w8_blockscale gemm_a8w8_blockscale_ck "
        "gemm_a8w8_blockscale_cktile gemm_a8w8_blockscale_bpreshuffle gemm_a8w8_blockscale_bpreshuffle_ck "
        "flatmm_a8w8_blockscale_asm vllm::rocm_aiter_gemm_w8a8 vllm::rocm_aiter_gemm_w8a8_blockscale",
        # the same of two numbers a byte, x [m, k / 2], w [n, k / 2]
        returning(read=slice(4), four_bits=True): "gemm_a4w4 _gemm_a4w4_asm gemm_a4w4_asm gemm_a4w4_blockscale",
    },
    "aiter",
)


@product(
    "sgl_kernel::fp8_scaled_mm sgl_kernel::int8_scaled_mm sgl_kernel::fp8_blockwise_scaled_mm trtllm::cublas_scaled_mm"
)
def scaled_mm(op: OpSignature) -> OpCost:
    """a [m, k], b [k, n], their scales, the dtype of the result, perhaps a bias."""
    a, b = op.inputs[:2]
    return _times(a, b.shape[-1], tensor_bytes(*op.inputs), wide=integer(op, "arg4", 0) == _FLOAT32)


@product("_C::marlin_gemm _C::gptq_marlin_gemm sgl_kernel::gptq_marlin_gemm")
def marlin(op: OpSignature) -> OpCost | Uncosted:
    """x [m, k], perhaps the result, w in Marlin's order, scales, ...; m, n and k stand somewhere, in order."""
    x, weight = op.input("arg0"), op.input("arg2")
    if x is None or weight is None:
        return Uncosted("its arguments are none of marlin_gemm's")
    sizes = [value for _, value in op.attributes if type(value) is int]
    rows, contracted = prod(x.shape[:-1]), x.shape[-1]
    for first, columns, last in zip(sizes, sizes[1:], sizes[2:], strict=False):
        if (first, last) == (rows, contracted):
            return _times(x, columns, tensor_bytes(x, weight))
    return NO_COLUMNS


def given_columns(x: int, place: int, read: slice) -> Formula:
    """A formula: the input at ``x`` times a weight in a format of its own; n is the argument at ``place``."""

    def cost(op: OpSignature) -> OpCost | Uncosted:
        columns = integer(op, f"arg{place}", 0)
        return _times(op.inputs[x], columns, tensor_bytes(*op.inputs[read])) if columns else NO_COLUMNS

    return cost


product.rows(
    {
        given_columns(0, 4, slice(None)): "allspark_w8a16_gemm",  # x [m, k], w of 8 bits, scales, perhaps zeros, then n
        given_columns(1, 3, slice(2)): "ggml_mul_mat_vec_a8 ggml_mul_mat_a8",  # w of ggml's, x [m, k], its format, n
    },
    "_C",
)


@product("tex_ts::te_gemm_ts")
def te_gemm(op: OpSignature) -> OpCost | Uncosted:
    """A [k, m] or [m, k], its scale, ..., B at place 5, [k, n] or [n, k], ..., the result at place 10, ...."""
    a, b, result = (op.input(f"arg{place}") for place in (0, 5, 10))
    if a is None or b is None or result is None or len(result.shape) != 2 or not result.numel:
        return Uncosted("its arguments are none of te_gemm_ts'")
    # a has k m, b k n and the result m n numbers
    contracted = isqrt(a.numel * b.numel // result.numel)
    return _into(result, a, tensor_bytes(a, b), contracted=contracted)


@product("trace::_Linear trace::_LayerNormLinear")
def te_linear(op: OpSignature) -> OpCost | Uncosted:
    """TransformerEngine's functions: x [..., k] and w [n, k], the first two of their tensors with more than one
    dimension, in either order; what a norm before the product takes is not counted.
    """
    wide = [tensor for tensor in op.inputs if len(tensor.shape) > 1]
    if len(wide) < 2 or wide[0].shape[-1] != wide[1].shape[-1] or not wide[0].shape[-1]:
        return Uncosted("its arguments are none of TransformerEngine's linear layers")
    first, second = wide[:2]
    dtype = op.attribute(engine_facts.PRODUCT_DTYPE)
    return OpCost(
        matrix_flops=2 * first.numel * (second.numel // second.shape[-1]),
        matrix_dtype=dtype if isinstance(dtype, str) else first.dtype,
        bytes_read=tensor_bytes(first, second) if not dtype else first.numel + second.numel,
        bytes_written=prod(first.shape[:-1]) * prod(second.shape[:-1]) * 2,
    )


@product(
    "primus_turbo::grouped_gemm primus_turbo::grouped_gemm_impl primus_turbo_cpp_extension::grouped_gemm "
    "primus_turbo_cpp_extension::ck_grouped_gemm primus_turbo_cpp_extension::hipblaslt_grouped_gemm"
)
def grouped(op: OpSignature) -> OpCost:
    """a [rows, k], b [groups, k, n] or [groups, n, k], rows of each group, ...; weights of one group are counted."""
    a, b = op.inputs[:2]
    groups = max(b.shape[0], 1)
    columns = b.numel // groups // max(a.shape[-1], 1)
    return _times(a, columns, a.nbytes + (b.nbytes // groups if a.numel else 0))


@product(
    "primus_turbo::grouped_gemm_variable_k primus_turbo::grouped_gemm_variable_k_impl "
    "primus_turbo_cpp_extension::grouped_gemm_variable_k primus_turbo_cpp_extension::ck_grouped_gemm_variable_k"
)
def grouped_weights(op: OpSignature) -> OpCost:
    """a [rows, m], b [rows, n], rows of each group: [groups, m, n], the gradients of the groups' weights."""
    a, b, groups = op.inputs[:3]
    written = groups.numel * a.shape[-1] * b.shape[-1] * a.item_bytes
    return OpCost(
        matrix_flops=2 * a.shape[0] * a.shape[-1] * b.shape[-1],
        matrix_dtype=a.dtype,
        bytes_read=tensor_bytes(a, b),
        bytes_written=written,
    )
