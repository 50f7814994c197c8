"""sdpa: attention of any kind today's models have: causal or not, grouped heads, one query against a KV cache."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from rooflight.operators.builders.attention import Heads, attention_work, prepare_attention
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.tensor_parallel import divides


def sizes(shape: Shape) -> Heads:
    """q [b, h, q, d], k and v [b, kv_heads, kv, d]."""
    return Heads(*(shape[name] for name in ("b", "h", "kv_heads", "q", "kv", "d")))


def check(shape: Shape) -> str | None:
    """Query heads share key heads evenly; torch aligns a causal mask at the starts, which suits equal lengths only."""
    if shape["causal"] and shape["q"] != shape["kv"]:
        return f"causal=1 with q={shape['q']} and kv={shape['kv']}: a decode step sees all of its cache, so causal=0"
    return divides(shape, ("h", "kv_heads"))


def work(shape: Shape, dtype: str) -> Work:
    """One call of SDPA."""
    return attention_work(sizes(shape), dtype, causal=bool(shape["causal"]))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Queries, keys and values."""
    return prepare_attention(torch, sizes(shape), dtype, device, causal=bool(shape["causal"]))


register(
    Operator(
        name="sdpa",
        summary="attention: q [b, h, q, d], k and v [b, kv_heads, kv, d], causal 0 or 1",
        parameters=("b", "h", "kv_heads", "q", "kv", "d", "causal"),
        family="attention",
        work=work,
        prepare=prepare,
        check=check,
        defaults=MappingProxyType({"causal": 0}),
        flags=("causal",),
    )
)
