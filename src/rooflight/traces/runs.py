"""Runs: every run of an op in a trace, in columns, and which of them are the steps of the session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.network.collectives import waits
from rooflight.records.measurement import Float64
from rooflight.records.record import OpRecord
from rooflight.records.session import Int32, Int64
from rooflight.records.signature import OpSignature
from rooflight.traces.execution_trace import Operands
from rooflight.traces.gloo import gloo_spans
from rooflight.traces.ownership import Ownership
from rooflight.traces.places import Place
from rooflight.traces.signatures import Call
from rooflight.traces.trace import UNKNOWN, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an op: the device's ``seconds`` for it (the host's where there is no device), and when it began there
    (``start``), in nanoseconds of the trace's clock. ``launched``: when the host ran it, or launched the graph that
    did, on the thread of this number. ``operands``: the memory that it read and wrote, where it is known.
    """

    call: Call
    place: Place
    seconds: float
    start: int
    launched: int
    thread: int
    operands: Operands | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs in the order in which they were launched. ``signature[i]`` is a number in ``signatures``."""

    signatures: tuple[OpSignature, ...]
    signature: Int64
    places: tuple[Place, ...]
    seconds: Float64
    start: Int64
    launched: Int64
    thread: Int32
    operands: tuple[Operands | None, ...]

    def __len__(self) -> int:
        return len(self.signature)

    @classmethod
    def of(cls, runs: Iterable[Run], signatures: dict[Call, OpSignature]) -> Runs:
        """Runs whose calls have these signatures."""
        in_order = sorted(runs, key=lambda run: (run.launched, run.start))
        numbers: dict[OpSignature, int] = {}
        of_call: dict[Call, int] = {}  # a call's hash takes less time than its signature's
        for run in in_order:
            if run.call not in of_call:
                of_call[run.call] = numbers.setdefault(signatures[run.call], len(numbers))
        return cls(
            signatures=tuple(numbers),
            signature=np.array([of_call[run.call] for run in in_order], dtype=np.int64),
            places=tuple(run.place for run in in_order),
            seconds=np.array([run.seconds for run in in_order], dtype=np.float64),
            start=np.array([run.start for run in in_order], dtype=np.int64),
            launched=np.array([run.launched for run in in_order], dtype=np.int64),
            thread=np.array([run.thread for run in in_order], dtype=np.int32),
            operands=tuple(run.operands for run in in_order),
        )

    def records(self, chosen: Int64) -> list[OpRecord]:
        """Records of the chosen runs, without times."""
        return [
            OpRecord(
                signature=self.signatures[self.signature[run]],
                module=self.places[run].module,
                phase=self.places[run].phase,
                direction=self.places[run].direction,
            )
            for run in chosen.tolist()
        ]

    def seconds_of(self, signatures: Sequence[OpSignature]) -> tuple[float, ...]:
        """The time of all runs of each of these signatures, in sum."""
        sums = np.bincount(self.signature, self.seconds, len(self.signatures)).tolist()
        found = dict(zip(self.signatures, sums, strict=True))
        return tuple(found[signature] for signature in signatures)


def _times_on_host(trace: Trace) -> tuple[Int64, Float64]:
    """Collectives of gloo run on threads of its own; the op that waits for one does no work, and takes 0 s."""
    ops, ranges, spans = trace.ops, trace.ranges, gloo_spans(trace)
    start, seconds = ops.start.copy(), np.asarray((ops.stop - ops.start) * 1e-9, dtype=np.float64)
    if spans:
        queued, ran = np.array(list(spans)), np.array(list(spans.values()))
        start[queued] = ranges.start[ran]
        seconds[queued] = (ranges.stop - ranges.start)[ran] * 1e-9
        idle = [number for number, name in enumerate(trace.names) if waits(name)]
        seconds[np.isin(ops.name, idle)] = 0.0
    return start, seconds


def times_of_ops(trace: Trace, owned: Ownership) -> tuple[Int64, Float64]:
    """When each op began, in nanoseconds, and how many seconds it took: the device's, the sum of its kernels, copies
    and fills, or the host's in a trace without a device.
    """
    ops, work = trace.ops, trace.work
    if not trace.has_device:
        return _times_on_host(trace)
    known = owned.accounted != UNKNOWN
    mine = owned.accounted[known]
    seconds = np.asarray(np.bincount(mine, (work.stop - work.start)[known], len(ops)) * 1e-9, dtype=np.float64)
    start = np.full(len(ops), np.iinfo(np.int64).max)
    np.minimum.at(start, mine, work.start[known])
    return start, seconds
