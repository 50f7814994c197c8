"""Which rows of measured tables cannot be true, or are not like the rows around them. See docs/reference/tables.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.costs.lanes import array_of, larger, smaller
from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import Shape, accepted, over_shapes
from rooflight.costs.registry import traits_of
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.lint import rules
from rooflight.prediction.lint.rules import SLACK, Lines, Suspicion, lines_of
from rooflight.prediction.read.measured import Floats, Integers, Mask, MeasuredOps, MeasuredTable
from rooflight.prediction.work.facts import Costed, FactRows, Facts, WorkKind, bounded, facts_from, gathered, kind_of
from rooflight.prediction.work.floors import FEWEST_PRODUCTS
from rooflight.records.quantity import Quantity, count_of, percent, three_digits
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import as_it_ran, uncached_memory_time

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
    work = bounded(ops, table.device)
    if registry.find(table.operator).ranks:
        interconnect = table.device.interconnect.where_switches_add
        traffics = [each.cost.traffic for each in work if isinstance(each, Costed)]
        least_s = sum(traffic.between_ends.least_s(interconnect) for traffic in traffics if traffic)
        return (least_s, least_s, 0.0), facts_from(work)
    return summed(work, table.device), facts_from(work)


def summed(work: Iterable[Costed | Uncosted], device: DeviceSpec) -> tuple[float, float, float]:
    """Bound, floor and bytes of operands of ops, as ``RowBounds`` has them."""
    bound_s, floor_s, operand_bytes = 0.0, 0.0, 0
    headroom = device.matrix_clock_headroom or (UNLISTED_HEADROOM if device.matrix_peak_clock_mhz else 1.0)
    for each in work:
        if isinstance(each, Uncosted):
            continue  # unknown work only raises the bound
        cost, bound = each.cost, each.bound
        bound_s += bound.time_s
        operand_bytes = larger(operand_bytes, larger(cost.least_read, cost.least_written))
        if not cost.upper:
            compute_s = bound.compute_s * _needed(each.op) / headroom
            uncached_s = uncached_memory_time(cost.least_read, cost.least_written, device.memory)
            floor_s += larger(compute_s, uncached_s)
    return bound_s, floor_s, operand_bytes


def _needed(op: OpSignature) -> float:
    weight = op.input("weight") if traits_of(op).convolution else None
    if weight is None:
        return 1.0
    share: float = smaller(1.0, FEWEST_PRODUCTS / prod(weight.shape[2:]))
    return share


Place = tuple[Path, str, int | None, str]
"""Source, kernel, line and direction: one time of all tables, as no line of a file has a kernel twice."""


class Rule(StrEnum):
    """What can be wrong with a row, or with a column."""

    FASTER_THAN_LIGHT = "faster than light"
    LARGER_THAN_MEMORY = "larger than memory"
    TOO_SLOW = "too slow"
    CONSTANT = "constant"
    FAST_BACKWARD = "fast backward"
    OUTLIER = "outlier"
    NON_MONOTONE = "non-monotone"
    BIMODAL = "bimodal"
    DUPLICATE_COLUMN = "duplicate column"
    UNUSABLE_COLUMN = "unusable column"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one row's time in one direction; with all of a column where ``row`` and ``line`` are None.

    ``source``, ``kernel`` and ``device`` are those of its table. ``factor`` is how far off it is: 2 is twice, or
    half, what it may be.
    """

    source: Path
    kernel: str
    device: str
    direction: str
    rule: Rule
    evidence: str
    factor: float
    row: int | None = None
    line: int | None = None

    @property
    def place(self) -> Place:
        """Which time it is about."""
        return self.source, self.kernel, self.line, self.direction


_WORDS: Final = {
    Rule.FASTER_THAN_LIGHT: "{time}, the device needs {other} ({factor} times): {shape}",
    Rule.TOO_SLOW: "{time}, rows of about its work suggest {other} ({factor} times): {shape}",
    Rule.CONSTANT: "{time} all along {parameter}, while the work grows {factor} times: {shape}",
    Rule.FAST_BACKWARD: "{time}, forward took {other}: {factor} times as efficient: {shape}",
    Rule.OUTLIER: "{time}, neighbours suggest {other} ({factor} times {way}): {shape}",
    Rule.NON_MONOTONE: "{time}, a neighbour with less work took {other} ({factor} times): {shape}",
    Rule.BIMODAL: "{time}, fast rows of its size take {other} ({factor} times): {shape}",
}
_LARGE: Final = (
    "as the operator is described, {count} rows need up to {bytes} at once and the device has {capacity}: "
    "the rows or the description are wrong"
)
_UNUSABLE: Final = "{share} of its rows cannot be true: what remains of it is no evidence either"
_IMPOSSIBLE: Final = frozenset((Rule.FASTER_THAN_LIGHT, Rule.CONSTANT, Rule.FAST_BACKWARD))
_MOST_IMPOSSIBLE: Final = 1 / 4
"""The share of a column's rows from which, if they cannot be true, none of them counts as true."""
_COPY: Final = "F and B agree within 1 % in {share} of the rows: one may be a copy of the other"
_SAME: Final = "F and B are identical in every row: one is a copy of the other"


def lint(tables: Iterable[MeasuredTable]) -> tuple[Finding, ...]:
    """What is wrong with the rows of tables, table by table, in the order of their rows."""
    return tuple(finding for table in tables for finding in lint_table(table))


def lint_table(table: MeasuredTable, bounds: RowBounds | None = None) -> tuple[Finding, ...]:
    """What is wrong with the rows of a table, in their order; then what is wrong with its columns. ``bounds``: the
    table's, if it is known already.
    """
    bounds = bounds or row_bounds(table)
    # over another network the same work takes another time: rows of one topology say nothing of another
    launch = registry.find(table.operator).launch_parameters if table.known else ()
    lines = tuple(each for each in lines_of(table) if each.parameter not in launch)
    found = [
        _finding(
            table,
            direction,
            rule,
            _evidence(table, number, rule, row, suspect, lines),
            float(suspect.factor[row]),
            row=row,
            line=int(table.lines[row]),
        )
        for number, direction in enumerate(table.directions)
        for rule, suspect in _suspects(table, number, bounds, lines)
        for row in map(int, np.flatnonzero(suspect.rows))
    ]
    found.sort(key=lambda finding: (finding.row or 0, finding.direction))
    return (*found, *_columns(table, bounds), *_unusable(table, found))


def _suspects(
    table: MeasuredTable, direction: int, bounds: RowBounds, lines: tuple[Lines, ...]
) -> Iterator[tuple[Rule, Suspicion]]:
    """Rules in order: rows that break physics are not used as neighbours of others."""
    time = table.seconds[:, direction]
    bound, floor = bounds.bound_s[:, direction], bounds.floor_s[:, direction]
    fast = rules.faster_than_light(time, floor)
    yield Rule.FASTER_THAN_LIGHT, fast
    impossible = fast.rows.copy()
    collective = table.known and bool(registry.find(table.operator).ranks)
    group = rules.sweeps(table.shapes) if collective else np.zeros(len(table), dtype=np.int64)
    slow = rules.too_slow(time, bound, floor, group)
    yield Rule.TOO_SLOW, slow
    same = rules.constant(time, bound, fast.rows, lines)
    yield Rule.CONSTANT, same
    impossible |= slow.rows | same.rows
    if direction == 1:
        quick = rules.fast_backward(table.seconds, bounds.bound_s)
        yield Rule.FAST_BACKWARD, quick
        impossible |= quick.rows
    if collective:
        modes = rules.bimodal(time, table.shapes, fast.rows)
        yield Rule.BIMODAL, modes
        if modes.rows.any():
            return  # of two modes, each would accuse the other
    yield Rule.OUTLIER, rules.outliers(time, bound, impossible, lines)
    yield Rule.NON_MONOTONE, rules.non_monotone(time, bound, impossible, lines)


def _evidence(
    table: MeasuredTable, direction: int, rule: Rule, row: int, suspect: Suspicion, lines: Sequence[Lines]
) -> str:
    seconds, other = float(table.seconds[row, direction]), float(suspect.other[row])
    return _WORDS[rule].format(
        time=Quantity(seconds, "s"),
        shape=" ".join(f"{name}={value}" for name, value in table.shape(row).items()),
        factor=three_digits(float(suspect.factor[row])),
        other=Quantity(other, "s"),
        way="slower" if seconds > other else "faster",
        parameter=lines[int(other)].parameter if rule is Rule.CONSTANT else "",
    )


def _columns(table: MeasuredTable, bounds: RowBounds) -> Iterator[Finding]:
    for number, direction in enumerate(table.directions):
        largest, capacity = float(bounds.operand_bytes[:, number].max()), table.device.dram_capacity_bytes
        if capacity and largest > capacity:
            count = int((bounds.operand_bytes[:, number] > capacity).sum())
            evidence = _LARGE.format(count=count, bytes=Quantity(largest, "B"), capacity=Quantity(capacity, "B"))
            yield _finding(table, direction, Rule.LARGER_THAN_MEMORY, evidence, largest / capacity)
    share = rules.copied(table.seconds)
    if share:
        same = np.array_equal(*table.seconds.T)
        evidence = _SAME if same else _COPY.format(share=percent(share))
        yield _finding(table, table.directions[1], Rule.DUPLICATE_COLUMN, evidence, 1.0)


def _unusable(table: MeasuredTable, found: Sequence[Finding]) -> Iterator[Finding]:
    for direction in table.directions:
        rows = {each.row for each in found if each.direction == direction and each.rule in _IMPOSSIBLE}
        share = len(rows) / len(table)
        if share > _MOST_IMPOSSIBLE:
            evidence = _UNUSABLE.format(share=percent(share))
            yield _finding(table, direction, Rule.UNUSABLE_COLUMN, evidence, share)


def left_out(findings: Iterable[Finding]) -> frozenset[Place]:
    """The times from which a fit does not learn: those of flagged rows, and, without a line, whole columns."""
    return frozenset(each.place for each in findings if each.line is not None or each.rule is Rule.UNUSABLE_COLUMN)


def is_flagged(table: MeasuredTable, flagged: Set[Place]) -> Mask:
    """Which times [rows, directions] of a table are among the flagged ones."""
    lines: dict[str, set[int]] = {direction: set() for direction in table.directions}
    columns = set()
    for source, kernel, line, direction in flagged:
        if (source, kernel) != (table.source, table.kernel):
            continue
        if line is None:
            columns.add(direction)
        else:
            lines[direction].add(line)
    return np.stack(
        [(direction in columns) | np.isin(table.lines, list(lines[direction])) for direction in table.directions],
        axis=1,
    )


def _finding(
    table: MeasuredTable | MeasuredOps, direction: str, rule: Rule, evidence: str, factor: float, **place: int
) -> Finding:
    return Finding(table.source, table.kernel, table.device.name, direction, rule, evidence, factor, **place)


def beats_bound(table: MeasuredTable, bounds: RowBounds, flagged: Set[Place]) -> int:
    """How many times of a table are faster than the bound; without flagged times, and collectives."""
    taken = np.isfinite(table.seconds) & ~is_flagged(table, flagged)
    return sum(
        int((taken[each.rows, number] & (table.seconds[each.rows, number] < each.values[:, 0])).sum())
        for number, facts in enumerate(bounds.facts)
        for each in facts
        if kind_of(each.key) is not WorkKind.NETWORK
    )


def beats_note(count: int) -> str:
    """That so many times beat the bound, and what makes them; nothing where none does."""
    times = count_of(count, "time is", "times are")
    why = "a cache, another algorithm, a higher clock or rounding allows that"
    return f"{times} faster than the bound without being flagged: {why}." if count else ""


DIRECTION: Final = "op"
"""What stands in a report for the direction of a row: an op of a session is one direction already."""


def lint_ops(ops: MeasuredOps) -> tuple[Finding, ...]:
    """The rows of which a call took less than nothing at all can beat, in their order."""
    found = []
    for number, row in enumerate(ops.rows):
        floor_s = summed((row.on(ops.device),), as_it_ran(ops.device, row.precision))[1]
        fastest_s = float(row.samples_s.min())
        if floor_s > SLACK * fastest_s:
            factor = floor_s / fastest_s
            shapes = " ".join(
                f"{'x'.join(map(str, each.shape)) or 'scalar'} {each.dtype}" for each in row.op.inputs[:3]
            )
            evidence = (
                f"{Quantity(fastest_s, 's')} (fastest of {count_of(len(row.samples_s), 'call')}), the device needs "
                f"{Quantity(floor_s, 's')} ({three_digits(factor)} times): {row.op.name} {shapes}"
            )
            found.append(_finding(ops, DIRECTION, Rule.FASTER_THAN_LIGHT, evidence, factor, row=number))
    return tuple(found)


def from_cache(ops: MeasuredOps) -> int:
    """How many rows had a call faster than main memory allows, though not than a cache."""
    costed = ((float(row.samples_s.min()), row.on(ops.device)) for row in ops.rows)
    return sum(isinstance(op, Costed) and not op.cost.upper and fastest_s < op.bound.time_s for fastest_s, op in costed)
