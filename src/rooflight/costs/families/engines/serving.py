"""Ops of serving engines: vLLM (``_C``, ``_C_cache_ops``, ``vllm``), SGLang (``sgl_kernel``, ``sglang``), AITER (AMD).

Their schemas: vLLM's ``csrc/torch_bindings.cpp`` and ``cache.h``, SGLang's ``sgl-kernel/csrc/common_extension.cc``, and
AITER's ``aiter/ops``. Most write into tensors that they were given, so that results are among the inputs, by their
places; this holds for a trace, which has no names of arguments, and for a recording.

Conventions: RMS norm 5 FLOPs per element, 6 with an addition before it; a gated activation 5 per element of the result;
rotary embedding 3 per element turned; quantizing 2. Attention is in ``engine_attention``, experts in
``engine_experts``.
"""

from __future__ import annotations

from rooflight.costs.cost import OpCost
from rooflight.costs.families.normalization import RMS_NORM_FLOPS
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, integer, picked_bytes, tensor_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

serving_ops = Family("serving", fusable=True)
alone = Family("serving")

ACTIVATION_FLOPS = 5
ROTARY_FLOPS = 3
QUANTIZE_FLOPS = 2
PADDING_NOTE = "padding, which is not stored, counts as tokens"


def _moving(reads: str, writes: str, flops: int, counted: str = "0") -> Formula:
    """Tensors at places read and written, or others like them returned; FLOPs per element of those ``counted``."""
    read, written, worked = ([int(place) for place in places.split()] for places in (reads, writes, counted))

    def cost(op: OpSignature) -> OpCost:
        tensors = op.inputs
        return OpCost(
            vector_flops=flops * sum(tensors[place].numel for place in worked),
            bytes_read=tensor_bytes(*(tensors[place] for place in read if place < len(tensors))),
            bytes_written=tensor_bytes(*(tensors[place] for place in written)),
        )

    return cost


def _storing(tokens: tuple[int, ...], caches: tuple[int, ...]) -> Formula:
    """Tokens at places go to slots in the caches at others, in the caches' dtype; slots and scales are read too."""

    def cost(op: OpSignature) -> OpCost:
        pairs = [(op.inputs[token], op.inputs[cache]) for token, cache in zip(tokens, caches, strict=True)]
        return OpCost(
            bytes_read=tensor_bytes(*(tensor for place, tensor in enumerate(op.inputs) if place not in caches)),
            bytes_written=sum(picked_bytes(cache, token.numel) for token, cache in pairs),
            upper=True,
            note=PADDING_NOTE,
        )

    return cost


@alone("_C_cache_ops::concat_and_cache_mla")
def store_latents(op: OpSignature) -> OpCost:
    """Latents [T, R], rotary parts [T, Dr], their cache, slots: each token to its slot, in the cache's dtype."""
    latents, rotary, cache, *others = op.inputs
    written = picked_bytes(cache, latents.numel + rotary.numel)
    read = tensor_bytes(latents, rotary, *others)
    return OpCost(bytes_read=read, bytes_written=written, upper=True, note=PADDING_NOTE)


alone.rows(
    {
        # k, v [T, ...], their caches, slots [T], perhaps scales; or the caches, slots, k and v
        _storing((0, 1), (2, 3)): "_C_cache_ops::reshape_and_cache_flash _C_cache_ops::reshape_and_cache "
        "aiter::reshape_and_cache_flash aiter::reshape_and_cache sglang::store_cache",
        _storing((3, 4), (0, 1)): "sgl_kernel::store_kv_cache",
    }
)


_NORM = _moving("1 2", "0", RMS_NORM_FLOPS)  # out, x [..., n], weight [n]
_ADD_NORM = _moving("0 1 2", "0 1", RMS_NORM_FLOPS + 1)  # x and residual in place, weight
_NORM_QUANTIZE = _moving("1 2 3", "0", RMS_NORM_FLOPS + QUANTIZE_FLOPS)  # out, x, weight, scale
_ADD_NORM_QUANTIZE = _moving("1 2 3 4", "0 2", RMS_NORM_FLOPS + 1 + QUANTIZE_FLOPS)  # out, x, residual, weight, scale
_ADD_NORM_APART = _moving("1 2 4", "0 3", RMS_NORM_FLOPS + 1)  # out, x, residual, new residual, weight
_GATED = _moving("1", "0", ACTIVATION_FLOPS)  # out [..., d], x [..., 2 d]
_GATED_QUANTIZE = _moving("1 2", "0", ACTIVATION_FLOPS + QUANTIZE_FLOPS)  # out, x, scale
_GATED_QUANTIZE_FINDING = _moving("1", "0 2", ACTIVATION_FLOPS + QUANTIZE_FLOPS + 1)  # out, x, the scales found
_QUANTIZE = _moving("1 2", "0", QUANTIZE_FLOPS)  # out, x, scale
_QUANTIZE_FINDING = _moving("1", "0 2", QUANTIZE_FLOPS + 1)  # out, x, the scale found
_QUANTIZE_AFTER = _moving("0", "1 2", QUANTIZE_FLOPS + 1)  # x, out, the scales found
_RETURNING_NORM = _moving("0 1", "0", RMS_NORM_FLOPS)  # x, weight, to another x
_RETURNING_ADD_NORM = _moving("0 1 2", "0 1", RMS_NORM_FLOPS + 1)  # x, residual, weight, to others of both

_GATED_NAMES = "silu_and_mul gelu_and_mul gelu_tanh_and_mul"
serving_ops.rows(
    {
        _NORM: "rms_norm",
        _ADD_NORM: "fused_add_rms_norm",
        _GATED: f"{_GATED_NAMES} mul_and_silu fatrelu_and_mul swigluoai_and_mul gelu_new gelu_fast gelu_quick",
        _NORM_QUANTIZE: "rms_norm_static_fp8_quant",
        _ADD_NORM_QUANTIZE: "fused_add_rms_norm_static_fp8_quant",
        _QUANTIZE: "static_scaled_fp8_quant static_scaled_int8_quant",
        _QUANTIZE_FINDING: "dynamic_scaled_fp8_quant dynamic_per_token_scaled_fp8_quant dynamic_scaled_int8_quant",
        _QUANTIZE_AFTER: "per_token_group_fp8_quant per_token_group_fp8_quant_packed per_token_group_quant_int8",
        _GATED_QUANTIZE: "silu_and_mul_quant",
        _GATED_QUANTIZE_FINDING: "silu_and_mul_per_block_quant",
        _moving("2 3", "0 1", ACTIVATION_FLOPS + QUANTIZE_FLOPS): "silu_and_mul_nvfp4_quant",  # out, scales, x, scale
        _moving("1", "0", RMS_NORM_FLOPS): "rms_norm_weightless",
        _moving("0 1", "0 1", RMS_NORM_FLOPS + 1): "fused_add_rms_norm_weightless",
        _moving("1 2", "", 0): "apply_repetition_penalties_",  # masks; which logits are penalized is data
    },
    "_C",
)
serving_ops.rows(
    {
        _NORM: "rmsnorm gemma_rmsnorm",
        _ADD_NORM: "fused_add_rmsnorm gemma_fused_add_rmsnorm",
        _GATED: _GATED_NAMES,
        _QUANTIZE_AFTER: "sgl_per_token_group_quant_fp8 sgl_per_token_group_quant_int8 sgl_per_token_group_quant_8bit "
        "sgl_per_tensor_quant_fp8 sgl_per_token_quant_fp8",
        _moving("0 1 2 3", "4 5", 3, counted="4"): "merge_state merge_state_v2",  # two results and their sums, to one
        _moving("1 2", "0", 0): "concat_mla_k",
        _moving("0", "1", 1): "top_k_renorm_probs top_p_renorm_probs min_p_sampling_from_probs "
        "top_p_sampling_from_probs top_k_top_p_sampling_from_probs top_k_mask_logits",
        _moving("0", "1", 0): "copy_to_gpu_no_ce",
    },
    "sgl_kernel",
)
serving_ops.rows(
    {_NORM: "rmsnorm gemma_rmsnorm", _ADD_NORM: "fused_add_rmsnorm gemma_fused_add_rmsnorm", _GATED: _GATED_NAMES},
    "flashinfer",
)
_ADD_NORM_QUANTIZE_APART = _moving("1 2 5", "0 3 4", RMS_NORM_FLOPS + 1 + QUANTIZE_FLOPS)
"""out, x, residual, new residual, the scales found, weight"""
serving_ops.rows(
    {
        _NORM: "rmsnorm rms_norm_cu",
        _ADD_NORM: "fused_add_rms_norm_cu",
        _ADD_NORM_APART: "add_rmsnorm rmsnorm2d_fwd_with_add",
        _moving("1 3", "0 2", RMS_NORM_FLOPS + QUANTIZE_FLOPS): "rmsnorm_quant rmsnorm2d_fwd_with_dynamicquant",
        _ADD_NORM_QUANTIZE_APART: "add_rmsnorm_quant rmsnorm2d_fwd_with_add_dynamicquant",
        _moving("1 2 4", "0 3", RMS_NORM_FLOPS + QUANTIZE_FLOPS): "rmsnorm2d_fwd_with_smoothquant",
        _GATED: _GATED_NAMES,
        _GATED_QUANTIZE: "scaled_silu_and_mul",
        _QUANTIZE: "static_per_tensor_quant",
        _QUANTIZE_FINDING: "dynamic_per_tensor_quant dynamic_per_token_scaled_quant",
        _moving("1 2", "0 3", QUANTIZE_FLOPS + 1): "smoothquant_fwd",  # out, x, its scale, the scales found
        # the result, x, frequencies or their cosines and sines; two results, of q and of k, q and k, frequencies
        _moving("1 2 3 4 5", "0", ROTARY_FLOPS): "rope_fwd_impl rope_bwd_impl rope_cached_fwd_impl "
        "rope_cached_bwd_impl",
        _moving("2 3 4 5 6 7", "0 1", ROTARY_FLOPS, "0 1"): "rope_2c_fwd_impl rope_2c_bwd_impl "
        "rope_cached_2c_fwd_impl rope_cached_2c_bwd_impl",
        _RETURNING_NORM: "rms_norm rmsnorm2d_fwd vllm::rocm_aiter_rms_norm",
        _RETURNING_ADD_NORM: "vllm::rocm_aiter_rmsnorm2d_fwd_with_add",
        _moving("0 1", "0", ACTIVATION_FLOPS): "trace::LigerSiLUMulFunction",  # a and b to silu(a) b
    },
    "aiter",
)


@serving_ops("_C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant")
def norm_quantize(op: OpSignature) -> OpCost:
    """out, x [..., n], weight [n], the scales found, perhaps a residual in place."""
    out, x, weight, scales = op.inputs[:4]
    residual = op.input("arg6")
    return OpCost(
        vector_flops=(RMS_NORM_FLOPS + QUANTIZE_FLOPS + (residual is not None)) * x.numel,
        bytes_read=tensor_bytes(x, weight, residual),
        bytes_written=tensor_bytes(out, scales, residual),
    )


@serving_ops("_C::merge_attn_states")
def merge_states(op: OpSignature) -> OpCost:
    """The result and perhaps its sum, those of two parts of the keys: 3 FLOPs per element."""
    given = [op.input(f"arg{place}") for place in range(6)]
    read, written = tensor_bytes(*given[2:]), tensor_bytes(*given[:2])
    return OpCost(vector_flops=3 * op.inputs[0].numel, bytes_read=read, bytes_written=written)


@serving_ops("_C::fused_qk_norm_rope")
def qk_norm_rope(op: OpSignature) -> OpCost:
    """q, k and v [T, (Hq + Hk + Hv) D] in place, the numbers of heads, D, weights [D], cosines and sines, positions."""
    x = op.inputs[0]
    heads = [integer(op, f"arg{place}", 0) for place in (1, 2, 3)]
    worked = x.numel * sum(heads[:2]) // max(sum(heads), 1)
    moved = worked * x.item_bytes
    return OpCost(vector_flops=(RMS_NORM_FLOPS + ROTARY_FLOPS) * worked, bytes_read=moved, bytes_written=moved)


def _turned(positions: TensorSpec, table: TensorSpec, dtype: str, elements: int, moved: int) -> OpCost:
    """So many elements turned, of so many bytes, by cosines and sines [longest, turned] at the tokens' positions."""
    rows = picked_bytes(table, positions.numel * table.shape[-1])
    return OpCost(
        vector_flops=ROTARY_FLOPS * elements,
        vector_dtype=dtype,
        bytes_read=positions.nbytes + moved + rows,
        bytes_written=moved,
        upper=True,
        note="positions of their own for all tokens",
    )


@serving_ops("sgl_kernel::apply_rope_pos_ids_cos_sin_cache flashinfer::apply_rope_pos_ids_cos_sin_cache")
def rope_positions(op: OpSignature) -> OpCost:
    """q [T, Hq, D] and k, their results (perhaps themselves), cosines and sines [longest, turned], positions."""
    query, key, _, _, table, positions = op.inputs[:6]
    head = query.shape[-1]
    elements = (query.numel + key.numel) * (min(table.shape[-1], head) if head else 0) // max(head, 1)
    return _turned(positions, table, query.dtype, elements, elements * query.item_bytes)


@serving_ops("_C::awq_dequantize sgl_kernel::awq_dequantize")
def dequantize(op: OpSignature) -> OpCost:
    """w [k, n / 8] of eight numbers an int, scales [groups, n], zeros, to [k, n] of the scales' dtype."""
    packed, scales = op.inputs[:2]
    elements = packed.shape[0] * scales.shape[-1]
    read, written = tensor_bytes(*op.inputs), elements * scales.item_bytes
    return OpCost(vector_flops=QUANTIZE_FLOPS * elements, bytes_read=read, bytes_written=written)


@serving_ops("_C::rotary_embedding sgl_kernel::rotary_embedding")
def rotary_embedding(op: OpSignature) -> OpCost:
    """positions [T], q [T, ...] and perhaps k in place, a head's size, cosines and sines [longest, turned]."""
    positions, *given, table = op.inputs
    head = next((value for _, value in op.attributes if type(value) is int), 0)
    share, whole = (table.shape[-1], head) if 0 < table.shape[-1] <= head else (1, 1)
    elements, moved = sum(tensor.numel for tensor in given), sum(tensor.nbytes for tensor in given)
    return _turned(positions, table, given[0].dtype, elements * share // whole, moved * share // whole)
