"""Attention in serving engines: over sequences in a paged cache, whose lengths are in no argument.

Where the lengths are known (``records.engine_facts``), keys and values of all of them are read once, and the pairs of
causal attention are counted. Where they are not, the least is: each query sees its own key, and the keys of the call's
own tokens are read. Dqk and Dv are the sizes of a head, W the numbers of one token's keys, of all heads together; pairs
P are of one head. FLOPs as in ``attention``: 2 Hq P (Dqk + Dv) on the matrix unit, 5 per pair and head on the vector
unit. Sequences that share keys (a common prefix) read them once, so that counts with lengths are ``upper``.

Schemas: vLLM's ``csrc/torch_bindings.cpp`` and ``vllm/attention/layer.py``, vllm-flash-attention's
``csrc/common/pytorch_shim.h`` and ``flash_api_torch_lib.cpp``, SGLang's ``sgl-kernel/csrc/flash_extension.cc``, and
AITER's ``aiter/ops/attention.py``. Results are written into tensors that the op is given, or have the query's shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from rooflight.costs.cost import OpCost
from rooflight.costs.families.attention import FORWARD_VECTOR_FLOPS
from rooflight.costs.families.matmul import multiply_adds
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, integer
from rooflight.records import signature as engine_facts
from rooflight.records.dtypes import item_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

attention_ops = Family("serving")

LEAST_NOTE = "lengths of sequences unknown: keys before those of the call's own tokens are not counted"
CAUSAL_NOTE = "attention taken as causal"
LENGTHS_NOTE = "sequences taken to share no keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Queries [..., Hq, Dqk] or [tokens, Hq Dqk] and their result alike. A cached token has so many numbers in its key
    and in its value, of the cache's dtype.
    """

    query: TensorSpec
    result: TensorSpec
    key_width: int
    value_width: int
    cache_dtype: str

    @property
    def tokens(self) -> int:
        """How many queries each head has."""
        return prod(self.query.shape[:-2]) if len(self.query.shape) > 2 else self.query.shape[0]

    def cost(self, keys: int, pairs: int, *, upper: bool = False, note: str = "") -> OpCost:
        """The cost with so many keys read, and pairs of each head."""
        heads = self.query.shape[-2] if len(self.query.shape) > 2 else 0
        per_pair = (self.query.numel + self.result.numel) // max(self.tokens, 1)
        return OpCost(
            matrix_flops=multiply_adds(pairs * per_pair, self.query),
            matrix_dtype=self.query.dtype,
            vector_flops=FORWARD_VECTOR_FLOPS * pairs * heads,
            vector_dtype="float32",
            bytes_read=self.query.nbytes + keys * (self.key_width + self.value_width) * item_bytes(self.cache_dtype),
            bytes_written=self.result.nbytes,
            upper=upper,
            note=note,
        )

    def attended(self, op: OpSignature, *, hides: bool = False) -> OpCost:
        """The cost with the lengths that are known of the call, the least without; ``hides``: a window hides keys."""
        known = op.attribute(engine_facts.CACHE_DTYPE)
        call = replace(self, cache_dtype=known) if isinstance(known, str) else self
        pairs, keys = integer(op, engine_facts.VISIBLE_PAIRS, 0), integer(op, engine_facts.KV_TOKENS, 0)
        if hides or not pairs >= call.tokens > 0:
            return call.cost(call.tokens, call.tokens, note=LEAST_NOTE)
        return call.cost(keys, pairs, upper=True, note=LENGTHS_NOTE)


def _call(query: TensorSpec, result: TensorSpec, cache: TensorSpec, key_width: int, value_width: int = 0) -> Call:
    return Call(query=query, result=result, key_width=key_width, value_width=value_width, cache_dtype=cache.dtype)


def _width(tensor: TensorSpec | None) -> int:
    return tensor.numel // max(tensor.shape[0], 1) if tensor is not None and tensor.shape else 0


def _like(query: TensorSpec, width: int) -> TensorSpec:
    return TensorSpec((*query.shape[:-1], width), query.dtype)


@attention_ops("vllm::unified_attention vllm::unified_attention_with_output sglang::unified_attention_with_output")
def unified_attention(op: OpSignature) -> OpCost:
    """q [T, Hq, D], the call's own k and v [T, Hkv, D], perhaps the result."""
    query, key, value = op.inputs[0], op.input("arg1"), op.input("arg2")
    return _call(query, op.input("arg3") or query, key or query, _width(key), _width(value)).attended(op)


@attention_ops("vllm::unified_mla_attention vllm::unified_mla_attention_with_output")
def unified_mla(op: OpSignature) -> OpCost:
    """q [T, Hq, D], compressed keys and values [T, R], the keys' rotary part [T, 1, Dr], the result [T, Hq Dv].

    A cached token has R + Dr numbers, keys and values together. FLOPs are those with keys that were expanded.
    """
    query, compressed, rotary = op.inputs[:3]
    return _call(query, op.input("arg3") or query, compressed, _width(compressed) + _width(rotary)).attended(op)


def _paged(place: int, heads: int | None = None, window: int = 0) -> Formula:
    """The result, q at ``place`` [T, Hq, D], the caches; ``heads`` of keys and ``window`` (0: none) are arguments."""

    def cost(op: OpSignature) -> OpCost:
        result, query, cache = op.inputs[0], op.inputs[place], op.inputs[place + 1]
        width = integer(op, engine_facts.KV_WIDTH, 0)
        if heads is not None:
            width = integer(op, f"arg{heads}", 0) * query.shape[-1] or width
        elif not width:  # [pages, page size, Hkv, D] or [pages, Hkv, page size, D]
            width = min(cache.shape[1:3]) * cache.shape[-1]
        hides = window > 0 and integer(op, f"arg{window}", 0) > 0
        return _call(query, result, cache, width, width).attended(op, hides=hides)

    return cost


def _flash(*, pages: int, starts: int, window: int) -> Formula:
    """q [..., Hq, D]; k and v [..., Hkv, D] of all keys, or of pages where they are given; ``window`` -1: all keys."""

    def cost(op: OpSignature) -> OpCost:
        call, key = _flash_call(op), op.inputs[1]
        hides = integer(op, f"arg{window}", -1) >= 0
        if hides or op.input(f"arg{pages}") is not None:
            return call.attended(op, hides=hides)
        begins = op.input(f"arg{starts}")
        sequences = max(begins.numel - 1, 1) if begins is not None else prod(call.query.shape[:-3])
        # n sequences of T queries have at least the pairs of causal attention among T / n queries each
        each = call.tokens // max(sequences, 1)
        pairs = max(call.tokens, sequences * (each * (each + 1) // 2))
        return call.cost(prod(key.shape[:-2]), pairs, note=CAUSAL_NOTE)

    return cost


def _flash_call(op: OpSignature) -> Call:
    query, key, value = op.inputs[:3]
    return _call(query, _like(query, value.shape[-1]), key, prod(key.shape[-2:]), prod(value.shape[-2:]))


attention_ops.rows(
    {
        _paged(1, heads=4): "_C::paged_attention_v1",
        _paged(4, heads=7): "_C::paged_attention_v2 _rocm_C::paged_attention aiter::paged_attention_rocm",
        _paged(2, window=19): "aiter::paged_attention_v1",
        _paged(2): "aiter::paged_attention_ragged sglang_profiler::attention_paged_attention_ragged "
        "sglang_profiler::attention_paged_attention_v1",
        # FlashAttention-3: q, k, v, new k, new v, q's part for v, the result, where sequences begin, ...
        _flash(pages=14, starts=7, window=25): "sgl_kernel::fwd _vllm_fa3_C::fwd flash_attn_3::fwd",
        # FlashAttention-2 as vLLM builds it: q, k, v, the result, where sequences begin, the table of pages, ...
        _flash(pages=8, starts=4, window=16): "_vllm_fa2_C::varlen_fwd",
        # q [B, N, Hq, D] and caches [pages, page size, Hkv, D], or [B, longest, Hkv, D], of which a part is in use
        lambda op: _flash_call(op).attended(op, hides=integer(op, "arg15", -1) >= 0): "_vllm_fa2_C::fwd_kvcache",
    }
)


@attention_ops(
    "aiter::pa_fwd aiter::pa_fwd_asm aiter::_pa_fwd_asm aiter::pa_fwd_naive aiter::pa_ps_fwd_asm aiter::_pa_ps_fwd_asm"
)
def pa_fwd(op: OpSignature) -> OpCost:
    """q [T, Hq, D], K [pages, Hkv, D / x, page size, x], V."""
    query, cache = op.inputs[:2]
    width = cache.shape[1] * query.shape[-1]
    return _call(query, query, cache, width, width).attended(op)


@attention_ops("_C::sm100_cutlass_mla_decode sgl_kernel::cutlass_mla_decode")
def latent_decode(op: OpSignature) -> OpCost:
    """The result [T, Hq, R], perhaps its log-sum-exp, q [T, Hq, R] and its rotary part [T, Hq, Dr], a cache of latents
    [pages, page size, R + Dr], lengths, ....
    """
    result, query, rotary, cache = [tensor for tensor in op.inputs if len(tensor.shape) > 2][:4]
    both = _like(query, query.shape[-1] + rotary.shape[-1])
    return _call(both, result, cache, cache.shape[-1]).attended(op)


@attention_ops("aiter::mla_decode_stage1_asm_fwd")
def latent_decode_parts(op: OpSignature) -> OpCost:
    """q [T, Hq, R + Dr], a cache of latents [pages, page size, heads, R + Dr], ..., results of parts of the keys
    [..., Hq, R] in float32.
    """
    query, cache = op.inputs[:2]
    parts = [tensor for tensor in op.inputs[2:] if tensor.dtype == "float32" and len(tensor.shape) > 2]
    width = max((tensor.shape[-1] for tensor in parts), default=0)
    return _call(query, _like(query, width), cache, prod(cache.shape[-2:])).attended(op)
