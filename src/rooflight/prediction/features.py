"""What a model sees of a piece of work: its bound on a device, the sizes of its main op, and how these fill the device.

The target is the time over the bound, as a logarithm: 0 is the speed of light. A model of that is one for all sizes,
dtypes and devices, and cannot predict what is faster than light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, log, prod

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of, family_of
from rooflight.devices.spec import DeviceSpec
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound, bound_of

Floats = NDArray[np.float64]

_TILES = ((128, 256), (128, 128), (64, 64))
"""Blocks of the result that one unit of a GPU computes at a time; which of them a library takes, it does not say."""
_ALIGNED = 512
_LEAST = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """``values`` go with ``names_of(key)``. ``key`` names the model that knows such work."""

    key: str
    bound_s: float
    values: tuple[float, ...]


def features_of(ops: Sequence[OpSignature], device: DeviceSpec) -> Features | None:
    """Features of ops that run one after the other as one piece of work; None if one has no cost, or nothing to do.

    Products share a key, attention has one for each direction, anything else one for each sequence of op names.
    """
    costs = [_cost(op) for op in ops]
    known = [cost for cost in costs if isinstance(cost, OpCost)]
    if not known or len(known) < len(costs):
        return None
    bounds = [bound_of(cost, device) for cost in known]
    bound_s = sum(bound.time_s for bound in bounds)
    if bound_s <= 0:
        return None
    main = max(range(len(ops)), key=lambda place: bounds[place].time_s)
    sizes = product_sizes(ops[main]) if known[main].matrix_flops else None
    common = _common(ops, known, bounds)
    units = device.unit_count or 1
    if sizes is not None:
        return Features(key="gemm", bound_s=bound_s, values=(*common, *_product(sizes, units)))
    heads = attention_sizes(ops[main]) if known[main].matrix_flops else None
    if heads is not None:
        return Features(key=ops[main].name, bound_s=bound_s, values=(*common, *_attention(heads, units)))
    names = "+".join(dict.fromkeys(op.name for op in ops))
    return Features(key=names, bound_s=bound_s, values=(*common, *_rows(ops[main], units)))


def names_of(key: str) -> tuple[str, ...]:
    """Names of the features that go with a key."""
    common = ("log bound", "log bytes", "log matrix", "log vector", "ops", "products", "log item", "log ridge")
    if key == "gemm":
        tiles = tuple(f"{what} {a}x{b}" for a, b in _TILES for what in ("log waves", "filled", "whole"))
        return (*common, "log b", "log m", "log n", "log k", "align m", "align n", "align k", *tiles)
    if "attention" in key:
        return (*common, "log b h", "log q", "log kv", "log d", "group", "causal", "padded d", "log waves", "filled")
    return (*common, "log rows", "log width", "align width", "log waves")


def product_sizes(op: OpSignature) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of [b, m, k] @ [b, k, n]; None for what is no such product."""
    if family_of(op.name) != "matmul":
        return None
    matrices = [tensor for tensor in op.inputs if len(tensor.shape) > 1]
    if len(matrices) < 2 or not op.outputs:
        return None
    left = next((op.input(name) for name in ("mat1", "batch1", "self", "input") if op.input(name) in matrices), None)
    if left is None:
        return None
    *outer, m, k = left.shape
    batch = prod(outer)
    elements = op.outputs[0].numel
    if not batch * m * k or not elements:
        return None
    return batch, m, elements // (batch * m), k


def attention_sizes(op: OpSignature) -> tuple[int, int, int, int, int, bool] | None:
    """(batch x heads, queries, keys, width, heads a key-value head, causal); None for what is no attention."""
    query, key = op.input("query"), op.input("key")
    if query is None or key is None or len(query.shape) < 3:
        return None
    *outer, queries, width = query.shape
    kv_heads = key.shape[-3] if len(key.shape) > 3 else 1
    heads = query.shape[-3] if len(query.shape) > 3 else 1
    return (
        prod(outer),
        queries,
        key.shape[-2],
        width,
        max(1, heads // max(1, kv_heads)),
        bool(op.attribute("is_causal")),
    )


@lru_cache(maxsize=1 << 16)
def _cost(op: OpSignature) -> OpCost | Uncosted:
    return cost_of(op)


def _common(ops: Sequence[OpSignature], costs: Sequence[OpCost], bounds: Sequence[Bound]) -> tuple[float, ...]:
    compute_s, memory_s = sum(bound.compute_s for bound in bounds), sum(bound.memory_s for bound in bounds)
    return (
        log(sum(bound.time_s for bound in bounds)),
        _log(sum(cost.bytes_moved for cost in costs)),
        _log(sum(cost.matrix_flops for cost in costs)),
        _log(sum(cost.vector_flops for cost in costs)),
        float(len(ops)),
        float(sum(cost.matrix_flops > 0 for cost in costs)),
        log(max((tensor.item_bytes for op in ops for tensor in op.inputs), default=1)),
        log(max(compute_s, _LEAST) / max(memory_s, _LEAST)),
    )


def _product(sizes: tuple[int, int, int, int], units: int) -> tuple[float, ...]:
    batch, m, n, k = sizes
    tiles: list[float] = []
    for rows, columns in _TILES:
        blocks = batch * ceil(m / rows) * ceil(n / columns)
        waves = blocks / units
        tiles += (log(waves), waves / ceil(waves), batch * m * n / (blocks * rows * columns))
    return (log(batch), log(m), log(n), log(k), _align(m), _align(n), _align(k), *tiles)


def _attention(sizes: tuple[int, int, int, int, int, bool], units: int) -> tuple[float, ...]:
    heads, queries, keys, width, group, causal = sizes
    padded = 32 * ceil(width / 32)
    waves = heads * ceil(queries / 128) / units
    return (
        _log(heads),
        _log(queries),
        _log(keys),
        _log(width),
        float(group),
        float(causal),
        width / padded,
        log(waves),
        waves / ceil(waves),
    )


def _rows(op: OpSignature, units: int) -> tuple[float, ...]:
    largest = max((*op.inputs, *op.outputs), key=lambda tensor: tensor.numel, default=None)
    width = largest.shape[-1] if largest is not None and largest.shape else 1
    rows = largest.numel // max(1, width) if largest is not None else 1
    return (_log(rows), _log(width), _align(width), _log(rows) - log(units))


def _align(size: int) -> float:
    return log(gcd(size, _ALIGNED), 2) if size else 0.0


def _log(value: float) -> float:
    return log(value) if value > 0 else -1.0
