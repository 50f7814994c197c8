"""Measured ops: the ops of a session that was timed, such as a trace, as rows to learn from and to check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.devices.spec import DeviceSpec
from rooflight.network import collectives
from rooflight.prediction.fit.experts import Shown
from rooflight.prediction.lint.bounds import summed
from rooflight.prediction.lint.findings import Finding, Rule
from rooflight.prediction.lint.rules import SLACK
from rooflight.prediction.read.table import Floats
from rooflight.prediction.work.facts import Costed, Facts, bounded, facts_from
from rooflight.prediction.work.floors import FASTEST
from rooflight.records.quantity import Quantity, count_of, three_digits
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import as_it_ran, float32_rules

DIRECTION: Final = "op"
"""What stands in a report for the direction of a row: an op of a session is one direction already."""

_COPIES: Final = frozenset({"aten::_to_copy", "aten::copy_", "aten::to", "aten::clone"})
_LONGEST_LAUNCH_S: Final = 20e-6  # of a small copy within a device, in any trace
_LINK_BYTES_PER_S: Final = 64e9
"""Of the fastest link between a GPU and its host but NVLink-C2C: PCIe 5.0 x16."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOp:
    """A row: an op, the precision at which its float32 products ran, and the seconds of each of its calls."""

    op: OpSignature
    precision: str
    samples_s: Floats

    def on(self, device: DeviceSpec) -> Costed | Uncosted:
        """What it must do, and its bound on a device."""
        return bounded((self.op,), as_it_ran(device, self.precision))[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOps:
    """The timed ops of a session, a row for each distinct signature. ``kernel``, ``operator``, ``known`` and ``label``
    are what reports call it beside tables.
    """

    source: Path
    device: DeviceSpec
    rows: tuple[MeasuredOp, ...]
    kernel: str = "ops"
    operator: str = "ops"
    known: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def label(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def seconds(self) -> Floats:
        """The median time of each row."""
        return np.array([float(np.median(row.samples_s)) for row in self.rows], dtype=np.float64)


def measured_ops(session: Session, device: DeviceSpec, source: Path) -> MeasuredOps:
    """The rows of a session that was timed on a device. Calls that took no time launched nothing, and are left out.

    Raises ValueError for a session without times of ops, and for one whose timed step is not the recorded one.
    """
    measurement = session.measurement
    if measurement is None or not len(measurement.op_samples_s) or not measurement.of_the_session:
        raise ValueError(f"{source} has no times of ops: nothing can be learned from it, or checked")
    rules = float32_rules(session.environment, device)
    with np.errstate(invalid="ignore"):
        chosen = session.counted & (measurement.op_samples_s > 0)  # [steps, records]
    numbers = np.broadcast_to(session.columns.signature, chosen.shape)[chosen]
    seconds = measurement.op_samples_s[chosen]
    if not len(numbers):
        raise ValueError(f"{source} has no op with a time: nothing can be learned from it, or checked")
    order = np.argsort(numbers, kind="stable")
    distinct, first = np.unique(numbers[order], return_index=True)
    samples = np.split(seconds[order], first[1:])
    signatures = [session.signatures[number] for number in distinct.tolist()]
    return MeasuredOps(
        source=source,
        device=device,
        rows=tuple(
            MeasuredOp(op=op, precision=rules.precision_of(op), samples_s=each)
            for op, each in zip(signatures, samples, strict=True)
        ),
    )


def lint_ops(ops: MeasuredOps) -> tuple[Finding, ...]:
    """The rows of which a call took less than nothing at all can beat, in their order."""
    found = []
    for number, row in enumerate(ops.rows):
        floor_s = summed((row.on(ops.device),), as_it_ran(ops.device, row.precision))[1]
        fastest_s = float(row.samples_s.min())
        if floor_s > SLACK * fastest_s:
            found.append(
                Finding(
                    source=ops.source,
                    kernel=ops.kernel,
                    device=ops.device.name,
                    row=number,
                    line=None,
                    direction=DIRECTION,
                    rule=Rule.FASTER_THAN_LIGHT,
                    evidence=_evidence(row, fastest_s, floor_s),
                    factor=floor_s / fastest_s,
                )
            )
    return tuple(found)


def _evidence(row: MeasuredOp, fastest_s: float, floor_s: float) -> str:
    shapes = " ".join(f"{'x'.join(map(str, each.shape)) or 'scalar'} {each.dtype}" for each in row.op.inputs[:3])
    calls = count_of(len(row.samples_s), "call")
    return (
        f"{Quantity(fastest_s, 's')} (fastest of {calls}), the device needs {Quantity(floor_s, 's')} "
        f"({three_digits(floor_s / fastest_s)} times): {row.op.name} {shapes}"
    )


def from_cache(ops: MeasuredOps) -> int:
    """How many rows had a call faster than main memory allows, though not than a cache."""
    beaten = 0
    for row in ops.rows:
        found = row.on(ops.device)
        if isinstance(found, Costed) and not found.cost.upper and row.samples_s.min() < found.bound.time_s:
            beaten += 1
    return beaten


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
    by_key: dict[tuple[str, str], list[tuple[Facts, float]]] = {}
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
        by_key.setdefault((facts.key, name), []).append((facts, seconds))
    return Taught(shown=tuple(_shown(by_key, devices)), collectives=waiting, uncosted=uncosted)


def _from_the_host(op: OpSignature, seconds: float) -> bool:
    """Whether a copy went over the link to the host, of which no device's memory tells: it is as slow as that."""
    moved = sum(tensor.numel * tensor.item_bytes for tensor in op.inputs[:2])
    return op.name in _COPIES and moved < _LINK_BYTES_PER_S * (seconds - _LONGEST_LAUNCH_S)


def _shown(by_key: dict[tuple[str, str], list[tuple[Facts, float]]], devices: dict[str, DeviceSpec]) -> Iterator[Shown]:
    for (key, name), rows in by_key.items():
        values = np.array([facts.values for facts, _ in rows], dtype=np.float64)
        seconds = np.array([each for _, each in rows], dtype=np.float64)
        slowdown = np.maximum(FASTEST, np.log(seconds / values[:, 0]))
        yield Shown(key=key, device=devices[name], facts=values, slowdown=slowdown)
