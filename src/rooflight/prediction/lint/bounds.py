"""The least time that each row of a table can have taken, and the facts of its work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.costs.lanes import array_of, larger, smaller
from rooflight.costs.registry import traits_of
from rooflight.devices.spec import DeviceSpec
from rooflight.operators import registry
from rooflight.operators.many import accepted, over_shapes
from rooflight.operators.operator import Shape
from rooflight.prediction.read.table import Floats, Integers, MeasuredTable
from rooflight.prediction.work.facts import Costed, FactRows, Facts, bounded, facts_from, gathered
from rooflight.prediction.work.floors import FEWEST_PRODUCTS
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import uncached_memory_time

UNLISTED_HEADROOM: Final = 1.1
"""How far a part may clock above its matrix peaks' clock where its file has only that it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """What bounds each row of a table; 0 where nothing is known: an operator that is not registered, a refused shape.

    ``bound_s`` [rows, directions] sums ``bound_of`` over the ops of a direction. ``floor_s`` is what nothing at all
    can beat: without what an op may find or leave in a cache that was not measured, with clocks as high as the part
    goes, and convolutions with FEWEST_PRODUCTS. ``operand_bytes`` is the most that one op reads, or writes: it must be
    in memory at once. Collectives are bound as ``network.algorithms`` has it, in switches that add.
    ``facts`` [directions] are what models learn from, by kind of work; rows without a known cost have none.
    """

    bound_s: Floats
    floor_s: Floats
    operand_bytes: Floats
    facts: tuple[tuple[FactRows, ...], ...]


def row_bounds(table: MeasuredTable) -> RowBounds:
    """The bounds of a table's rows. A shape that is there twice is costed once."""
    shapes, places = np.unique(table.shapes, axis=0, return_inverse=True)
    places = places.reshape(-1)
    least = np.zeros((3, len(shapes), len(table.directions)))
    facts: list[tuple[FactRows, ...]] = [()] * len(table.directions)
    if table.known:
        operator = registry.find(table.operator)
        columns = dict(zip(table.parameters, shapes.T, strict=True))
        taken = accepted(operator, columns)
        columns = {name: values[taken] for name, values in columns.items()}
        for number, direction in enumerate(table.directions):
            found = list(over_shapes(operator, columns, table.dtype, direction, partial(_bounds_of_ops, table)))
            for rows, (seconds_and_bytes, _) in found:
                for column, value in zip(least, seconds_and_bytes, strict=True):
                    column[taken[rows], number] = array_of(value, len(rows))
            facts[number] = _expanded(gathered((taken[rows], known) for rows, (_, known) in found), places)
    return RowBounds(
        bound_s=least[0, places], floor_s=least[1, places], operand_bytes=least[2, places], facts=tuple(facts)
    )


def _expanded(found: Iterable[FactRows], places: Integers) -> tuple[FactRows, ...]:
    """Facts of distinct shapes as those of a table's rows, whose shapes are at ``places``."""
    expanded = []
    for each in found:
        number = np.full(int(places.max(initial=-1)) + 1, -1)
        number[each.rows] = np.arange(len(each.rows))
        rows = np.flatnonzero(number[places] >= 0)
        expanded.append(FactRows(key=each.key, rows=rows, values=each.values[number[places[rows]]]))
    return tuple(expanded)


def _bounds_of_ops(
    table: MeasuredTable, _: Shape, ops: Sequence[OpSignature]
) -> tuple[tuple[float, float, float], Facts | None]:
    """Bound, floor and bytes of operands as ``RowBounds`` has them, and facts, of one direction of a row."""
    work = bounded(ops, table.device)
    if registry.find(table.operator).ranks:
        least_s = _collective_s(work, table.device)
        return (least_s, least_s, 0.0), facts_from(work)
    return summed(work, table.device), facts_from(work)


def summed(work: Iterable[Costed | Uncosted], device: DeviceSpec) -> tuple[float, float, float]:
    """Bound, floor and bytes of operands of ops, as ``RowBounds`` has them."""
    bound_s, floor_s, operand_bytes = 0.0, 0.0, 0
    for each in work:
        if isinstance(each, Uncosted):
            continue  # unknown work only raises the bound
        cost, bound = each.cost, each.bound
        bound_s += bound.time_s
        operand_bytes = larger(operand_bytes, larger(cost.bytes_read, cost.bytes_written))
        if not cost.upper:
            compute_s = bound.compute_s * _needed(each.op) / _headroom(device)
            uncached_s = uncached_memory_time(cost.bytes_read, cost.bytes_written, device.memory)
            floor_s += larger(compute_s, uncached_s)
    return bound_s, floor_s, operand_bytes


def _needed(op: OpSignature) -> float:
    """The share of an op's FLOPs that no algorithm in use does without."""
    weight = op.input("weight") if traits_of(op).convolution else None
    if weight is None:
        return 1.0
    share: float = smaller(1.0, FEWEST_PRODUCTS / prod(weight.shape[2:]))
    return share


def _headroom(device: DeviceSpec) -> float:
    known = device.matrix_clock_headroom
    return known or (UNLISTED_HEADROOM if device.matrix_peak_clock_mhz else 1.0)


def _collective_s(work: Iterable[Costed | Uncosted], device: DeviceSpec) -> float:
    """Least time of a collective, whatever the algorithm, in switches that add."""
    traffics = [each.cost.traffic for each in work if isinstance(each, Costed)]
    interconnect = device.interconnect.where_switches_add
    return sum(traffic.between_ends.least_s(interconnect) for traffic in traffics if traffic)
