"""Rows to learn from: measured work of tables and of sessions' ops, by kind and device, and the launches in its times.

Where a source times one call between two events and waits for it, the host's launch is in every time: work of any size
takes at least that, 31 µs for instance, and larger work takes its own time and about half of that more. Other sources
time many calls or the kernel alone. The time of a step is no sum of the former: its host launches while the device
works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.network import collectives
from rooflight.prediction.lint.findings import Finding, Place, RowBounds, is_flagged, row_bounds
from rooflight.prediction.model.model import Expert
from rooflight.prediction.read.measured import Integers, Mask, MeasuredOps, MeasuredTable
from rooflight.prediction.work.facts import FactRows, Floats, WorkKind, bounded, facts_from, is_plain, kind_of
from rooflight.prediction.work.features import features_of
from rooflight.prediction.work.floors import FASTEST, INSIDE, LEAST_S, with_launch
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import as_it_ran

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Measured work of one kind on one device: facts [rows, facts] and log(time / bound) [rows], as measured: negative
    where a cache held the data.
    """

    key: str
    device: DeviceSpec
    facts: Floats
    slowdown: Floats

    def __len__(self) -> int:
        return len(self.slowdown)

    @property
    def place(self) -> tuple[str, str]:
        """Its kind of work and device."""
        return self.key, self.device.name

    @property
    def label(self) -> str:
        """What a report calls it."""
        return " on ".join(self.place)

    @property
    def features(self) -> Floats:
        """What models see of it: [rows, features]."""
        return features_of(self.key, self.facts, self.device)

    def some(self, rows: Integers | Mask) -> Shown:
        """Some rows of it."""
        return replace(self, facts=self.facts[rows], slowdown=self.slowdown[rows])

    def sample(self, most: int) -> Shown:
        """So many rows at most, the same each time, in their order."""
        return self.some(np.sort(np.random.default_rng(0).permutation(len(self))[:most]))


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Items by what ``key`` makes of them, in their order."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def shown_by(
    table: MeasuredTable, flagged: Set[Place] = frozenset(), bounds: RowBounds | None = None
) -> Iterator[Shown]:
    """The work of a table's rows and how long it took, by kind, without the flagged times. ``bounds``: the table's, if
    it is known already.
    """
    for each, seconds, _ in unflagged(table, flagged, bounds):
        yield _shown(each.key, table.device, each.values, seconds)


def unflagged(
    table: MeasuredTable, flagged: Set[Place] = frozenset(), bounds: RowBounds | None = None
) -> Iterator[tuple[FactRows, Floats, Integers]]:
    """The facts of a table's rows by kind of work, row by row and direction by direction, with their seconds and the
    numbers of their directions; without the flagged times. ``bounds``: the table's, if it is known already.
    """
    by_key: dict[str, list[tuple[FactRows, int]]] = {}
    for number, found in enumerate((bounds or row_bounds(table)).facts):
        for each in found:
            by_key.setdefault(each.key, []).append((each, number))
    usable = np.isfinite(table.seconds) & ~is_flagged(table, flagged)
    for key, parts in by_key.items():
        rows = np.concatenate([each.rows for each, _ in parts])
        directions = np.repeat([number for _, number in parts], [len(each.rows) for each, _ in parts])
        values = np.concatenate([each.values for each, _ in parts])
        order = np.lexsort((directions, rows))
        order = order[usable[rows[order], directions[order]]]
        if len(order):
            rows, directions = rows[order], directions[order]
            yield FactRows(key=key, rows=rows, values=values[order]), table.seconds[rows, directions], directions


def together(shown: Iterable[Shown]) -> list[Shown]:
    """All rows of a kind on a device as one."""
    return [joined(group, group[0].key) for group in grouped(shown, lambda each: each.place).values()]


def joined(group: Sequence[Shown], key: str) -> Shown:
    """Rows of one device as one, of a kind of work."""
    if len(group) == 1 and group[0].key == key:
        return group[0]
    facts, slowdown = np.concatenate([each.facts for each in group]), np.concatenate([each.slowdown for each in group])
    return Shown(key=key, device=group[0].device, facts=facts, slowdown=slowdown)


def by_device(shown: Iterable[Shown]) -> dict[str, list[Shown]]:
    """Rows by the name of their device."""
    return grouped(shown, lambda each: each.device.name)


_COPIES: Final = frozenset({"aten::_to_copy", "aten::copy_", "aten::to", "aten::clone"})
_LONGEST_LAUNCH_S: Final = 20e-6  # of a small copy within a device, in any trace
_LINK_BYTES_PER_S: Final = 64e9
"""Of the fastest link between a GPU and its host but NVLink-C2C: PCIe 5.0 x16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """What ops teach, by kind of work and device; how many rows teach nothing, and why."""

    shown: tuple[Shown, ...]
    collectives: int
    uncosted: int


def shown_by_ops(sessions: Sequence[MeasuredOps], findings: Iterable[Finding] = ()) -> Taught:
    """The work of the rows of sessions, and how long it took: the median of all calls of an op on a device, in whatever
    session. Rows that ``findings`` flag are left out, and collectives, in whose time a rank waits for others.
    """
    flagged = {(finding.source, finding.row) for finding in findings}
    pooled: dict[tuple[str, OpSignature, str], list[Floats]] = {}
    devices: dict[str, DeviceSpec] = {}
    for session in sessions:
        devices.setdefault(session.device.name, session.device)
        for number, row in enumerate(session.rows):
            if (session.source, number) not in flagged:
                pooled.setdefault((session.device.name, row.op, row.precision), []).append(row.samples_s)
    by_key: dict[tuple[str, str], list[tuple[tuple[float, ...], float]]] = {}
    waiting = uncosted = 0
    for (name, op, precision), samples in pooled.items():
        if collectives.kind_of(op.name) is not None:
            waiting += 1
            continue
        facts = facts_from(bounded((op,), as_it_ran(devices[name], precision)))
        seconds = float(np.median(np.concatenate(samples)))
        if facts is None or _from_the_host(op, seconds):
            uncosted += 1
            continue
        by_key.setdefault((facts.key, name), []).append((facts.values, seconds))
    shown = (
        _shown(key, devices[name], *(np.array(each, dtype=np.float64) for each in zip(*rows, strict=True)))
        for (key, name), rows in by_key.items()
    )
    return Taught(shown=tuple(shown), collectives=waiting, uncosted=uncosted)


def _from_the_host(op: OpSignature, seconds: float) -> bool:
    """Whether a copy went over the link to the host, of which no device's memory tells: it is as slow as that."""
    moved = sum(tensor.numel * tensor.item_bytes for tensor in op.inputs[:2])
    return op.name in _COPIES and moved < _LINK_BYTES_PER_S * (seconds - _LONGEST_LAUNCH_S)


def _shown(key: str, device: DeviceSpec, facts: Floats, seconds: Floats) -> Shown:
    return Shown(key=key, device=device, facts=facts, slowdown=np.maximum(FASTEST, np.log(seconds / facts[:, 0])))


def as_tables_time(beside: Iterable[Shown], launches: Mapping[str, float]) -> list[Shown]:
    """Rows of sessions as the tables of their device have them: with ``launches`` [seconds] inside, by device."""
    found = []
    for each in beside:
        bound_s, launch_s = each.facts[:, 0], launches.get(each.device.name, 0.0)
        times_s = with_launch(bound_s * np.exp(each.slowdown), launch_s)
        found.append(replace(each, slowdown=np.log(times_s / bound_s)) if launch_s else each)
    return found


_NEAR, _SHARE = 1.15, 0.1
"""A floor: so many of the rows of a kind are no slower than this factor times the 2 % quantile."""
_SPAN: Final = 16.0
"""By what factor, at least, the bounds of the rows at a floor differ: rows that are alike take as long without one."""
_QUANTILE: Final = 0.02
_LEAST_ROWS: Final = 30


def with_launches(taught: Sequence[tuple[Expert, Shown]]) -> list[tuple[Expert, Shown]]:
    """Experts that know how much of what they learned is a launch: on a GPU where some plain work takes the same
    time at all small sizes, part of the lowest of such times.
    """
    found = {device: launch_inside_s(each) for device, each in by_device(shown for _, shown in taught).items()}
    return [
        (expert if kind_of(shown.key) is WorkKind.NETWORK else replace(expert, launch_s=found[expert.device]), shown)
        for expert, shown in taught
    ]


def launch_inside_s(device: Iterable[Shown]) -> float:
    """Seconds of a launch in the times of a device; 0 where its small work is fast, where none is known, on a CPU."""
    floors = []
    for shown in device:
        if shown.device.kind == "cpu" or not is_plain(shown.key, shown.facts) or len(shown.facts) < _LEAST_ROWS:
            continue
        seconds = shown.facts[:, 0] * np.exp(shown.slowdown)
        floor = float(np.quantile(seconds, _QUANTILE))
        near = seconds < _NEAR * floor
        bounds = shown.facts[near, 0]
        if near.mean() >= _SHARE and np.quantile(bounds, 0.95) >= _SPAN * np.quantile(bounds, 0.05):
            floors.append(floor)
    least = min(floors, default=0.0)
    return INSIDE * least if least >= LEAST_S else 0.0
