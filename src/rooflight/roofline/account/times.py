"""Times: what an analysis knows of where a step's time goes, call by call.

A step takes what its host does and what its device does. On a CPU both are one thread: the times of ops and of the
gaps between them add up. On a GPU the longer of both is the step, and what neither explains is idle time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import traits_of
from rooflight.hardware.network.collectives import kind_of
from rooflight.records.account import REGIMES
from rooflight.records.measurement import Float64
from rooflight.records.session import Flags, Int8, Int64
from rooflight.records.signature import ON_HOST
from rooflight.records.timeline import Between, HostLine, Idle, IdleCause, Timeline, Within
from rooflight.roofline.account.pages import freed_bytes, made_bytes
from rooflight.roofline.bound import regime_of
from rooflight.roofline.costed import CostedSession
from rooflight.roofline.host import crosses

LONG_GAP_S: Final = 1e-4  # between two ops of one thread: the Python of torch needs less
_FREEING_S: Final = 1e-10  # a byte, at most: an EPYC took 0.6e-10 to 0.7e-10 for tensors of 32 and 128 MB
_MANY_PAGES: Final = 256  # a step: 1 MiB
_USUAL_GAP_S: Final = 1e-5
USUAL_OP_S: Final = 5e-6  # of a call that does nothing, in eager torch
_FLOOR: Final = 10  # percentile of the times of calls that work: what a call takes that does nothing
_LEAST_RUN: Final = 0.2  # of a step that other programs hold up: what is taken for its own at least
_MOST_FLOOR_S: Final = 1e-5

_BACKENDS: Final = ("nccl:", "rccl:", "gloo:", "mpi:")
OWN_CODE: Final = ("other", "run", "calls without gradients")
"""Names of what lies before a step that is the script's own; of a run without a step, all of it."""
WAITS: Final = (Within.LOADER, Within.STARTING, Within.PROCESS, Within.COMPILING, Within.COLLECTIVES, Within.SAVING)
"""What a line of the host may be in that is no op."""


class Times:
    """Arrays have one entry per counted call, in order. ``seconds`` of each call on the device, measured, predicted or
    bounded; ``host_s`` what the host takes for it beside that; ``other_s`` is what else the step waits for.
    """

    def __init__(self, analysis: CostedSession) -> None:
        self.analysis, self.session = analysis, analysis.session
        self.records: Int64 = np.flatnonzero(self.session.counted)
        columns = self.session.columns
        self.signature: Int64 = columns.signature[self.records].astype(np.int64)
        self.direction = columns.direction[self.records]
        self.module = columns.module[self.records]
        self.on_cpu = analysis.device.kind == "cpu"

    # -- times --------------------------------------------------------------------------------------------------------

    @cached_property
    def measured(self) -> bool:
        """Whether the step and its ops were timed on this device."""
        return self.analysis.totals.measured_s is not None and self.analysis.totals.ops_measured_s is not None

    @cached_property
    def source(self) -> str:
        """Where the times come from."""
        if self.analysis.totals.measured_s is not None:
            return "measured"
        return "predicted" if self.analysis.totals.predicted_wall is not None else "bound"

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step: measured, else predicted, else at least."""
        totals = self.analysis.totals
        wall = totals.predicted_wall
        return totals.measured_s or (wall.time_s if wall else 0.0) or totals.op_bound_s

    @property
    def each(self) -> str:
        """What seconds are of, in words: of each step, or of a run in which none was found."""
        run = self.session.run
        return "a step" if run is None or run.step is not None else "in all"

    @property
    def between(self) -> Sequence[Between]:
        """What lies before a script's step."""
        return self.session.run.between if self.session.run is not None else ()

    @cached_property
    def before(self) -> Sequence[HostLine]:
        """Lines of the script's own code before a step, in seconds of one."""
        own = [each for each in self.between if each.name in OWN_CODE and each.lines]
        sums = [sum(line.seconds for line in each.lines) for each in own]
        return tuple(
            replace(
                line, seconds=line.seconds * each.seconds / total_s, asleep_s=line.asleep_s * each.seconds / total_s
            )
            for each, total_s in zip(own, sums, strict=True)
            for line in each.lines
            if line.within not in WAITS
        )

    @cached_property
    def whole_s(self) -> float:
        """Seconds of a step and, of a script's, of what lies before it."""
        return self.step_s + sum(each.seconds for each in self.between)

    @cached_property
    def bound_s(self) -> Float64:
        """The bound of each call, 0 where it has none."""
        bounds = np.array([bound.time_s if bound else 0.0 for bound in self.analysis.bounds], dtype=np.float64)
        return self._by_call(bounds)

    @cached_property
    def fused_s(self) -> Float64:
        """Of each call its share of the fused bound; its own bound where it is not known which results ops share."""
        if self.analysis.without_storages:
            return self.bound_s
        return np.asarray(self.analysis.program.fused_op_s[self.records], dtype=np.float64)

    @cached_property
    def own_s(self) -> Float64:
        """Of each call what no other shares: of work that runs at the same time each has a part; where only begins are
        known, of collectives what no computing hides.
        """
        measurement = self.analysis.measurement
        if measurement is None or not len(measurement.op_own_s):
            found, shown = self.analysis.communication, 1.0
            if found.measured_s and found.exposed_step_s is not None:
                shown = min(1.0, found.exposed_step_s / found.measured_s)
            return np.where(self.collectives, self.seconds * shown, self.seconds)
        return np.asarray(np.nan_to_num(measurement.op_own_s[:, self.records]).mean(axis=0), dtype=np.float64)

    @cached_property
    def seconds(self) -> Float64:
        """Of each call: measured, predicted or its bound. What was measured sums to no more than the step. The host
        takes for views what a CPU takes for them.
        """
        return np.asarray(self.op_s * self.works if self.on_cpu and self.measured else self.op_s, dtype=np.float64)

    @cached_property
    def op_s(self) -> Float64:
        """``seconds``, those of views on a CPU too."""
        if self.measured and self.analysis.measurement is not None:
            found = np.nan_to_num(self.analysis.measurement.op_s[self.records])
            found = self._as_compiled(found) if self.merged.any() else found
            # a profiler slows short ops down, and what took part of a step took no more than it
            return found * min(1.0, self.step_s / max(float(found.sum()), 1e-12)) if self.on_cpu else found
        if self.analysis.predicts:
            return self.analysis.predicted_op_s
        if self.on_cpu and self.analysis.totals.measured_s:  # of compiled code: the step shared out by the bounds
            guessed = np.where(self.merged, self.fused_s, self.bound_s + USUAL_OP_S * self.works)
            waited_s = self.in_library(*WAITS)[0]
            return np.asarray(guessed * (self.step_s - waited_s) / max(float(guessed.sum()), 1e-12))
        return self.bound_s

    @cached_property
    def merged(self) -> Flags:
        """Calls that compiled code does in the timed steps, in kernels of its own."""
        compiled = np.array([place.compiled for place in self.session.places], dtype=np.bool_)
        return np.asarray(compiled[self.session.columns.place[self.records]])

    def _as_compiled(self, eager_s: Float64) -> Float64:
        """Of calls timed eagerly, those that compiled code does share what the others leave of a step, by what fusion
        leaves of the time of each.
        """
        merged = self.merged
        with np.errstate(invalid="ignore", divide="ignore"):
            found = eager_s * np.where(merged & (self.bound_s > 0), np.minimum(1.0, self.fused_s / self.bound_s), 1.0)
        gaps_s = _USUAL_GAP_S * np.count_nonzero(~merged) + (float(self._least_gaps.sum()) if len(self._gaps) else 0.0)
        rest_s = self.step_s - float(found[~merged].sum()) - gaps_s - self.in_library(*WAITS)[0]
        found[merged] *= max(0.0, rest_s) / max(float(found[merged].sum()), 1e-12)
        return np.asarray(found)

    @cached_property
    def works(self) -> Flags:
        """Calls that do more than look at memory in another way."""
        views = np.array([not traits_of(op).view for op in self.session.signatures], dtype=np.bool_)
        return np.asarray(self._by_call(views), dtype=np.bool_)

    @cached_property
    def host_s(self) -> Float64:
        """What the host takes for each call: on a CPU the gap and the views before it, on a GPU its launch."""
        if self.on_cpu:
            return self._by_next(self.gaps_s + self.op_s * ~self.works) if self.measured else self.gaps_s
        if self.source == "bound":  # of the device alone
            return np.zeros(len(self.records))
        launches = self.timeline.launches if self.timeline else None
        launch_s = (
            launches.host_per_launch_s if launches and launches.host_per_launch_s else self.analysis.host.launch_s
        )
        return np.asarray(self.analysis.queue.units * launch_s, dtype=np.float64)

    @cached_property
    def _outside_s(self) -> float:
        return max(0.0, self.step_s - float(self.op_s.sum()))

    @cached_property
    def _gaps(self) -> Float64:
        """[steps, calls]: before each call of profiled steps, since the one before it ended; 0 where that is not known,
        empty where nothing is.
        """
        measurement = self.analysis.measurement
        if not self.on_cpu or not self.measured or measurement is None or not len(measurement.op_starts_s):
            return np.empty((0, 0))
        starts, took = measurement.op_starts_s[:, self.records], measurement.op_samples_s[:, self.records]
        known = np.flatnonzero(np.isfinite(starts).all(axis=0))
        found = np.zeros(starts.shape)
        starts, took = starts[:, known], took[:, known]
        ended = np.concatenate([np.zeros((len(starts), 1)), (starts + took)[:, :-1]], axis=1)
        found[:, known] = np.maximum(starts - ended, 0.0)
        found[:, self.merged] = 0.0
        return found

    @cached_property
    def _least_gaps(self) -> Float64:
        """Before each call the shortest gap of profiled steps, in which another program hardly came between; 0 of one
        that is no longer than is usual, with what was freed in it.
        """
        least = self._gaps.min(axis=0) - self._freeing_s
        return np.asarray(np.where(least > LONG_GAP_S, least, 0.0))

    @cached_property
    def _long_s(self) -> Float64:
        """Before each call, the views before it too, the gap in which the host did something else; 0 of a usual gap."""
        return self._by_next(self._least_gaps) if len(self._gaps) else np.zeros(len(self.records))

    @cached_property
    def _freeing_s(self) -> Float64:
        """Before each call, of the gap what it takes to give back the memory of tensors that were freed in it."""
        if not len(self._gaps):
            return np.zeros(len(self.records))
        freeing_s = _FREEING_S * freed_bytes(self.session, self.records)
        return np.asarray(np.minimum(freeing_s, self._gaps.min(axis=0)))

    @property
    def _after_s(self) -> float | None:
        """What lay after the last op of profiled steps, where that is known."""
        measurement = self.analysis.measurement
        return measurement.host.after_s if measurement is not None and measurement.host is not None else None

    @cached_property
    def _gaps_s(self) -> float:
        if not len(self._gaps):
            return max(0.0, self._outside_s - _USUAL_GAP_S * len(self.records)) if self.on_cpu else 0.0
        after = self._outside_s - float(np.median(self._gaps, axis=0).sum())  # the last call
        after = max(0.0, after - _USUAL_GAP_S * len(self.records))
        if self._after_s is not None:  # else ops may have taken longer than in profiled steps
            after = min(after, self._after_s)
        return min(self._outside_s, float(self._long_s.sum()) + after)

    @cached_property
    def long_gaps_s(self) -> float:
        """Seconds between calls in which the host did something else: asleep, or with its CPU, which ops need too."""
        measurement = self.analysis.measurement
        if measurement is None or measurement.host is None or not self.measured:
            return self._gaps_s
        busy_s = max(0.0, measurement.host.cpu_s - float(self.op_s.sum()))
        return min(max(self._gaps_s, self.asleep_s), self.asleep_s + busy_s)

    def gaps_within(self, calls: Int64) -> float:
        """Seconds of long gaps between such calls, but those in which the host waited, or ran other functions."""
        inside = np.zeros(len(self.records), dtype=np.bool_)
        inside[calls] = True
        places = np.flatnonzero(self.works)
        follows = places[1:][inside[places[1:]] & inside[places[:-1]]]
        waited_s = self.in_library(*WAITS)[0] + self.asleep_s
        known_s = max(0.0, self.long_gaps_s - waited_s)
        called = np.unique(self.session.columns.place[self.records[calls]]).tolist()
        functions = {(place.file, place.function) for place in map(self.session.places.__getitem__, called)}
        own = [(line.where and (line.where.file, line.where.function), line.seconds) for line in self.own_lines]
        total_s = sum(seconds for _, seconds in own)
        share = sum(seconds for function, seconds in own if function in functions) / total_s if total_s else 1.0
        return known_s * share * float(self._long_s[follows].sum()) / self._gaps_s if known_s else 0.0

    def _by_next(self, values: Float64) -> Float64:
        """Values of views, which serve the call after them, added to that one's."""
        places = np.flatnonzero(self.works)
        if not len(places):
            return values
        found = np.zeros(len(values))
        found[places] = np.add.reduceat(values, np.concatenate([[0], places[:-1] + 1]))
        return found

    @cached_property
    def gaps_s(self) -> Float64:
        """On a CPU, before each call what is no long gap: as the gaps of profiled steps, and no longer than these in
        sum, since a profiler makes them longer.
        """
        count = len(self.records)
        if not self.on_cpu or not self.measured:
            return np.zeros(count)
        rest_s = max(0.0, self._outside_s - self.long_gaps_s - self.held_up_s)
        if not len(self._gaps):
            return np.full(count, rest_s / max(1, count))
        usual = np.where(self._least_gaps > 0, self._freeing_s, np.median(self._gaps, axis=0))
        total = float(usual.sum())
        if self._after_s is not None:
            rest_s = min(rest_s, total + self._after_s)
        return usual * (rest_s / total) if total else np.full(count, rest_s / max(1, count))

    @cached_property
    def _stretch(self) -> float:
        """By how much other programs stretch what the host does: a part that a remedy spares as much as the rest."""
        explained_s = self.device_total_s + self.host_total_s + self.long_gaps_s
        return self.step_s / max(explained_s, _LEAST_RUN * self.step_s, 1e-12) if self.held_up_s else 1.0

    @cached_property
    def floor_s(self) -> float:
        """What a call takes inside its own time without any work: its dispatch."""
        working = self.seconds[self.works & (self.seconds > 0)]
        if not self.on_cpu or not self.measured or not len(working):
            return 0.0
        return min(float(np.percentile(working, _FLOOR)), _MOST_FLOOR_S)

    @cached_property
    def device_total_s(self) -> float:
        """Seconds of all calls on the device."""
        return float(self.seconds.sum())

    @cached_property
    def host_total_s(self) -> float:
        """Seconds of the host for all calls."""
        return float(self.host_s.sum())

    def gain(self, device_s: float = 0.0, host_s: float = 0.0, other_s: float = 0.0) -> float:
        """By how much the step is shorter without so many seconds of the device, of the host and of waiting."""
        if self.on_cpu:
            return min(self.step_s, max(0.0, float(device_s + host_s + other_s) * self._stretch))
        if self.idle is not None:  # the device was followed: what it does not do it is shorter by
            return min(self.step_s, float(device_s + min(self.late_s, host_s) + other_s))
        device, host = self.device_total_s, self.host_total_s
        before, after = max(device, host), max(device - device_s, host - host_s, 0.0)
        return min(self.step_s, max(0.0, before - after) + max(0.0, other_s))

    # -- what the host does -------------------------------------------------------------------------------------------

    @cached_property
    def limited_by(self) -> Int8:
        """The regime of each call's bound, by its place in ``REGIMES``; where no roof is known, by FLOPs per byte."""
        pairs = zip(self.analysis.bounds, self.analysis.costs, strict=True)
        of_signature = [regime_of(*each, on_cpu=self.on_cpu) for each in pairs]
        return np.array([REGIMES.index(regime) for regime in of_signature], dtype=np.int8)[self.signature]

    @cached_property
    def timeline(self) -> Timeline | None:
        """What the device did meanwhile, where it was followed."""
        return self.analysis.timeline if self.analysis.measurement is not None else None

    @cached_property
    def idle(self) -> Idle | None:
        """Why the device was idle in a step, in the mean, where that is known."""
        if self.timeline is None:
            return None
        mine = [step.idle for step in self.timeline.steps if step.in_session and step.idle is not None]
        if not mine:
            return self.timeline.idle
        return Idle(
            **{cause.field: sum(getattr(each, cause.field) for each in mine) / len(mine) for cause in IdleCause}
        )

    def mostly_in(self, cause: IdleCause) -> str:
        """In which op, call or line of the program a trace's idle time of a cause was longest: ``, mostly in …``."""
        details = self.timeline.idle_details if self.timeline is not None else ()
        where = next((each.mostly_in for each in details if each.cause is cause), "")
        return f", mostly in {where}" if where else ""

    @cached_property
    def late_s(self) -> float:
        """Seconds in which a GPU waits for launches, by its trace, or as predicted: what the step is longer by than
        with launches that take no time. What the host computes itself is none.
        """
        if self.idle is not None:
            return self.idle.host_late_s + self.idle.launch_s
        if self.source == "predicted":
            return max(0.0, self.step_s - self.wall_s(self.on_host))
        return min(self.step_s, max(0.0, self.host_total_s - self.device_total_s))

    @cached_property
    def synced_s(self) -> float:
        """Seconds that a predicted step is longer by since the host waits for results of the device."""
        queue, host = self.analysis.queue, self.analysis.host
        return queue.wall_s(self.seconds, host) - replace(queue, syncs=queue.syncs & False).wall_s(self.seconds, host)

    def wall_s(self, issued: Flags) -> float:
        """The predicted step if only such calls took the host time."""
        queue = self.analysis.queue
        return replace(queue, units=queue.units * issued).wall_s(self.seconds, self.analysis.host)

    @cached_property
    def lines(self) -> Sequence[HostLine]:
        """Where the host's thread was longest, by the sampler, in seconds of the timed step."""
        measurement = self.analysis.measurement
        return measurement.host.lines if measurement is not None and measurement.host is not None else ()

    @cached_property
    def own_lines(self) -> Sequence[HostLine]:
        """Lines of the program's own Python, in seconds of the timed step; the longest first."""
        total = sum(line.seconds for line in self.lines)
        scale = self.step_s / total if total else 0.0
        own = (line for line in self.lines if line.where is not None and line.within.is_own)
        return tuple(replace(line, seconds=line.seconds * scale, asleep_s=line.asleep_s * scale) for line in own)

    @cached_property
    def freeing_s(self) -> Float64:
        """On a CPU, of what the host takes for each call, what it takes to give memory back."""
        if not len(self._gaps):
            return np.zeros(len(self.records))
        freed = self._freeing_s
        gaps = np.where(self._least_gaps > 0, freed, np.median(self._gaps, axis=0))
        share = np.divide(freed, gaps, out=np.zeros(len(freed)), where=gaps > 0)
        return self._by_next(self.gaps_s * np.minimum(share, 1.0))

    def in_library(self, *within: Within) -> tuple[float, float, HostLine | None]:
        """Seconds of a step in such library code, those asleep of them, and the line where it was longest. Sampled
        steps may be slower than timed ones: shares count.
        """
        total = sum(line.seconds for line in self.lines)
        mine = [line for line in self.lines if line.within in within]
        if not mine or not total or not self.analysis.totals.measured_s:
            return 0.0, 0.0, None
        scale = min(1.0, self.step_s / total)
        return sum(line.seconds for line in mine) * scale, sum(line.asleep_s for line in mine) * scale, mine[0]

    @cached_property
    def asleep_s(self) -> float:
        """Seconds in which the host's thread slept outside of ops."""
        measurement = self.analysis.measurement
        if measurement is None or measurement.host is None or not self.on_cpu or not self.measured:
            return 0.0
        slept = max(0.0, self.step_s - measurement.host.cpu_s)
        total = sum(line.seconds for line in self.lines)
        sampled = sum(line.asleep_s for line in self.lines) / total * self.step_s if total else slept
        return min(slept, sampled, self._outside_s)

    @cached_property
    def held_up_s(self) -> float:
        """Seconds in which the host's thread waited for a CPU that other programs had."""
        measurement = self.analysis.measurement
        if measurement is None or measurement.host is None or not self.measured:
            return 0.0
        return max(0.0, self.step_s - measurement.host.cpu_s - self.asleep_s)

    # -- what the calls are

    def _by_call(self, values: Float64 | Flags) -> Float64:
        return np.asarray(values[self.signature], dtype=np.float64) if len(values) else np.empty(0)

    def where_op(self, holds: Iterable[bool]) -> Flags:
        """By call what holds of its signature."""
        flags = np.array(list(holds), dtype=np.bool_)
        return flags[self.signature] if len(flags) else np.empty(0, dtype=np.bool_)

    @cached_property
    def fetching_s(self) -> Float64:
        """Of each call on a CPU what the system takes to give its results pages that are new to the program: its CPU
        time, where many are, by the bytes of large results.
        """
        host = self.analysis.measurement.host if self.analysis.measurement is not None else None
        made = made_bytes(self.session, self.records)
        if host is None or host.pages < _MANY_PAGES or not self.measured or not self.on_cpu or not made.any():
            return np.zeros(len(self.records))
        fetched_s = max(0.0, host.fetched_s - float(self.freeing_s.sum()))
        return np.asarray(np.minimum(fetched_s * made / made.sum(), np.maximum(0.0, self.seconds - self.bound_s)))

    @cached_property
    def collectives(self) -> Flags:
        """Calls that exchange with other ranks; of a backend's own (``nccl:all_reduce``) no more is known."""
        names = [op.name.removeprefix("trace::") for op in self.session.signatures]
        return self.where_op(kind_of(name) is not None or name.startswith(_BACKENDS) for name in names)

    @cached_property
    def exposed_s(self) -> float | None:
        """Of a predicted step, what its collectives add to its wall time; None where the step was timed."""
        wall = self.analysis.totals.predicted_wall
        if self.source != "predicted" or wall is None:
            return None
        return min(wall.sends_s, max(0.0, wall.time_s - max(wall.busy_s - wall.sends_s, wall.host_s)))

    @cached_property
    def on_host(self) -> Flags:
        """Calls of a GPU's program on tensors of the host."""
        return self.where_op(ON_HOST in op.attributes for op in self.session.signatures)

    @cached_property
    def crosses(self) -> Flags:
        """Copies between host and device."""
        return self.where_op(map(crosses, self.session.signatures))

    @cached_property
    def unbounded(self) -> Flags:
        """Calls that work and have no bound: without a cost, or on a device of which no roof is known."""
        pairs = zip(self.analysis.bounds, self.analysis.costs, strict=True)
        return self.where_op(
            not bound or not (bound.time_s or isinstance(cost, Uncosted) or cost.does_nothing) for bound, cost in pairs
        )
