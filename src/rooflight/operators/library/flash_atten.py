"""flash_atten: attention of every token to every token, not causal, as estimate-train-time measured it."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.attention import AttentionSizes, attention_work, prepare_attention
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.sizes import ATTENTION_BATCH, HEADS, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import heads


def sizes(shape: Shape) -> AttentionSizes:
    """q, k, v [b, l, h / mp, dim / h]."""
    parts, length = shape["h"] // shape["mp"], shape["l"]
    return AttentionSizes(shape["b"], parts, parts, length, length, shape["dim"] // shape["h"])


def work(shape: Shape, dtype: str) -> Work:
    """One call of SDPA without a mask."""
    return attention_work(sizes(shape), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """flash-attn where it is installed and the device is CUDA, torch's SDPA elsewhere."""
    return prepare_attention(torch, sizes(shape), dtype, device)


register(
    Operator(
        name="flash_atten",
        summary="attention, not causal: q, k, v [b, l, h / mp, dim / h]",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": ATTENTION_BATCH,
            "h": HEADS,
            "l": LENGTH,
            "dim": HIDDEN,
        },
        work=work,
        prepare=prepare,
        check=heads,
    )
)
