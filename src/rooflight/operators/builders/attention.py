"""Scaled dot-product attention, as `flash_atten` and `sdpa` run it: torch's op, or flash-attn's where installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from rooflight.operators.operator import Prepared, Work
from rooflight.operators.signatures import call, tensor
from rooflight.operators.tensors import differentiable, random

BACKWARD = "rooflight::scaled_dot_product_attention_backward"


class AttentionSizes(NamedTuple):
    """Batch entries, heads of queries and of keys and values, their lengths, and the size of a head."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int


def attention_work(sizes: AttentionSizes, dtype: str, *, causal: bool = False) -> Work:
    """One call of SDPA, which keeps a log-sum-exp a query for its backward."""
    query = tensor(dtype, sizes.batch, sizes.heads, sizes.queries, sizes.width)
    key = tensor(dtype, sizes.batch, sizes.kv_heads, sizes.keys, sizes.width)
    logsumexp = tensor("float32", sizes.batch, sizes.heads, sizes.queries)
    inputs = {"query": query, "key": key, "value": key}
    return Work(
        forward=(call("aten::scaled_dot_product_attention", inputs, query, logsumexp, is_causal=causal),),
        backward=(
            call(
                BACKWARD,
                {"grad_out": query, **inputs, "out": query, "logsumexp": logsumexp},
                *(query, key, key),
                is_causal=causal,
                grad_input_mask=(True, True, True),
            ),
        ),
    )


def prepare_attention(torch: Any, sizes: AttentionSizes, dtype: str, device: str, *, causal: bool = False) -> Prepared:
    """Queries, keys and values in memory as flash-attn has them, [b, length, heads, width]."""
    query = random(torch, dtype, device, sizes.batch, sizes.queries, sizes.heads, sizes.width, grad=True)
    key, value = (
        random(torch, dtype, device, sizes.batch, sizes.keys, sizes.kv_heads, sizes.width, grad=True) for _ in range(2)
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = sizes.heads != sizes.kv_heads

    def run() -> Any:
        heads_first = (each.transpose(1, 2) for each in (query, key, value))
        return attend(*heads_first, is_causal=causal, enable_gqa=grouped)

    # flash-attn aligns a causal mask at the ends of unequal lengths, torch at their starts
    if device.startswith("cuda") and (not causal or sizes.queries == sizes.keys) and find_spec("flash_attn"):
        flash: Any = import_module("flash_attn").flash_attn_func
        return differentiable(torch, lambda: flash(query, key, value, causal=causal), [query, key, value])
    return differentiable(torch, run, [query, key, value])
