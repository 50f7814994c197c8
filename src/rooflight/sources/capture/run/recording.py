"""Recordings of a script's steps: at most one at a time, and of each kind of step the newest one is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.package import uncollected
from rooflight.records.session import Session
from rooflight.records.timeline import StepKind

if TYPE_CHECKING:
    from torch import nn

    from rooflight.sources.capture.record.lifetimes import Standing
    from rooflight.sources.capture.record.recorder import record
    from rooflight.sources.capture.run.left import Left

_MOST_BACKWARDS: Final = 4
"""After so many backward passes without an optimizer's step, the first recording is given up: it may never end."""


_MOST_EVALUATED: Final = 8
"""After so many steps more, an evaluation within the recorded one is a part of each."""


@dataclass(slots=True)
class Kept:
    """A recorded step: its place among those of its kind, from 0, how many calls it had, and whether it is ``whole``:
    without an evaluation, which other steps may lack. If not, how many steps followed it.
    """

    session: Session
    place: int
    cycle: int
    whole: bool
    followed: int = 0


class Listener:
    """What a recorder tells, of which all may be passed over."""

    def kept(self, kind: StepKind) -> None:
        """A step of this kind ended, and was kept if it was recorded."""

    def ended(self) -> None:
        """A step ended, and what it left was looked at."""


class Recorder:
    """Records one step after ``skip`` steps, and one before, which serves if no other follows. Tells ``listener``."""

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.listener = Listener()
        self._open: record | None = None
        self._kind: StepKind | None = None
        self._place = 0
        self._cycle = 1
        self._holds: set[StepKind] = set()  # kinds of which the recording has held a step
        self.count = 0
        self.kept: dict[StepKind, Kept] = {}
        self._later: Callable[[], None] | None = None
        self.broken = ""
        self.notes: list[str] = []
        self.standing: Standing | None = None
        """What tells which memory is there when a step begins; None: what Python knows of."""
        self.allocated: Callable[[], tuple[int, int]] | None = None
        """What tells bytes and pieces of the device that are allocated, where that is known."""
        self.left: Left | None = None
        """What the newest recorded step left."""
        self.evaluation: Session | None = None
        """One batch of an evaluation beside the steps. It is recorded where nothing is timed."""
        self.settled = False
        """Whether the step to record was recorded; not so where optimizers that were unknown step later."""
        self.taken: dict[StepKind, set[int]] = {kind: set() for kind in StepKind}

    @property
    def records(self) -> bool:
        """Whether a step is being recorded."""
        return self._open is not None

    @property
    def calls(self) -> int:
        """How many calls the recording that is open has."""
        return self._open.calls if self._open is not None else 0

    def wants(self, kind: StepKind, place: int, cycle: int = 1, *, whole: bool = True) -> bool:
        """Whether the step at this place should be recorded; ``whole``: as it seems, without an evaluation."""
        kept = self.kept.get(kind)
        if self._open is not None or self.broken:
            return False
        better = kept is None or kept.place < self.skip or kept.cycle != cycle or (whole and not kept.whole)
        return better and (kept is None or place >= self.skip)

    def begin(
        self, kind: StepKind, place: int, cycle: int = 1, module: nn.Module | None = None, args: Any = ()
    ) -> None:
        """Record a step from here on; ``module`` is the one that is being called, of which torch has run the hooks."""
        self._kind, self._place, self._cycle, self._holds = kind, place, cycle, set()
        self.count += 1
        recording = self._made()
        try:
            recording.__enter__()
        except Exception as error:
            self._fails(error)
            return
        self._open = recording
        if module is not None:
            recording.within(module, args)

    def _made(self) -> record:
        with uncollected():
            from rooflight.sources.capture.holders import holders
            from rooflight.sources.capture.record.recorder import record

        return record(
            memory=True,
            times=True,
            compiled_eagerly="torch._dynamo" in sys.modules,
            on_error=self._fails,
            standing=self.standing or holders,
        )

    def begin_evaluation(self, module: nn.Module, args: Any) -> None:
        """Record what an evaluation does, from this call of ``module`` until ``keep_what_ended``."""
        timed = self.standing is None
        if timed or self.broken or self.records or self.evaluation is not None:
            return
        self.begin(StepKind.MODULE, 0, 1, module, args)
        self._later = self._keep_evaluation

    def _keep_evaluation(self) -> None:
        recording, self._open, self._later = self._open, None, None
        if recording is None:
            return
        try:
            recording.__exit__()
            self.evaluation = recording.session
        except Exception as error:
            self._fails(error)

    def keep(
        self, kind: StepKind, place: int | None = None, *, so_far: bool = False, known: bool = False, whole: bool = True
    ) -> None:
        """End the recording, or with ``so_far`` let it go on: what it has is a step of this kind, at this ``place``
        where it began as one of another. After the skipped steps one of optimizers settles what is recorded, where it
        is ``known`` how many of their calls make a step and this one is ``whole``. Two steps are no step. Steps of
        other kinds within a phase do not end its recording.
        """
        self._keep(kind, place, so_far=so_far, known=known, whole=whole)
        self.listener.kept(kind)

    def _keep(self, kind: StepKind, place: int | None, *, so_far: bool, known: bool, whole: bool) -> None:
        kept, settles = self.kept.get(kind), known and kind is StepKind.OPTIMIZER
        if known and kept is not None and not kept.whole:
            kept.followed += 1
            if kept.followed >= _MOST_EVALUATED:
                kept.whole, self.settled = True, settles
        if self._open is None or (kind is StepKind.PHASE) != (self._kind is StepKind.PHASE):
            return
        if not so_far and _in_compiled():  # torch would put its state back when that returns
            self._later = partial(self.keep, kind, place, known=known, whole=whole)
            return
        recording = self._open
        self._later = None
        place = self._place if place is None else place
        self.taken[kind].add(place)
        if kind in self._holds:
            if not so_far:
                self.drop()
            return
        self._holds.add(kind)
        try:
            if not so_far:
                self._open = None
                recording.__exit__()
            session = recording.so_far()
        except Exception as error:
            self._fails(error)
            return
        if not self.broken and len(session):
            self.kept[kind] = Kept(session, place, self._cycle, whole)
            self._follow(recording, session)
            self.settled = settles and whole and place >= self.skip

    def _follow(self, recording: record, session: Session) -> None:
        from rooflight.sources.capture.run.left import Left

        self.left = Left(recording, session, self.allocated)

    def ended(self) -> None:
        """A step ended, after the recorded one where there is one."""
        if self.left is not None and not self.left.ends:
            try:
                self.left.ended()
            except Exception as error:  # of objects of the program's own
                self.left = None
                self.notes.append(f"What steps leave behind could not be followed ({type(error).__name__}: {error}).")
        self.listener.ended()

    def keep_what_ended(self) -> None:
        """End a recording of an evaluation's batch, or of a step that ended inside a compiled function, now that this
        has returned.
        """
        if self._later is not None:
            self._later()

    def give_up(self, backwards: int = _MOST_BACKWARDS) -> None:
        """Drop a recording, other than of a phase, that has run for too long."""
        if backwards >= _MOST_BACKWARDS and self._kind is not StepKind.PHASE:
            self.drop()

    def drop_later(self) -> None:
        """Drop a recording that did not begin with the first backward pass: these were parts of the first step."""
        if self._place:
            self.drop()

    def drop(self, kind: StepKind | None = None) -> None:
        """End the recording, or one of this kind, and keep nothing of it."""
        if kind is not None and self._kind is not kind:
            return
        self._later = None
        if self._open is not None:
            recording, self._open = self._open, None
            with suppress(Exception):
                recording.abandon()

    def _fails(self, error: Exception) -> None:
        self.broken = f"{type(error).__name__}: {error}"
        self.drop()


def _in_compiled() -> bool:
    """Whether a function of torch.compile is running in this thread; a compiled module's hooks run before its own."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    frame = sys._getframe(1) if dynamo is not None else None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == dynamo.__file__ and code.co_name != "__call__":  # type: ignore[union-attr]
            return True
        frame = frame.f_back
    return False
