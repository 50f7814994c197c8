"""StepObserver: what each step of a loop must do, and how long it took, without slowing the loop.

Two instruments, never in one step: a *recording* of every op shows a step's structure, and *spans* of its modules show
its time. A step is recorded when it is the first or second (optimizers make their state in the first), or when the last
one did something that no recorded step did: other shapes, another phase, no optimizer step. All others are only timed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import torch
from torch import nn

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.record import ModuleEntry, outside_modules, phase_name
from rooflight.records.session import Session
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.sources.capture.record.modules import uncompiled
from rooflight.sources.capture.record.recorder import record
from rooflight.sources.capture.time.spans import Place, Spans, SpanTimer

_MOST_STRUCTURES: Final = 32
_MOST_PENDING: Final = 8  # steps that the device may lag behind before their times are given up
_ALWAYS_RECORDED: Final = 2
_RECORDING_SHARE: Final = 0.03  # of the loop's time that recording new structures may cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A recorded step. ``analysis`` has every module; ``timed`` has the same ops under the modules that spans time, so
    that bounds and times of a row are of the same work.
    """

    analysis: Analysis
    timed: Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """One step of a loop. ``structure`` is None when no recorded step did the same; ``recorded`` says that this one was
    recorded, so that its spans hold what that costs.

    ``seconds_by`` has the seconds of its spans by name of ``"phase"`` (outside all phases forward, backward and
    optimizer are told apart), ``"layer"`` (class of module) and ``"module"``, each module's own code alone: what it
    calls counts where it is. They sum to the whole.
    """

    number: int
    spans: Spans
    structure: Structure | None
    recorded: bool
    seconds_by: Mapping[str, Mapping[str, float]]

    def tells_more_than(self, other: ObservedStep | None) -> bool:
        """Whether a report had better be of this step than of an earlier one: what it did is known, it did something,
        and it was not slowed by a recording if the other was not.
        """
        if self.structure is None or not len(self.structure.analysis.session):
            return False
        return other is None or other.recorded or not self.recorded


@contextmanager
def errors_to(fail: Callable[[Exception], None]) -> Iterator[None]:
    """Give an error of the block to ``fail``: it must not reach the program."""
    try:
        yield
    except Exception as error:
        fail(error)


class StepObserver:
    """Observes a loop, step by step, between ``start`` and ``stop``."""

    def __init__(
        self, models: Mapping[str, nn.Module], device: DeviceSpec, on_error: Callable[[Exception], None]
    ) -> None:
        self.device = device
        self.timer = SpanTimer(models, on_error)
        self.classes = _classes(models)
        self._models = models
        self._on_error = on_error
        self._recording: record | None = None
        self._abandoned: record | None = None
        self._resumes_recorded = False
        self._structures: OrderedDict[tuple[Any, ...], Structure] = OrderedDict()
        self._missed: dict[tuple[Any, ...], tuple[int, int]] = {}  # unknown steps: when last, how long after the last
        self._pending: list[tuple[int, Callable[[], Spans | None], bool]] = []
        self._names: dict[str, dict[int, str]] = {"phase": {}, "layer": {}, "module": {}}  # of rows, by place
        self._had_phases = False
        self._done = 0
        self._begun_s = 0.0
        self._started_s = 0.0
        self._recording_s = 0.0  # what recordings are predicted to have cost
        self._typical_s = 0.0

    @property
    def running(self) -> bool:
        """Whether a step is open."""
        return self.timer.attached

    def start(self) -> None:
        """Begin the first step, which is recorded. Raises RuntimeError if one is open."""
        self.timer.attach()
        self._done = 0
        self._recording_s = self._typical_s = 0.0
        self._started_s = perf_counter()
        self._begin(recorded=True)

    def stop(self) -> None:
        """Leave torch as it was before ``start``; the open step is dropped. Can be called again."""
        if self._recording is not None:
            self._abandoned, self._recording = self._recording, None
        if self._abandoned is not None:
            self._abandoned.abandon()
        self.timer.detach()
        self._pending.clear()

    def pause(self) -> None:
        """Drop the open step and see nothing until ``resume``; what is known of the loop stays."""
        self._resumes_recorded = self._recording is not None
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None
        self.timer.detach()

    def resume(self) -> None:
        """Begin a step after ``pause``, recorded if the one that was dropped was to be."""
        self.timer.attach()
        self._begin(recorded=self._resumes_recorded)
        self.restart_clock()

    def so_far(self) -> Session | None:
        """What the open step has recorded until now, None if it is not being recorded."""
        return self._recording.so_far() if self._recording is not None else None

    def finish(self, number: int) -> list[ObservedStep]:
        """End the open step and leave torch as it was before ``start``; waits for the device. Does nothing if no step
        is open.
        """
        if not self.running:
            return []
        session = self._close_recording()
        self._cut(number, session)
        if self.timer.on_cuda:
            torch.cuda.synchronize()
        finished = self._finished()
        self.stop()
        return finished

    def remaining(self) -> list[ObservedStep]:
        """Steps that ended before their times were known; waits for the device."""
        if self._pending and self.timer.on_cuda:
            torch.cuda.synchronize()
        return self._finished()

    def end_step(self, number: int) -> list[ObservedStep]:
        """End the open step and begin the next. Returns the steps whose times are known by now, oldest first: on a CPU
        this one, on CUDA perhaps earlier ones.
        """
        session = self._close_recording()
        key = self._cut(number, session)
        took = perf_counter() - self._begun_s
        if session is None:
            self._typical_s = min(took, self._typical_s or took)
        else:
            self._recording_s += max(0.0, took - self._typical_s) if self._typical_s else 0.0
        self._done += 1
        finished = self._finished()
        self._begin(recorded=self._wants_recording(key))
        self.restart_clock()
        return finished

    def restart_clock(self) -> None:
        """What ran since the last step ended belongs to no step: it was our own."""
        self.timer.cut()
        self._begun_s = perf_counter()

    def _cut(self, number: int, session: Session | None) -> tuple[Any, ...]:
        """End the step in which ``session`` was recorded. Returns what it did, by which structures are known."""
        spans = self.timer.cut()
        self._pending.append((number, spans, session is not None))
        del self._pending[:-_MOST_PENDING]
        key = self.timer.last_events
        if session is not None:
            self._keep(key, session)
        return key

    def _wants_recording(self, key: tuple[Any, ...]) -> bool:
        if self._done < _ALWAYS_RECORDED:
            return True
        if key in self._structures:
            self._missed.pop(key, None)
        else:
            last, _ = self._missed.get(key, (self._done - 1, 1))
            self._missed[key] = self._done, self._done - last
            if len(self._missed) > _MOST_STRUCTURES:
                self._missed.pop(next(iter(self._missed)))
        # what was missed comes again at once, or as long after as the time before: an evaluation every 100 steps
        if not any(last + gap == self._done + 1 for last, gap in self._missed.values()):
            return False
        return self._recording_s <= _RECORDING_SHARE * (perf_counter() - self._started_s)

    def _begin(self, *, recorded: bool) -> None:
        if recorded:
            self._recording = record(
                self._models, functions=True, times=not self.timer.on_cuda, memory=True, on_error=self._on_error
            )
            self._recording.__enter__()
        self._begun_s = perf_counter()

    def _close_recording(self) -> Session | None:
        recording, self._recording = self._recording, None
        if recording is None:
            return None
        try:
            recording.__exit__()
        except BaseException:
            self._abandoned = recording
            raise
        return recording.session

    def _keep(self, key: tuple[Any, ...], session: Session) -> None:
        structure = self._structures[key] = structure_of(session, self.device, self.timer.paths, self.classes)
        _ = structure.analysis.program  # now, since it is part of what recording costs
        self._structures.move_to_end(key)
        while len(self._structures) > _MOST_STRUCTURES:
            self._structures.popitem(last=False)

    def _finished(self) -> list[ObservedStep]:
        steps: list[ObservedStep] = []
        while self._pending:
            number, read, recorded = self._pending[0]
            spans = read()
            if spans is None:
                break
            self._pending.pop(0)
            structure = self._structures.get(spans.events)
            if structure is not None:
                self._structures.move_to_end(spans.events)
            seconds_by = {key: self._summed(spans, key) for key in self._names}
            steps.append(
                ObservedStep(number=number, spans=spans, structure=structure, recorded=recorded, seconds_by=seconds_by)
            )
        return steps

    def _summed(self, spans: Spans, key: str) -> dict[str, float]:
        if key == "phase" and self.timer.has_phases != self._had_phases:
            self._had_phases = self.timer.has_phases
            self._names[key].clear()
        names, seconds = self._names[key], dict[str, float]()
        for number, length in spans.by_number.items():
            name = names.get(number)
            if name is None:
                name = names[number] = self._name(spans.places[number], key)
            seconds[name] = seconds.get(name, 0.0) + length
        return seconds

    def _name(self, place: Place, key: str) -> str:
        if key == "phase":
            return phase_name(place.phase, place.direction, others=self.timer.has_phases)
        name = place.module if key == "module" else self.classes.get(place.module, place.module)
        return name or outside_modules(place.direction)


def structure_of(session: Session, device: DeviceSpec, paths: tuple[str, ...], classes: Mapping[str, str]) -> Structure:
    """Analyse a recorded step; modules that are not timed are part of the nearest one around them that is."""
    timed, root = set(paths), next((path for path in paths if "." not in path and classes.get(path) == path), "")
    owners = [_owner(module.path, timed, classes, root) for module in session.modules]
    entries = tuple(ModuleEntry(path, classes.get(path, "")) for path in owners)
    analysis = analyze(session, device)
    if entries == session.modules:
        return Structure(analysis=analysis, timed=analysis)
    return Structure(analysis=analysis, timed=analyze(replace(session, modules=entries), device))


def _owner(path: str, timed: set[str], classes: Mapping[str, str], root: str) -> str:
    known = False
    while path:
        if path in timed:
            return path
        known = known or path in classes
        path = path.rpartition(".")[0]
    return root if known else ""


def _classes(models: Mapping[str, nn.Module]) -> dict[str, str]:
    found: dict[str, str] = {}
    for prefix, model in models.items():
        root = uncompiled(model)
        for path, module in root.named_modules(prefix=prefix, remove_duplicate=False):
            found.setdefault(path or type(root).__name__, type(uncompiled(module)).__name__)
    return found
