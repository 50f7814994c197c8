"""Runs of ops, and the steps that the profiler marked: which of them have the same ops."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.hardware.network.collectives import waits
from rooflight.records.measurement import Float64
from rooflight.records.quantity import count_of
from rooflight.records.record import OpRecord
from rooflight.records.session import Int64
from rooflight.records.signature import OpSignature
from rooflight.sources.capture.time.kineto import STEP_MARK
from rooflight.sources.traces.file.trace import UNKNOWN, Trace, parents_of
from rooflight.sources.traces.ops.collectives import gloo_spans
from rooflight.sources.traces.ops.execution_trace import Operands
from rooflight.sources.traces.ops.signatures import Call
from rooflight.sources.traces.ownership import Ownership, Scope, is_module_call

_STEP: Final = re.compile(rf"^(ProfilerStep\*?#?\d+|{re.escape(STEP_MARK)})$")
_OPTIMIZER: Final = re.compile(r"^Optimizer\.step#")
_ITERATION: Final = re.compile(r"^(train(ing)?[ _])?(iter(ation)?|step|batch)[ _#]*\d*$", re.IGNORECASE)
_LOADER: Final = re.compile(r"^enumerate\(DataLoader\)")
_LEAST_CALLS: Final = 2
_BEFORE: Final = np.iinfo(np.int64).min
_LISTED: Final = 4  # so many names of steps are listed in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an op: the device's ``seconds`` for it (the host's where there is no device), and when it began there
    (``start``), in nanoseconds of the trace's clock; ``own`` are those seconds that it shared with no other work.
    ``launched``: when the host ran it, or launched the graph that
    did, on the thread of this number. ``operands``: the memory that it read and wrote, where it is known.
    """

    call: Call
    place: Scope
    seconds: float
    own: float
    start: int
    launched: int
    thread: int
    operands: Operands | None = None


class Runs:
    """Runs in the order in which they were launched. ``signature[i]`` is a number in ``signatures``."""

    def __init__(self, runs: Iterable[Run], signatures: Mapping[Call, OpSignature]) -> None:
        self._runs = sorted(runs, key=lambda run: (run.launched, run.start))
        numbers: dict[OpSignature, int] = {}
        of_call: dict[Call, int] = {}  # a call's hash takes less time than its signature's
        for run in self._runs:
            if run.call not in of_call:
                of_call[run.call] = numbers.setdefault(signatures[run.call], len(numbers))
        self.signatures = tuple(numbers)
        self.signature = np.array([of_call[run.call] for run in self._runs], dtype=np.int64)
        self.seconds = np.array([run.seconds for run in self._runs], dtype=np.float64)
        self.own = np.array([run.own for run in self._runs], dtype=np.float64)
        self.start = np.array([run.start for run in self._runs], dtype=np.int64)
        self.launched = np.array([run.launched for run in self._runs], dtype=np.int64)
        self.thread = np.array([run.thread for run in self._runs], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._runs)

    def records(self, chosen: Int64) -> list[OpRecord]:
        """Records of the chosen runs, without times."""
        found = []
        for number in chosen.tolist():
            place, op = self._runs[number].place, self.signatures[self.signature[number]]
            found.append(OpRecord(signature=op, module=place.module, phase=place.phase, direction=place.direction))
        return found

    def operands(self, chosen: Int64) -> list[Operands | None]:
        """The memory that the chosen runs read and wrote, where it is known."""
        return [self._runs[number].operands for number in chosen.tolist()]

    def seconds_of(self, signatures: Sequence[OpSignature]) -> tuple[float, ...]:
        """The time of all runs of each of these signatures, in sum."""
        sums = np.bincount(self.signature, self.seconds, len(self.signatures)).tolist()
        found = dict(zip(self.signatures, sums, strict=True))
        return tuple(found[signature] for signature in signatures)


def times_of_ops(owned: Ownership) -> tuple[Int64, Float64]:
    """When each op began, in nanoseconds, and how many seconds it took: the device's, the sum of its kernels, copies
    and fills, or the host's in a trace without a device.
    """
    ops, work = owned.trace.ops, owned.trace.work
    if not owned.trace.has_device:
        return _times_on_host(owned.trace)
    known = owned.accounted != UNKNOWN
    mine = owned.accounted[known]
    seconds = np.asarray(np.bincount(mine, work.length[known], len(ops)) * 1e-9, dtype=np.float64)
    start = np.full(len(ops), np.iinfo(np.int64).max)
    np.minimum.at(start, mine, work.start[known])
    return start, seconds


def _times_on_host(trace: Trace) -> tuple[Int64, Float64]:
    # collectives of gloo run on threads of its own; the op that waits for one does no work, and takes 0 s
    ops, ranges, spans = trace.ops, trace.ranges, gloo_spans(trace)
    start, seconds = ops.start.copy(), np.asarray(ops.length * 1e-9, dtype=np.float64)
    if spans:
        queued, ran = np.array(list(spans)), np.array(list(spans.values()))
        start[queued] = ranges.start[ran]
        seconds[queued] = ranges.length[ran] * 1e-9
        seconds[trace.named(ops, waits)] = 0.0
    return start, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps in order, in nanoseconds: the host began and ended step i at ``began[i]`` and ``ended[i]``. ``begin[i]`` to
    ``end[i]`` is its time on the clock of the wall: it begins when the host begins it or the device has finished the
    steps before, whichever is later, and ends when the next one begins; the last, when host and device finished it.
    """

    names: tuple[str, ...]
    began: Int64
    ended: Int64
    begin: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.names)

    def of(self, moment: Int64) -> Int64:
        """The step that the host was in at each moment, ``UNKNOWN`` outside of all."""
        if not len(self):
            return np.full(len(moment), UNKNOWN, dtype=np.int64)
        place = np.searchsorted(self.began, moment, side="right") - 1
        return np.where((place >= 0) & (moment < self.ended[np.maximum(place, 0)]), place, UNKNOWN)


NO_STEPS: Final = Steps(names=(), **dict.fromkeys(("began", "ended", "begin", "end"), np.empty(0, dtype=np.int64)))
"""Those of a trace in which none is marked."""


def marked_steps(owned: Ownership) -> Steps:
    """The profiler's steps; else those between annotations that each iteration has once, none where there are none."""
    trace = owned.trace
    names, began, ended = _apart(trace, _STEP)
    if not names:
        names, began, ended = _iterations(trace)
    begin, end = _on_the_wall(owned, began, ended)
    return Steps(names=names, began=began, ended=ended, begin=begin, end=end)


def _apart(trace: Trace, pattern: re.Pattern[str]) -> tuple[tuple[str, ...], Int64, Int64]:
    """Annotations of such names: of those that overlap, as steps of several programs do, the first."""
    apart = list[tuple[int, int, int]]()
    marks = trace.ranges.where(trace.named(trace.ranges, pattern.match))
    for mark in sorted(zip(marks.start.tolist(), marks.stop.tolist(), marks.name.tolist(), strict=True)):
        if not apart or mark[0] >= apart[-1][1]:
            apart.append(mark)
    began, ended = (np.array([mark[edge] for mark in apart], dtype=np.int64) for edge in (0, 1))
    return tuple(trace.names[name] for _, _, name in apart), began, ended


def _iterations(trace: Trace) -> tuple[tuple[str, ...], Int64, Int64]:
    """Iterations of a trace without marks: each ends with a call of the optimizer, or begins with its annotation or
    with a call of the loader. Two calls at least; of several optimizers, the one that is called most often.
    """
    for pattern, ends in ((_OPTIMIZER, True), (_ITERATION, False), (_LOADER, False)):
        names, began, ended = _apart(trace, pattern)
        kinds = [each.rstrip("0123456789") if pattern is _ITERATION else each for each in names]
        (kind, _), *_ = Counter(kinds).most_common(1) or [("", 0)]
        mine = np.array([each == kind for each in kinds], dtype=np.bool_)
        if mine.sum() < _LEAST_CALLS:
            continue
        first, last = trace.window
        edges = np.concatenate([[first], ended[mine]]) if ends else np.append(began[mine], last)
        return tuple(f"iteration {number}" for number in range(1, len(edges))), edges[:-1], edges[1:]
    return (), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def _on_the_wall(owned: Ownership, began: Int64, ended: Int64) -> tuple[Int64, Int64]:
    if not len(began):
        return began, ended
    launched, stop = launched_at(owned), owned.trace.work.stop
    done = np.full(len(began) + 1, _BEFORE, dtype=np.int64)  # [i]: the device had finished all before step i
    np.maximum.at(done, np.searchsorted(began, launched, side="right"), stop)
    before = np.maximum.accumulate(done)[:-1]
    begin = np.maximum(began, before)
    of_last = stop[(launched >= began[-1]) & (launched < ended[-1])]
    last = max(int(ended[-1]), int(of_last.max(initial=_BEFORE)), int(begin[-1]))
    return begin, np.append(begin[1:], last)


def launched_at(owned: Ownership) -> Int64:
    """When the host launched each piece of work: its own begin where the call is unknown, long ago before the trace."""
    known = owned.call != UNKNOWN
    found = np.where(owned.before_trace, _BEFORE, owned.trace.work.start)
    found[known] = owned.trace.calls.start[owned.call[known]]
    return np.asarray(found, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Steps with the same ops: their numbers, their begin and end on the wall's clock, and the runs of each, in an
    order that they share. ``shown`` is the place among them of the step with the median time.
    """

    steps: Steps
    numbers: tuple[int, ...]
    walls: tuple[tuple[int, int], ...]
    runs: tuple[Int64, ...]
    shown: int


def repeated(trace: Trace, steps: Steps, runs: Runs) -> Repeated:
    """Of the steps those that have the same ops on the same shapes, in the same order on each thread, and are most; of
    equally many those whose time is the median, so neither a warm-up nor a step that the trace cuts off. Where no step
    has ops, the whole trace is one; of a trace without any ops, its steps are alike.
    """
    order = np.lexsort((runs.start, runs.launched, runs.thread))
    step = steps.of(runs.launched)
    alike: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
    of_step: dict[int, Int64] = {}
    for number in range(len(steps)):
        mine = order[step[order] == number]
        if len(mine):
            of_step[number] = mine
            alike[runs.signature[mine].tobytes(), runs.thread[mine].tobytes()].append(number)
    walls = list(zip(steps.begin.tolist(), steps.end.tolist(), strict=True))
    if not alike and not len(runs) and len(steps):  # replays of graphs alone
        nothing = (np.empty(0, dtype=np.int64),) * len(steps)
        return Repeated(steps=steps, numbers=tuple(range(len(steps))), walls=tuple(walls), runs=nothing, shown=0)
    if not alike:
        return Repeated(steps=steps, numbers=(), walls=(trace.window,), runs=(np.arange(len(runs)),), shown=0)
    lengths = steps.end - steps.begin
    most = max(map(len, alike.values()))
    candidates = [each for each in alike.values() if len(each) == most]
    numbers = candidates[_median([float(np.median(lengths[each])) for each in candidates])]
    shown = _median(lengths[numbers].tolist())
    in_order = np.argsort(of_step[numbers[shown]], kind="stable")
    return Repeated(
        steps=steps,
        numbers=tuple(numbers),
        walls=tuple(walls[number] for number in numbers),
        runs=tuple(of_step[number][in_order] for number in numbers),
        shown=shown,
    )


def _median(values: Sequence[float]) -> int:
    """The place of the median, of two the higher."""
    return sorted(range(len(values)), key=values.__getitem__)[len(values) // 2]


def step_notes(trace: Trace, runs: Runs, chosen: Repeated) -> list[str]:
    """Which steps of the trace the session is of, and what it leaves out."""
    steps, found = chosen.steps, []
    if not chosen.numbers and len(steps):
        marked = count_of(len(steps), "step that is marked", "steps that are marked")
        return [f"No op ran in the {marked}: all calls of the trace count as one step."]
    if not chosen.numbers:
        return _unmarked(trace)
    left_out = [steps.names[number] for number in range(len(steps)) if number not in chosen.numbers]
    if steps.names and not _STEP.match(steps.names[0]):
        found.append("No steps are marked in the trace: they follow from calls of the optimizer or the loader.")
    if len(steps) > 1:
        mine = [steps.names[number] for number in chosen.numbers]
        alike = f"{_listed(mine)}, which have the same ops on the same shapes" if len(mine) > 1 else f"{mine[0]} alone"
        found.append(
            f"The trace has {len(steps)} steps. Ops, bounds and times are those of one step, measured in {alike}."
            + (f" Other ops, or other shapes, have {_listed(left_out)}." if left_out else "")
        )
    outside = int((steps.of(runs.launched) == UNKNOWN).sum())
    if outside:
        found.append(f"{count_of(outside, 'op')} outside of the profiler's steps, in the timeline alone.")
    return found


def _unmarked(trace: Trace) -> list[str]:
    parent, _ = parents_of(trace.ranges)
    outer = trace.ranges.where((parent == UNKNOWN) & ~trace.named(trace.ranges, is_module_call))
    ((name, times),) = Counter(outer.name.tolist()).most_common(1) or [(UNKNOWN, 0)]
    if times < 2:
        return []
    return [
        f'No steps are marked in the trace: all its calls count as one. "{trace.names[name]}" occurs {times} times; '
        "if that is once per step, its figures are those of so many steps. profiler.step() after each step marks them."
    ]


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"
