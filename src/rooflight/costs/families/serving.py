"""Ops of serving engines: vLLM (``_C``, ``_C_cache_ops``, ``vllm``), SGLang (``sgl_kernel``, ``sglang``), AITER (AMD).

Their schemas: vLLM's ``csrc/torch_bindings.cpp`` and ``cache.h``, SGLang's ``sgl-kernel/csrc/common_extension.cc``, and
AITER's ``aiter/ops``. Most write into tensors that they were given, so that results are among the inputs, by their
places; this holds for a trace, which has no names of arguments, and for a recording.

Conventions: RMS norm 5 FLOPs per element, 6 with an addition before it; a gated activation 5 per element of the result;
rotary embedding 3 per element turned; quantizing 2. Attention is in ``engine_attention``, experts in
``engine_experts``.
"""

from __future__ import annotations

from functools import partial
from math import prod

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.normalization import RMS_NORM_FLOPS
from rooflight.costs.families.rules import names, picked_bytes, register, tensor_bytes
from rooflight.costs.registry import Formula
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

formula = partial(registry.formula, error_group="serving", fusable=True)
alone = partial(registry.formula, error_group="serving")
product = partial(registry.formula, error_group="matmul", epilogue=True, product=True)

ACTIVATION_FLOPS = 5
ROTARY_FLOPS = 3
QUANTIZE_FLOPS = 2


def _moving(reads: str, writes: str, flops: int, counted: int = 0) -> Formula:
    """A formula: it reads and writes the tensors at these places; so many FLOPs per element of the one ``counted``."""
    read, written = [int(place) for place in reads.split()], [int(place) for place in writes.split()]

    def cost(op: OpSignature) -> OpCost:
        tensors = op.inputs
        return OpCost(
            vector_flops=flops * tensors[counted].numel,
            bytes_read=tensor_bytes(*(tensors[place] for place in read if place < len(tensors))),
            bytes_written=tensor_bytes(*(tensors[place] for place in written)),
        )

    return cost


_NORM = _moving("1 2", "0", RMS_NORM_FLOPS)  # out, x [..., n], weight [n]
_ADD_NORM = _moving("0 1 2", "0 1", RMS_NORM_FLOPS + 1)  # x and residual in place, weight
_NORM_QUANTIZE = _moving("1 2 3", "0", RMS_NORM_FLOPS + QUANTIZE_FLOPS)  # out, x, weight, scale
_ADD_NORM_QUANTIZE = _moving("1 2 3 4", "0 2", RMS_NORM_FLOPS + 1 + QUANTIZE_FLOPS)  # out, x, residual, weight, scale
_ADD_NORM_APART = _moving("1 2 4", "0 3", RMS_NORM_FLOPS + 1)  # out, x, residual, new residual, weight
_GATED = _moving("1", "0", ACTIVATION_FLOPS)  # out [..., d], x [..., 2 d]
_QUANTIZE = _moving("1 2", "0", QUANTIZE_FLOPS)  # out, x, scale
_QUANTIZE_FINDING = _moving("1", "0 2", QUANTIZE_FLOPS + 1)  # out, x, the scale found

_GATED_NAMES = (
    "silu_and_mul mul_and_silu gelu_and_mul gelu_tanh_and_mul fatrelu_and_mul swigluoai_and_mul gelu_new gelu_fast "
    "gelu_quick"
)
register(formula, {_NORM: "rms_norm", _ADD_NORM: "fused_add_rms_norm", _GATED: _GATED_NAMES}, "_C")
register(
    formula,
    {
        _NORM_QUANTIZE: "rms_norm_static_fp8_quant",
        _ADD_NORM_QUANTIZE: "fused_add_rms_norm_static_fp8_quant",
        _QUANTIZE: "static_scaled_fp8_quant",
        _QUANTIZE_FINDING: "dynamic_scaled_fp8_quant dynamic_per_token_scaled_fp8_quant",
    },
    "_C",
)
register(
    formula,
    {
        _NORM: "rmsnorm gemma_rmsnorm",
        _ADD_NORM: "fused_add_rmsnorm gemma_fused_add_rmsnorm",
        _GATED: "silu_and_mul gelu_and_mul gelu_tanh_and_mul",
    },
    "sgl_kernel",
)
register(formula, {_NORM: "rmsnorm", _ADD_NORM_APART: "add_rmsnorm"}, "aiter")


@formula("_C::rotary_embedding", "sgl_kernel::rotary_embedding")
def rotary_embedding(op: OpSignature) -> OpCost:
    """positions [T], q [T, ...] and perhaps k in place, a head's size, cosines and sines [longest, turned]."""
    positions, *turned, table = op.inputs
    head = next((value for _, value in op.attributes if type(value) is int), 0)
    share, whole = (table.shape[-1], head) if 0 < table.shape[-1] <= head else (1, 1)
    elements = sum(tensor.numel for tensor in turned) * share // whole
    moved = sum(tensor.nbytes for tensor in turned) * share // whole
    rows = picked_bytes(table, positions.numel * table.shape[-1])
    return OpCost(
        vector_flops=ROTARY_FLOPS * elements,
        vector_dtype=turned[0].dtype,
        bytes_read=positions.nbytes + moved + rows,
        bytes_written=moved,
        upper=True,
        note="positions of their own for all tokens",
    )


@alone(*names("reshape_and_cache_flash reshape_and_cache", "_C_cache_ops"), "sglang::store_cache")
def store_cache(op: OpSignature) -> OpCost:
    """k, v [T, ...], their caches, slots [T], perhaps scales: each token to its slot, in the cache's dtype."""
    key, value, key_cache, value_cache, *others = op.inputs
    return OpCost(
        bytes_read=tensor_bytes(key, value, *others),
        bytes_written=picked_bytes(key_cache, key.numel) + picked_bytes(value_cache, value.numel),
        upper=True,
        note="padding, which is not stored, counts as tokens",
    )


def _product(a: TensorSpec, columns: int, out_bytes: int, read: int) -> OpCost:
    rows, contracted = prod(a.shape[:-1]), a.shape[-1]
    return OpCost(
        matrix_flops=2 * rows * contracted * columns,
        matrix_dtype=a.dtype,
        bytes_read=read,
        bytes_written=out_bytes,
    )


@product("aiter::gemm_a16w16")
def gemm_a16w16(op: OpSignature) -> OpCost:
    """a [m, k] times w [n, k], perhaps a bias, to [m, n] of a's dtype."""
    a, weight = op.inputs[:2]
    columns = weight.shape[0]
    return _product(a, columns, prod(a.shape[:-1]) * columns * a.item_bytes, tensor_bytes(*op.inputs))


@product("_C::cutlass_scaled_mm")
def cutlass_scaled_mm(op: OpSignature) -> OpCost:
    """out [m, n], a [m, k], b [k, n], their scales, perhaps a bias."""
    out, a, *others = op.inputs
    return _product(a, out.shape[-1], out.nbytes, tensor_bytes(a, *others))
