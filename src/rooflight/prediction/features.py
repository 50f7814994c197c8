"""What a model sees of work: its bound on a device, the sizes of its main ops, and how these fill the device.

Two steps: *facts*, read from ops one piece of work after the other, and *features*, computed from the facts of many at
once. The target is the time over the bound, as a logarithm: 0 is the speed of light, and no prediction is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of, traits_of
from rooflight.devices.spec import DeviceSpec
from rooflight.network import collectives
from rooflight.network.groups import RankGroup
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec
from rooflight.roofline.bound import Bound, bound_of

Floats = NDArray[np.float64]

PRODUCT_KEY: Final = "gemm"
"""The key that all products of matrices share."""
OTHERS_KEY: Final = "other ops"
"""The key of what is learned from all ops but products, attention and collectives, for ops that nobody measured."""
_TILES: Final = ((128, 256), (256, 128), (128, 128), (64, 64))
"""Blocks of the result that one unit of a GPU computes at a time; which of them a library takes, it does not say."""
ALL_REDUCE_KEY: Final = collectives.CollectiveKind.ALL_REDUCE.value
_NO_ATTENTION: Final = "rows of "
"""What the key begins with of work that is called attention without being known as such: most of it is another op."""
_NETWORK: Final = "c10d"
"""What the names of collectives have in common: ``c10d::allreduce_``, ``_c10d_functional::all_reduce``."""
_COLLECTIVES: Final = frozenset(kind.value for kind in collectives.CollectiveKind)
_ALIGNED: Final = 512
_PADDED: Final = 32  # attention kernels round a head up to such a width
_NEGLIGIBLE: Final = 0.01
_FAR_FROM_RIDGE: Final = 1.4
"""How far from the ridge, as a logarithm, it no longer matters how far: otherwise an op that always waits for memory
would look like another kind of work on a device with another balance."""
_LEAST: Final = 1e-12


class WorkKind(Enum):
    """Which facts and features there are of a piece of work."""

    PRODUCT = "product"
    ATTENTION = "attention"
    NETWORK = "network"
    ROWS = "rows"


_COMMON: Final = ("bound_s", "compute_s", "memory_s", "bytes", "matrix", "vector", "ops", "products", "item")
FACTS: Final[Mapping[WorkKind, tuple[str, ...]]] = {
    # b, m, n and k of the largest product and of the next; whether the largest has its operands transposed
    WorkKind.PRODUCT: (*_COMMON, "b", "m", "n", "k", "other b", "other m", "other n", "left", "right"),
    WorkKind.ATTENTION: (*_COMMON, "heads", "queries", "keys", "width", "group", "causal"),
    # bytes that a rank sends; ranks that take part, and the nodes they are on
    WorkKind.NETWORK: (*_COMMON, "sent", "ranks", "nodes"),
    # sizes of the largest tensor, or of a list; bytes written to memory that no input has; tensors in all
    WorkKind.ROWS: (*_COMMON, "rows", "width", "fresh", "tensors"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``values`` go with ``FACTS[kind_of(key)]``; the first of them is the bound. ``key`` names the kind of work."""

    key: str
    values: tuple[float, ...]

    @property
    def bound_s(self) -> float:
        """Least time of the work."""
        return self.values[0]


def kind_of(key: str) -> WorkKind:
    """Which facts and features go with a key."""
    if key == PRODUCT_KEY:
        return WorkKind.PRODUCT
    if key in _COLLECTIVES:
        return WorkKind.NETWORK
    return WorkKind.ATTENTION if "attention" in key and not key.startswith(_NO_ATTENTION) else WorkKind.ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """An op with its cost, and its bound on a device; None of an op without a cost."""

    op: OpSignature
    cost: OpCost | Uncosted
    bound: Bound | None


def bounded(costs: Iterable[tuple[OpSignature, OpCost | Uncosted]], device: DeviceSpec) -> tuple[Costed, ...]:
    """Ops and their costs, with their bounds."""
    return tuple(
        Costed(op=op, cost=cost, bound=None if isinstance(cost, Uncosted) else bound_of(cost, device))
        for op, cost in costs
    )


def facts_of(ops: Iterable[OpSignature], device: DeviceSpec) -> Facts | None:
    """Facts of ops that run one after the other as one piece of work; None if one has no cost, or nothing to do."""
    return facts_from(bounded(((op, cost_of(op)) for op in ops), device))


def facts_from(work: Sequence[Costed]) -> Facts | None:
    """``facts_of`` ops whose costs are known already.

    Products share a key, attention has one for each direction, collectives one for each kind ("all-reduce"), anything
    else one for each sequence of op names.
    """
    ops = [each.op for each in work]
    known = [each.cost for each in work if isinstance(each.cost, OpCost)]
    bounds = [each.bound for each in work if each.bound is not None]
    if not known or len(known) < len(ops):
        return None
    common = _common(ops, known, bounds)
    if common[0] <= 0:
        return None
    largest = sorted(range(len(ops)), key=lambda place: -bounds[place].time_s)
    main = ops[largest[0]]
    if known[largest[0]].matrix_flops:
        sizes = product_sizes(main)
        if sizes is not None:
            others = (product_sizes(ops[place]) for place in largest[1:] if known[place].matrix_flops)
            other = next((found for found in others if found is not None), sizes)
            return Facts(key=PRODUCT_KEY, values=(*common, *sizes, *other[:3], *_transposed(main)))
        heads = attention_sizes(main) if "attention" in main.name else None
        if heads is not None:
            return Facts(key=main.name, values=(*common, *heads))
    collective = collectives.kind_of(main.name)
    if collective is not None and len(ops) == 1 and (sent := known[0].bytes_sent):
        group = RankGroup.of(main).taking_part(collective)
        return Facts(key=collective.value, values=(*common, float(sent), float(group.size), float(group.nodes)))
    # what takes next to nothing, as counting a step does, makes no other kind of work of it
    named = [op.name for op, bound in zip(ops, bounds, strict=True) if bound.time_s >= _NEGLIGIBLE * common[0]]
    names = "+".join(dict.fromkeys(named))
    if "attention" in names:
        names = _NO_ATTENTION + names
    tensors = sum(len(op.inputs) + len(op.outputs) for op in ops)
    fresh = sum(map(_fresh_bytes, ops))
    return Facts(key=names, values=(*common, *_rows(main), float(fresh), float(tensors)))


def is_plain(key: str, facts: Floats) -> bool:
    """Whether rows of facts [rows, facts] are of ops without matrix products, which have much in common, other than
    with those that wait for a network.
    """
    return kind_of(key) is WorkKind.ROWS and _NETWORK not in key and not facts[:, _COMMON.index("matrix")].any()


def features_of(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Features [works, names] of facts [works, facts] with this key, as named by ``names_of``."""
    kind = kind_of(key)
    fact = dict(zip(FACTS[kind], facts.T, strict=True))
    if kind is WorkKind.NETWORK:
        return np.stack([_log(fact["bound_s"]), *_network(fact)], axis=1)
    units = float(device.unit_count or 1)
    ridge = np.log(np.maximum(fact["compute_s"], _LEAST) / np.maximum(fact["memory_s"], _LEAST))
    columns = [
        _log(fact["bound_s"]),
        np.clip(ridge, -_FAR_FROM_RIDGE, _FAR_FROM_RIDGE),
        _log(fact["bytes"]),
        _log(fact["matrix"]),
        _log(fact["vector"]),
        fact["ops"],
        fact["products"],
        _log(fact["item"]),
    ]
    match kind:
        case WorkKind.PRODUCT:
            columns += _product(fact, units)
        case WorkKind.ATTENTION:
            columns += _attention(fact, units)
        case WorkKind.ROWS:
            columns += _row(fact, units, float(_cache_bytes(device)))
    return np.stack(columns, axis=1)


def names_of(key: str) -> tuple[str, ...]:
    """Names of the features that go with a key."""
    common = ("log bound", "log ridge", "log bytes", "log matrix", "log vector", "ops", "products", "log item")
    match kind_of(key):
        case WorkKind.PRODUCT:
            sizes = ("log b", "log m", "log n", "log k", "log m n", "log m k", "log n k")
            aligned = ("align m", "align n", "align k")
            fills = tuple(f"filled {which}{a}x{b}" for a, b in _TILES for which in ("", "other "))
            return (*common, *sizes, *aligned, "left", "right", "log waves", "log other waves", *fills)
        case WorkKind.ATTENTION:
            shape = ("log heads", "log queries", "log keys", "log width", "group", "causal", "padded")
            return (*common, *shape, "log waves", "filled")
        case WorkKind.NETWORK:
            return ("log bound", "log sent", "log ranks", "log nodes", "log ranks a node")
        case WorkKind.ROWS:
            rows = ("log rows", "log width", "align width", "log rows a unit", "log bytes over cache")
            return (*common, *rows, "log fresh", "fresh share", "log tensors")


def size_features(key: str) -> tuple[int, ...]:
    """Places of the features in whose ranges work must lie to be like what was shown: the sizes, not how they align."""
    odd = ("align", "filled", "padded", "fresh share", "ops", "products", "log vector", "log fresh", "log tensors")
    return tuple(place for place, name in enumerate(names_of(key)) if not name.startswith(odd))


def steady_features(key: str) -> tuple[int, ...]:
    """Places of the features of products that say how work looks rather than how large it is: what still tells
    something of work larger than any that was measured. Sums of sizes, which there lie outside of all that was seen,
    are left out. None of other work: small ops are slow for reasons that large ones outgrow.
    """
    if kind_of(key) is not WorkKind.PRODUCT:
        return ()
    kept = ("ops", "products", "log item", "log b", "log m", "log n", "log k", "left", "right")
    names = names_of(key)
    return tuple(place for place, name in enumerate(names) if name in kept or name.startswith(("align", "filled")))


def product_sizes(op: OpSignature) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of [b, m, k] @ [b, k, n]; None for what is no such product."""
    if not traits_of(op.name).product:
        return None
    left = _left(op)
    if left is None or not op.outputs:
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


def _left(op: OpSignature) -> TensorSpec | None:
    """A product's left operand, None where there are no two matrices."""
    if sum(len(tensor.shape) > 1 for tensor in op.inputs) < 2:
        return None
    given = (op.input(name) for name in ("mat1", "batch1", "self", "input"))
    return next((tensor for tensor in given if tensor is not None and len(tensor.shape) > 1), None)


def _transposed(op: OpSignature) -> tuple[float, float]:
    """Whether a product's left and right operands lie transposed in memory."""
    right = op.input("mat2") or op.input("batch2") or op.input("weight")
    return _is_transposed(_left(op)), _is_transposed(right)


def _is_transposed(tensor: TensorSpec | None) -> float:
    return float(tensor is not None and bool(tensor.strides) and tensor.strides is not None and tensor.strides[-1] > 1)


def _common(ops: Sequence[OpSignature], costs: Sequence[OpCost], bounds: Sequence[Bound]) -> tuple[float, ...]:
    return (
        sum(bound.time_s for bound in bounds),
        sum(bound.compute_s for bound in bounds),
        sum(bound.memory_s for bound in bounds),
        float(sum(cost.bytes_moved for cost in costs)),
        float(sum(cost.matrix_flops for cost in costs)),
        float(sum(cost.vector_flops for cost in costs)),
        float(len(ops)),
        float(sum(cost.matrix_flops > 0 for cost in costs)),
        float(max((tensor.item_bytes for op in ops for tensor in op.inputs), default=1)),
    )


def _rows(op: OpSignature) -> tuple[float, float]:
    """Rows and width of the largest tensor; of lists of tensors how many they are, and how long on average."""
    if traits_of(op.name).over_lists:
        listed = op.named("self") or op.outputs
        return float(len(listed)), sum(tensor.numel for tensor in listed) / max(1, len(listed))
    largest = max((*op.inputs, *op.outputs), key=lambda tensor: tensor.numel, default=None)
    width = largest.shape[-1] if largest is not None and largest.shape else 1
    return float(largest.numel // max(1, width) if largest is not None else 1), float(width)


def _fresh_bytes(op: OpSignature) -> int:
    """Bytes of the outputs in memory that no input has: on a CPU, fresh memory costs more than its traffic."""
    held = {tensor.storage for tensor in op.inputs} - {UNSHARED}
    return sum(tensor.numel * tensor.item_bytes for tensor in op.outputs if tensor.storage not in held)


def _product(fact: Mapping[str, Floats], units: float) -> list[Floats]:
    b, m, n, k = (fact[name] for name in "bmnk")
    log_m, log_n, log_k = _log(m), _log(n), _log(k)
    columns = [_log(b), log_m, log_n, log_k, log_m + log_n, log_m + log_k, log_n + log_k]
    columns += [_align(m), _align(n), _align(k), fact["left"], fact["right"]]
    both = ((b, m, n), (fact["other b"], fact["other m"], fact["other n"]))
    columns += [_log(_waves(*sizes, (128, 128), units)) for sizes in both]
    for tile in _TILES:
        columns += [_filled(_waves(*sizes, tile, units)) for sizes in both]
    return columns


def _attention(fact: Mapping[str, Floats], units: float) -> list[Floats]:
    heads, queries, keys, width = (fact[name] for name in ("heads", "queries", "keys", "width"))
    waves = heads * np.ceil(queries / 128) / units
    padded = width / (_PADDED * np.ceil(width / _PADDED))
    sizes = [_log(heads), _log(queries), _log(keys), _log(width), fact["group"], fact["causal"], padded]
    return [*sizes, _log(waves), _filled(waves)]


def _network(fact: Mapping[str, Floats]) -> list[Floats]:
    """Bytes and who takes part: a link does not care what the bytes mean."""
    ranks, nodes = _log(fact["ranks"]), _log(fact["nodes"])
    return [_log(fact["sent"]), ranks, nodes, ranks - nodes]


def _row(fact: Mapping[str, Floats], units: float, cache_bytes: float) -> list[Floats]:
    rows, width = fact["rows"], fact["width"]
    over = _log(fact["bytes"]) - np.log(cache_bytes)
    new = [_log(fact["fresh"]), fact["fresh"] / np.maximum(1.0, fact["bytes"]), _log(fact["tensors"])]
    return [_log(rows), _log(width), _align(width), _log(rows) - np.log(units), over, *new]


def _cache_bytes(device: DeviceSpec) -> int:
    """The last cache before main memory, 1 MiB where nobody says."""
    levels = [level.capacity_bytes for level in device.memory[:-1] if level.capacity_bytes]
    return levels[-1] if levels else 1 << 20


def _waves(b: Floats, m: Floats, n: Floats, tile: tuple[int, int], units: float) -> Floats:
    """How many times over blocks of a result fill all units."""
    return b * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / units


def _filled(waves: Floats) -> Floats:
    """How full the waves are, the last one counted whole."""
    return waves / np.maximum(1.0, np.ceil(waves))


def _align(size: Floats) -> Floats:
    """log2 of the largest power of 2, up to 512, that divides a size."""
    whole = np.maximum(size, 1).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, _ALIGNED)))


def _log(value: Floats) -> Floats:
    if (value > 0).all():
        return np.asarray(np.log(value))
    return np.where(value > 0, np.log(np.maximum(value, 1e-300)), -1.0)
