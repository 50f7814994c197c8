"""EngineSteps: what the hooks of one engine do to a profiler: runs, steps, buckets, and facts of the open step."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from rooflight.inference.engine_mapping import Call, EngineMapping, Reader, Reads
from rooflight.inference.told import DECODE

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler

_MOST_LABELS: Final = 1024  # a reader of a mapping may name buckets without end


class EngineSteps:
    """Runs and steps of one attached engine. One thread at a time: that of the open run or step. Methods raise nothing
    that a profiler does not; readers of users may raise, and their errors are the profiler's problems.
    """

    def __init__(self, profiler: Profiler, attach_part: Callable[[Any, EngineMapping], None]) -> None:
        self.profiler = profiler
        self._step, self._engine_timers = profiler.step, profiler.timers_of_engine
        self._labels: dict[str, str] = {}
        self.attach_part = attach_part
        self.detach_parts: Callable[[], None] = lambda: None
        self.notes: dict[str, Any] = {}  # of the open step
        self.state: dict[str, Any] = {}  # of the open run, for roles
        self.thread = 0  # that of the open run or step
        self.phase = DECODE  # of the open step, as roles set it
        self._runs = 0  # calls of methods that are runs, which may be nested
        self._own_run = False
        self._in_step = False
        self._timers: list[tuple[object, Any]] = []

    @property
    def elsewhere(self) -> bool:
        """Whether a run or step is open in another thread."""
        return self.thread not in (0, get_ident())

    # -- runs and steps ------------------------------------------------------------------------------------------------

    def begin_run(self, batch: Any, label: str, *, in_this_thread: bool = True) -> None:
        """Begin a run, unless one is open."""
        self._runs += 1
        self.thread = get_ident() if in_this_thread else 0
        if self._runs == 1:
            self.state.clear()
            self._own_run = not self.profiler.in_run
            if self._own_run:
                self.profiler.begin_run(bsz=batch, label=label)

    @property
    def in_run(self) -> bool:
        """Whether a run of the engine is open."""
        return self._runs > 0

    def end_run(self) -> None:
        """End the run that was begun here."""
        self._runs = max(self._runs - 1, 0)
        if self._runs:
            return
        self.thread = 0
        if self._own_run:
            self._own_run = False
            self.profiler.end_run()
        self.state.clear()
        self.notes.clear()
        self.detach_parts()

    def begin_step(self) -> None:
        """Begin a step. In one that the program has opened, nothing begins."""
        if self._in_step:
            return
        if self._step.is_open:
            self.profiler.problems.note("attach_engine: an engine's step was inside another: only that one is measured")
            return
        self._in_step = True
        self.thread = get_ident()
        self.notes.clear()
        self._step.__enter__()
        self.phase = DECODE

    def begin_own_step(self, phase: str) -> bool:
        """Begin a step of a phase if there is a run but no step. Returns whether it began."""
        if self._in_step or self._step.is_open or not self.profiler.in_run:
            return False
        self.begin_step()
        self.set_phase(phase)
        return True

    def end_step(self, *, raised: bool = False) -> None:
        """End the step that was begun here, and close its buckets."""
        if not self._in_step:
            return
        self._in_step = False
        while self._timers:
            self._timers.pop()[1].__exit__(None, None, None)
        kind = RuntimeError if raised else None
        self._step.__exit__(kind, None, None)
        if not self._runs:
            self.thread = 0

    @property
    def measures(self) -> bool:
        """Whether a step that was begun here is measured."""
        return self._in_step and self._step.measuring

    # -- buckets -------------------------------------------------------------------------------------------------------

    def open(self, name: str | None, key: object) -> None:
        """Open a bucket until ``close(key)``, or the end of the step."""
        if name and self._step.measuring:
            try:
                timer = self._engine_timers[self._labels[name]]
            except KeyError:
                label = f"engine.{name}"  # a name of the engine's domain, whatever it looks like
                if len(self._labels) < _MOST_LABELS:
                    self._labels[name] = label
                timer = self._engine_timers[label]
            timer.__enter__()
            self._timers.append((key, timer))

    def close(self, key: object) -> None:
        """Close the bucket opened last with a key."""
        for place in range(len(self._timers) - 1, -1, -1):
            if self._timers[place][0] is key:
                self._timers.pop(place)[1].__exit__(None, None, None)
                return

    # -- facts ---------------------------------------------------------------------------------------------------------

    def set_phase(self, phase: str) -> None:
        """The open step is of a phase."""
        if self.measures:
            self.phase = phase
            self.profiler.set_step_phase(phase)

    def read(self, reads: Reads, call: Call) -> None:
        """Read facts of the open step from a call."""
        if not self.measures:
            return
        profiler = self.profiler
        for reader, tell in (
            (reads.phase, profiler.set_step_phase),
            (reads.tokens, profiler.set_step_tokens),
            (reads.kv_lengths, profiler.set_step_seq_len),
            (reads.batch, profiler.set_step_batch),
            (reads.kv_cache, profiler.set_step_kv_cache),
            (reads.drafts, lambda drafts: profiler.set_step_speculation(*drafts)),
        ):
            if reader is not None:
                value = self.value(reader, call)
                if value is not None:
                    tell(value)

    def value(self, reader: Reader, call: Call) -> Any:
        """What a reader gets from a call; None where it fails, which is a problem."""
        try:
            return reader(call)
        except Exception as error:
            name = getattr(reader, "__name__", "a reader")
            self.profiler.problems.note(f"attach_engine: {name}: {type(error).__name__}: {error}")
            return None
