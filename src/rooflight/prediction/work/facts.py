"""What is read off pieces of work before anything is learned of them: bounds on a device, sizes of their main ops.

Of one piece of work, or of one at many shapes (``costs.lanes``): its numbers are lanes then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.lanes import array_of, is_lanes, real
from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import Columns, Operator, over_shapes
from rooflight.costs.registry import cost_of, traits_of
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.network import collectives
from rooflight.hardware.network.algorithms import least_s
from rooflight.hardware.network.groups import RankGroup
from rooflight.hardware.network.topology import Topology
from rooflight.records.dtypes import tensor_dtype
from rooflight.records.signature import HIDDEN, OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec
from rooflight.roofline.bound import Bound, bound_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PRODUCT_KEY: Final = "gemm"
"""The key that all products of matrices share."""
OTHERS_KEY: Final = "other ops"
"""The key of what is learned from all ops but products, attention and collectives, for ops that nobody measured."""
OTHER_REDUCTIONS_KEY: Final = "other reductions"
"""The same of norms, sums and the like, which wait for more than memory."""
ALL_REDUCE_KEY: Final = collectives.CollectiveKind.ALL_REDUCE.value
CONVOLUTION_KEY: Final = "aten::convolution"
"""The key of all convolutions, whatever library a name says; that of their backward passes is beside it."""
CONVOLUTION_BACKWARD_KEY: Final = "aten::convolution_backward"
ATTENTION_KEY: Final = "aten::scaled_dot_product_attention"
"""The key of attention forward in whatever kernel; that of its backward is beside it."""
ATTENTION_BACKWARD_KEY: Final = "rooflight::scaled_dot_product_attention_backward"
_NOT_AS_NAMED: Final = "rows of "
"""What the key begins with of work that is called attention or convolution without being known as such: most of it is
another op.
"""
_NETWORK: Final = "c10d"
"""What the names of collectives have in common: ``c10d::allreduce_``, ``_c10d_functional::all_reduce``."""
_COLLECTIVES: Final = frozenset(kind.value for kind in collectives.CollectiveKind)
_CONVOLUTIONS: Final = (CONVOLUTION_KEY, CONVOLUTION_BACKWARD_KEY)
_FIRST_STEP: Final = "aten::_foreach_zero_+aten::_fused_"
"""What the names of a fused optimizer's first step begin with: it fills the states with zeros."""
_SHIFT: Final = "rooflight::scale_and_shift"
_NEGLIGIBLE: Final = 0.01
_REDUCTIONS: Final = ("norm", "softmax", "sum", "mean", "arg", "max", "min", "logsumexp", "var", "prod", "loss")
"""What is in the names of ops that reduce."""


class WorkKind(Enum):
    """Which facts and features there are of a piece of work."""

    PRODUCT = "product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NETWORK = "network"
    ROWS = "rows"


_COMMON: Final = ("bound_s", "compute_s", "memory_s", "bytes", "matrix", "vector", "ops", "products", "item")
_CONVOLVED: Final = ("positions", "out", "in", "taps", "groups", "transposed", "dims", "stride", "dilation")
FACTS: Final[Mapping[WorkKind, tuple[str, ...]]] = {
    # b, m, n and k of the largest product and of the next; whether the largest has its operands transposed
    WorkKind.PRODUCT: (*_COMMON, "b", "m", "n", "k", "other b", "other m", "other n", "left", "right"),
    WorkKind.ATTENTION: (*_COMMON, "heads", "queries", "keys", "width", "group", "causal"),
    # positions of the result, in the whole batch; channels of a group, out and in; taps of the kernel; groups; whether
    # it is transposed; in how many dimensions; products of the strides and of the dilations; whether the channels of a
    # position lie together in memory
    WorkKind.CONVOLUTION: (*_COMMON, *_CONVOLVED, "channels last"),
    # bytes that a rank sends; ranks that take part, and the nodes they are on
    WorkKind.NETWORK: (*_COMMON, "sent", "ranks", "nodes"),
    # sizes of the largest tensor, or of a list; bytes written to memory that no input has; tensors in all; whether the
    # last dimension of the largest lies apart in memory, and whether another large one lies in another order
    WorkKind.ROWS: (*_COMMON, "rows", "width", "fresh", "tensors", "strided", "reordered"),
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FactRows:
    """Facts of the works of one kind among many: ``rows`` are their places there, ``values`` [rows, facts]."""

    key: str
    rows: Integers
    values: Floats


def kind_of(key: str) -> WorkKind:
    """Which facts and features go with a key."""
    if key == PRODUCT_KEY:
        return WorkKind.PRODUCT
    if key in _COLLECTIVES:
        return WorkKind.NETWORK
    if key in _CONVOLUTIONS:
        return WorkKind.CONVOLUTION
    return WorkKind.ATTENTION if "attention" in key and not key.startswith(_NOT_AS_NAMED) else WorkKind.ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """An op with its cost, and its bound on a device."""

    op: OpSignature
    cost: OpCost
    bound: Bound


def facts_of(ops: Iterable[OpSignature], device: DeviceSpec) -> Facts | None:
    """Facts of ops that run one after the other as one piece of work; None if one has no cost, or nothing to do."""
    return facts_from(bounded(ops, device))


def bounded(ops: Iterable[OpSignature], device: DeviceSpec) -> tuple[Costed | Uncosted, ...]:
    """Ops with their costs and bounds; why not, of an op without a cost. A send counts as one between nodes where its
    group is on several, switches in a node add nothing, and FLOPs and bytes count that could be avoided: that is what
    models are taught, and what is asked of them.
    """
    costs = ((op, cost_of(_as_run(op))) for op in ops)
    return tuple(
        cost if isinstance(cost, Uncosted) else Costed(op=op, cost=cost, bound=bound_of(_as_taught(cost), device))
        for op, cost in costs
    )


def _as_run(op: OpSignature) -> OpSignature:
    """The op whose kernels look at every pair that a mask hides: those of ``scaled_dot_product_attention`` do."""
    if op.attribute(HIDDEN) is None or op.name.startswith("higher_order::"):
        return op
    return replace(op, attributes=tuple(each for each in op.attributes if each[0] != HIDDEN))


def _as_taught(cost: OpCost) -> OpCost:
    traffic = cost.traffic and cost.traffic.between_ends
    if traffic is not None and traffic.group.nodes == 1:
        traffic = None  # what a rank sends, over its link
    return replace(cost, avoidable_flops=0, avoidable_read=0, avoidable_written=0, traffic=traffic)


def as_all_reduce(facts: Floats, device: DeviceSpec) -> Floats:
    """Facts [works, facts] of collectives with the bound of an all-reduce that sends as many bytes among as many."""
    sent, ranks, nodes = facts[:, -3:].T
    topology = Topology(nodes=nodes, ranks_per_node=ranks / nodes, interconnect=device.interconnect)
    payload = sent / collectives.bus_factor(collectives.CollectiveKind.ALL_REDUCE, np.maximum(ranks, 2))
    network_s = np.asarray(least_s(collectives.CollectiveKind.ALL_REDUCE, payload, topology))
    return np.column_stack([np.maximum(network_s, facts[:, 1:3].max(axis=1)), facts[:, 1:]])


def facts_from(work: Sequence[Costed | Uncosted]) -> Facts | None:
    """``facts_of`` ops whose bounds are known already.

    Products share a key, attention and convolutions have one for each direction, collectives one for each kind
    ("all-reduce"), anything else one for each sequence of op names.
    """
    known = [each for each in work if isinstance(each, Costed)]
    if not known or len(known) < len(work):
        return None
    common = _common(known)
    if common[0] <= 0:
        return None
    main = max(known, key=lambda each: each.bound.time_s)
    found = _product(known, main) or _attention(main) or _convolution(main) or _collective(known)
    key, values = found or _rows(known, main, common[0])
    return Facts(key=key, values=tuple(map(real, (*common, *values))))


def facts_of_shapes(
    operator: Operator, shapes: Columns, dtype: str, direction: str, device: DeviceSpec
) -> tuple[FactRows, ...]:
    """Facts of one direction of an operator at many shapes, all of which it takes, by kind of work; of no shape at
    which there is nothing to do, or an op has no cost.
    """
    found = over_shapes(operator, shapes, dtype, direction, lambda _, ops: facts_of(ops, device))
    return gathered(found)


def gathered(found: Iterable[tuple[Integers, Facts | None]]) -> tuple[FactRows, ...]:
    """Facts of many pieces of work by key, from which works they are of, and facts that may hold lanes for these."""
    by_key: dict[str, list[tuple[Integers, Floats]]] = {}
    for rows, facts in found:
        if facts is not None:
            alone = len(rows) == 1 and not any(map(is_lanes, facts.values))
            columns = [array_of(value, len(rows)) for value in facts.values] if not alone else []
            values = np.array([facts.values]) if alone else np.stack(columns, axis=1)
            by_key.setdefault(facts.key, []).append((rows, values))
    joined = {key: [np.concatenate(arrays) for arrays in zip(*parts, strict=True)] for key, parts in by_key.items()}
    return tuple(FactRows(key=key, rows=rows, values=values) for key, (rows, values) in joined.items())


_Found = tuple[str, tuple[float, ...]]
"""A key, and the values of the facts that come after the common ones."""


def _product(work: Sequence[Costed], main: Costed) -> _Found | None:
    sizes = product_sizes(main.op) if main.cost.matrix_flops else None
    if sizes is None:
        return None
    other, longest_s = sizes, -1.0
    for each in work:
        if each is not main and each.cost.matrix_flops and each.bound.time_s > longest_s:
            found = product_sizes(each.op)
            if found is not None:
                other, longest_s = found, each.bound.time_s
    return PRODUCT_KEY, (*sizes, *other[:3], *_transposed(main.op))


def _attention(main: Costed) -> _Found | None:
    if not main.cost.matrix_flops or "attention" not in main.op.name:
        return None
    sizes = attention_sizes(main.op)
    if sizes is None:
        return None
    if "scaled_dot_product" not in main.op.name:
        return main.op.name, sizes
    return (ATTENTION_BACKWARD_KEY if "backward" in main.op.name else ATTENTION_KEY), sizes


_FORWARD: Final[Mapping[str, float]] = {"matrix": 0.4, "compute_s": 0.4, "bytes": 0.5, "memory_s": 0.5}
"""What attention forward has of what backward has: two of five products, and half of the tensors."""


def forward_of(facts: Floats) -> Floats:
    """Facts [works, facts] of attention forward, about, from those of its backward."""
    shares = np.array([_FORWARD.get(name, 1.0) for name in FACTS[WorkKind.ATTENTION]])
    forward: Floats = facts * shares
    forward[:, 0] = np.maximum(forward[:, 1], forward[:, 2])
    return forward


def on_same_chip(key: str, facts: Floats, device: DeviceSpec, other: DeviceSpec) -> Floats:
    """Facts [works, facts] on another device of the same chip, with its bandwidth."""
    names, new = FACTS[kind_of(key)], facts.copy()
    compute, memory = names.index("compute_s"), names.index("memory_s")
    new[:, memory] *= (device.dram_bytes_per_s or 1.0) / (other.dram_bytes_per_s or 1.0)
    roofs = (np.maximum(each[:, compute], each[:, memory]) for each in (new, facts))
    new[:, 0] *= np.divide(*roofs)
    return new


def _convolution(main: Costed) -> _Found | None:
    """x [B, Cin, in...], weight [Cout, Cin / g, k...], or transposed [Cin, Cout / g, k...]."""
    op = main.op
    x, weight = op.input("input") or op.input("self"), op.input("weight")
    out = op.input("grad_output") or (op.outputs[0] if op.outputs else None)
    if not traits_of(op).convolution or not main.cost.matrix_flops or x is None or weight is None or out is None:
        return None
    dims = len(weight.shape) - 2
    if dims < 1 or len(x.shape) < dims + 1 or len(out.shape) < dims + 1:
        return None
    channels_in, channels_out = x.shape[-dims - 1], out.shape[-dims - 1]
    positions = prod(out.shape[: -dims - 1]) * prod(out.shape[-dims:])
    transposed = bool(op.attribute("transposed")) or "transpose" in op.name
    groups = _setting(op, "groups")
    shape = (positions, channels_out / groups, channels_in / groups, prod(weight.shape[2:]), groups)
    last = _nearest(x) == len(x.shape) - dims - 1
    how = (float(transposed), dims, _setting(op, "stride"), _setting(op, "dilation"), float(last))
    return (CONVOLUTION_BACKWARD_KEY if "backward" in op.name else CONVOLUTION_KEY), (*shape, *how)


def _setting(op: OpSignature, name: str) -> int:
    value = op.attribute(name)
    if isinstance(value, tuple | list):
        return prod(each for each in value if isinstance(each, int)) or 1
    return value if isinstance(value, int) and value else 1


def _collective(work: Sequence[Costed]) -> _Found | None:
    kind = collectives.kind_of(work[0].op.name)
    sent = work[0].cost.bytes_sent
    if kind is None or len(work) > 1 or not sent:
        return None
    group = RankGroup.of(work[0].op).taking_part(kind)
    return kind.value, (sent, group.size, group.nodes)


def _rows(work: Sequence[Costed], main: Costed, bound_s: float) -> _Found:
    """What takes next to nothing, as counting a step does, makes no other kind of work of it."""
    names = "+".join(dict.fromkeys(_name(each.op) for each in work if each.bound.time_s >= _NEGLIGIBLE * bound_s))
    key = _NOT_AS_NAMED + names if "attention" in names or names in _CONVOLUTIONS else names
    fresh = sum(_fresh_bytes(each.op) for each in work)
    tensors = sum(len(each.op.inputs) + len(each.op.outputs) for each in work)
    return key, (*_rows_and_width(main.op), fresh, tensors, *_layout(main.op))


def _name(op: OpSignature) -> str:
    """What work an op is: a batch norm with known means and variances reduces nothing."""
    return _SHIFT if "_batch_norm" in op.name and op.attribute("training") is False else op.name


def is_plain(key: str, facts: Floats) -> bool:
    """Whether rows of facts [rows, facts] are of ops without matrix products, which have much in common, other than
    with those that wait for a network, and with an optimizer's first step, which allocates its states.
    """
    apart = _NETWORK in key or _FIRST_STEP in key
    return kind_of(key) is WorkKind.ROWS and not apart and not facts[:, _COMMON.index("matrix")].any()


def key_of_others(key: str) -> str:
    """The key of what is learned of work like this from ops of other names."""
    reduces = any(part in key for part in _REDUCTIONS) or key == OTHER_REDUCTIONS_KEY
    return OTHER_REDUCTIONS_KEY if reduces else OTHERS_KEY


def product_sizes(op: OpSignature) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of [b, m, k] @ [b, k, n]; None for what is no such product."""
    if not traits_of(op).product:
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
    causal = bool(op.attribute("is_causal"))
    return prod(outer), queries, key.shape[-2], width, max(1, heads // max(1, kv_heads)), causal


def _left(op: OpSignature) -> TensorSpec | None:
    if sum(len(tensor.shape) > 1 for tensor in op.inputs) < 2:
        return None
    given = (op.input(name) for name in ("mat1", "batch1", "self", "input"))
    return next((tensor for tensor in given if tensor is not None and len(tensor.shape) > 1), None)


def _transposed(op: OpSignature) -> tuple[float, float]:
    right = op.input("mat2") or op.input("batch2") or op.input("weight")
    return _is_transposed(_left(op)), _is_transposed(right)


def _is_transposed(tensor: TensorSpec | None) -> float:
    return float(tensor is not None and bool(tensor.strides) and tensor.strides is not None and tensor.strides[-1] > 1)


def _common(work: Sequence[Costed]) -> tuple[float, ...]:
    return (
        sum(each.bound.time_s for each in work),
        sum(each.bound.compute_s for each in work),
        sum(each.bound.memory_s for each in work),
        sum(each.cost.bytes_moved for each in work),
        sum(each.cost.matrix_flops for each in work),
        sum(each.cost.vector_flops for each in work),
        len(work),
        sum(each.cost.matrix_flops > 0 for each in work),
        max((tensor.item_bytes for each in work for tensor in each.op.inputs), default=1),
    )


def _rows_and_width(op: OpSignature) -> tuple[float, float]:
    """Rows and width of the largest tensor; of lists of tensors how many they are, and how long on average."""
    if traits_of(op).over_lists:
        listed = op.named("self") or op.outputs
        return len(listed), sum(tensor.numel for tensor in listed) / max(1, len(listed))
    if (rows := normalized_rows(op)) is not None:
        return rows, op.inputs[0].numel / rows
    largest = max((*op.inputs, *op.outputs), key=lambda tensor: tensor.numel, default=None)
    width = largest.shape[-1] if largest is not None and largest.shape else 1
    return largest.numel // max(1, width) if largest is not None else 1, width


def _layout(op: OpSignature) -> tuple[float, float]:
    """Whether the last dimension of the largest tensor lies apart in memory; whether one half as large or more is
    written or read in another order, as in a transposition that is written out: half of that where only other
    dimensions than the nearest change places, as heads do.
    """
    tensors = (*op.inputs, *op.outputs)
    if traits_of(op).over_lists or all(tensor.strides is None for tensor in tensors):
        return 0.0, 0.0
    largest = max(tensors, key=lambda tensor: tensor.numel)
    large = [each for each in tensors if len(each.shape) > 1 and 2 * each.numel > largest.numel]
    near = {_nearest(tensor) for tensor in large}
    orders = {_order(each) for each in large if len(each.shape) == len(largest.shape) and 0 not in (each.strides or ())}
    return float(_nearest(largest) != -1), 1.0 if len(near) > 1 else 0.5 * (len(orders) > 1)


def _nearest(tensor: TensorSpec) -> int:
    """The dimension whose entries lie next to each other in memory; -1 if it is the last of several entries."""
    if tensor.strides is None:
        return -1
    lain = [(stride, -place) for place, stride in enumerate(tensor.strides) if stride and tensor.shape[place] > 1]
    last = max((-place for _, place in lain), default=-1)
    nearest = -min(lain, default=(1, -last))[1]
    return -1 if nearest == last else nearest


def _order(tensor: TensorSpec) -> tuple[int, ...]:
    """Its dimensions of several entries, from those that lie farthest apart in memory to the nearest."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    strides = tensor.strides
    return tuple(dims if strides is None else sorted(dims, key=lambda dim: (-strides[dim], dim)))


def normalized_rows(op: OpSignature) -> float | None:
    """Over how many pieces of its input an op takes means and variances, or their gradients, each in one block of
    threads: rows of a layer norm, groups of each entry of the batch, channels. None for other ops.
    """
    x = op.inputs[0] if op.inputs else None
    if x is None or not x.numel or len(x.shape) < 2:
        return None
    if op.name == "aten::native_layer_norm":
        over = op.attribute("normalized_shape")
        return x.numel / max(1, prod(over)) if isinstance(over, tuple | list) and over else None
    if op.name.startswith("aten::native_group_norm"):
        groups = op.attribute("group")
        return x.shape[0] * groups if isinstance(groups, int) and groups else None
    return x.shape[1] if "_batch_norm" in op.name and _name(op) == op.name else None


def _fresh_bytes(op: OpSignature) -> int:
    """Bytes of the outputs in memory that no input has: on a CPU, fresh memory costs more than its traffic."""
    held = {tensor.storage for tensor in op.inputs} - {UNSHARED}
    return sum(tensor.numel * tensor.item_bytes for tensor in op.outputs if tensor.storage not in held)


_LARGEST: Final = 2.0**53  # from here on a float no longer distinguishes integers


def product_facts(
    m: Floats, n: Floats, k: Floats, dtype: str, device: DeviceSpec, *, batch: Floats | float = 1.0
) -> Floats:
    """Facts [products, facts] of [batch, m, k] @ [batch, k, n], as ``facts_of`` has them of contiguous operands.

    Raises ValueError for an unknown dtype, one without a peak on the device, and sizes that are not positive integers.
    """
    sizes = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (batch, m, n, k)))
    if not all(((each >= 1) & (each < _LARGEST) & (each == np.floor(each))).all() for each in sizes):
        raise ValueError("sizes of products must be positive integers")
    name = tensor_dtype(dtype)
    if device.matrix_peak(name) is None or device.dram_bytes_per_s is None:
        raise ValueError(f"{device.name} has no known {name} matrix peak or memory bandwidth")
    columns = {size: each.astype(np.int64) for size, each in zip("bmnk", sizes, strict=True)}
    operator = registry.find("batched_mm")
    facts = np.zeros((len(sizes[0]), len(FACTS[WorkKind.PRODUCT])))
    for found in facts_of_shapes(operator, columns, name, operator.directions[0], device):
        facts[found.rows] = found.values
    return facts
