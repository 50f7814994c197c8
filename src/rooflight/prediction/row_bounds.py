"""The least time that each row of a table can have taken, and the facts of its work: all that costing it tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of, traits_of
from rooflight.devices.spec import DeviceSpec
from rooflight.operators import registry
from rooflight.operators.operator import Shape
from rooflight.prediction.features import Costed, Facts, bounded, facts_from
from rooflight.prediction.measured_table import Floats, MeasuredTable
from rooflight.records.dtypes import item_bytes
from rooflight.records.signature import OpSignature

UNLISTED_CACHE_BYTES: Final = 64 * 2**20
"""What a cache may hold on a part of which none is listed."""
NETWORK_BYTES_PER_S: Final = 100e9
"""What a GPU can send to another node: one port of 800 Gbit/s, the fastest there is."""
UNLISTED_HEADROOM: Final = 1.1
"""How far a part may clock above its matrix peaks' clock where it tells only that it does."""

_KEPT: Final = 1 << 15
"""Shapes of which the costs are kept: more than a table usually has."""
FEWEST_PRODUCTS: Final = 1.5
"""Multiplications for each number of a convolution's result and each of its input channels where FFT does it over a
large image: half a spectrum of complex numbers, three real ones each. Winograd's tiles need more (2.25 of 3x3's 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """What bounds each row of a table; 0 where nothing is known: an operator that is not registered, a refused shape.

    ``bound_s`` [rows, directions] sums ``bound_of`` over the ops of a direction. ``floor_s`` is what nothing at all
    can beat: without what an op may find or leave in a cache of unknown bandwidth, with clocks as high as the part
    goes, and convolutions with FEWEST_PRODUCTS. ``operand_bytes`` is the most that one op reads, or writes: it must be
    in memory at once. Collectives are bound by the links of their node, or between nodes by NETWORK_BYTES_PER_S.
    ``facts`` [rows][directions] are what models are taught: None where nothing is known.
    """

    bound_s: Floats
    floor_s: Floats
    operand_bytes: Floats
    facts: tuple[tuple[Facts | None, ...], ...]


def row_bounds(table: MeasuredTable) -> RowBounds:
    """The bounds of a table's rows. A shape that stands there twice is costed once."""
    shapes, places = np.unique(table.shapes, axis=0, return_inverse=True)
    least = np.zeros((len(shapes), len(table.directions), 3))
    facts: list[tuple[Facts | None, ...]] = [(None,) * len(table.directions)] * len(shapes)
    operator = registry.find(table.operator) if table.known else None
    for number, values in enumerate(shapes.tolist() if operator else ()):
        shape = dict(zip(table.parameters, values, strict=True))
        if operator is None or operator.refusal(shape) is not None:
            continue
        costs = _costs(operator.name, tuple(values), table.dtype)
        halves = [bounded(half, table.device) for half in costs[: len(table.directions)]]
        facts[number] = tuple(map(facts_from, halves))
        if operator.ranks:
            least[number, 0, :2] = _collective_s(operator.name, shape, table)
        else:
            least[number] = [_sums(half, table.device) for half in halves]
    rows = places.reshape(-1)
    return RowBounds(
        bound_s=least[rows, :, 0],
        floor_s=least[rows, :, 1],
        operand_bytes=least[rows, :, 2],
        facts=tuple(facts[row] for row in rows.tolist()),
    )


@lru_cache(maxsize=_KEPT)
def _costs(
    name: str, values: tuple[int, ...], dtype: str
) -> tuple[tuple[tuple[OpSignature, OpCost | Uncosted], ...], ...]:
    """The ops of each direction with their costs: the same shapes are often measured on one device after the other."""
    operator = registry.find(name)
    work = operator.work(dict(zip(operator.parameters, values, strict=True)), dtype)
    return tuple(tuple((op, cost_of(op)) for op in half) for half in (work.forward, work.backward))


def _sums(work: Iterable[Costed], device: DeviceSpec) -> tuple[float, float, int]:
    bound_s, floor_s, operand_bytes = 0.0, 0.0, 0
    for each in work:
        cost, bound = each.cost, each.bound
        if isinstance(cost, Uncosted) or bound is None:
            continue  # unknown work only raises the bound
        bound_s += bound.time_s
        operand_bytes = max(operand_bytes, cost.bytes_read, cost.bytes_written)
        if not cost.upper:
            compute_s = bound.compute_s * _needed(each.op) / _headroom(device)
            floor_s += max(compute_s, _uncached_s(cost, device))
    return bound_s, floor_s, operand_bytes


def _needed(op: OpSignature) -> float:
    """The share of an op's FLOPs that no algorithm in use does without."""
    weight = op.input("weight") if traits_of(op.name).convolution else None
    return 1.0 if weight is None else min(1.0, FEWEST_PRODUCTS / prod(weight.shape[2:]))


def _headroom(device: DeviceSpec) -> float:
    known = device.matrix_clock_headroom
    return known or (UNLISTED_HEADROOM if device.matrix_peak_clock_mhz else 1.0)


def _uncached_s(cost: OpCost, device: DeviceSpec) -> float:
    """Least time to move what caches cannot have held before nor hold after."""
    levels, slowest_s, held = device.memory, 0.0, 0
    if not any(level.capacity_bytes for level in levels[:-1]):
        held = UNLISTED_CACHE_BYTES
    for level in levels:
        if level.bytes_per_s:
            crossing = max(0, cost.bytes_read - held) + max(0, cost.bytes_written - held)
            slowest_s = max(slowest_s, crossing / level.bytes_per_s)
        held = max(held, level.capacity_bytes or 0)
    return slowest_s


def _collective_s(name: str, shape: Shape, table: MeasuredTable) -> float:
    """Least time of a collective, whatever the algorithm: what must leave a rank, and what must leave its node.

    A node's ranks share its ports, one a rank. An all-reduce sends each element at least once, in switches that add.
    """
    nodes, ranks_per_node = shape["nodes"], shape["gpus_per_node"]
    ranks = nodes * ranks_per_node
    size = shape["elements"] * item_bytes(table.dtype)
    if ranks < 2:
        return 0.0
    rank_bytes, port_bytes = {
        "all_reduce": (size, size / ranks_per_node),
        "all_gather": (size, (nodes - 1) * size),
        "reduce_scatter": (size * (ranks - 1) / ranks, size * (nodes - 1) / nodes / ranks_per_node),
        "all_to_all": (size * (ranks - 1) / ranks, size * (nodes - 1) / nodes),
        "p2p": (size, size),
    }.get(name, (0, 0))
    link = table.device.link_bytes_per_s
    if nodes > 1:
        return port_bytes / NETWORK_BYTES_PER_S
    received = (ranks - 1) * size if name == "all_gather" else rank_bytes
    return received / link if link else 0.0
