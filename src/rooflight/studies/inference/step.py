"""StepContext: the context around each step of a profiler, and the steps whose times were not read yet.

Between heavy ops the processor's caches hold nothing of this, and every function called and object followed costs as
much as a whole step of it would from the caches. So what every measured step needs is in two methods and one object,
and statistics wait for a batch of steps.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from rooflight.sources.capture.time.bucket_log import MOST_NOTES
from rooflight.studies.inference.clocks import Meter, Place, Reading
from rooflight.studies.inference.config import Domain
from rooflight.studies.inference.facts import Facts, StepFacts
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.runs import Results, Run

_BATCH: Final = 32  # steps that are read together, at most
_NOTES: Final = MOST_NOTES // 4  # of buckets, in the steps that are read together
MOST_PENDING: Final = 1024
"""Steps that the device may lag behind before one is given up."""


class Recorder(Protocol):
    """Records steps instead of timing them. ``batch`` is that of the next steps which give none."""

    batch: int | None

    def begin(self) -> None:
        """A step begins."""

    def end(self, facts: Facts, *, raised: bool) -> None:
        """It ends."""

    def bucket(self, domain: Domain, name: str) -> AbstractContextManager[object]:
        """The bucket of a domain that has a name."""


OnStep = Callable[[Meter, Run, Reading, Facts], None]
"""Gets each measured step when it is read, for a trace."""


class StepContext:
    """``with`` it runs a step; one object for all, so that none is made in a step. Never raises.

    ``run`` and ``meter`` are set while a run is measured (``measure``), ``recorder`` while steps are recorded instead;
    ``measuring`` is True in a measured or recorded step; ``caller`` is the label of the open module in it that calls
    timed functions (``TimedCalls``). ``published`` is for timers that are not passed a profiler (``activate``). With
    ``barrier`` all ranks wait for each other before and after each step that is not recorded, measured or not.
    """

    def __init__(
        self,
        facts: StepFacts,
        results: Results,
        problems: Problems,
        *,
        barrier: bool,
        on_step: OnStep | None,
        on_unmeasured: Callable[[], None],
    ) -> None:
        self.facts = facts
        self.run: Run | None = None
        self.meter: Meter | None = None
        self.measuring = False
        self.caller: str | None = None
        self.recorder: Recorder | None = None
        self.published: Any = None
        self._results, self._problems = results, problems
        self._barrier, self._on_step = barrier, on_step
        self._on_unmeasured = on_unmeasured
        self._publish: Callable[[Any], None] | None = None
        self._depth = 0
        self._batch = 1  # until it is known how many buckets a step has
        self._captured_in_step = False
        self._begin: Callable[[], Any] | None = None  # while steps are measured or recorded
        self._before: Callable[[], None] | None = None
        self._begun: Any = 0
        self._pending: deque[tuple[Run, Place, Place, Facts]] = deque()

    def __enter__(self) -> None:
        begin = self._begin
        if begin is None or self._depth:
            self._enter_unmeasured()
            return
        self._depth = 1
        try:
            if self._before is not None:
                self._before()
            self.measuring = True
            if self._publish is not None:
                self._publish(self.published)
            self._begun = begin()
        except Exception as error:
            self._show(measuring=False)
            self._problems.error("step_timing_ctx", error)

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        run, meter = self.run, self.meter
        if self._depth != 1 or not self.measuring or run is None or meter is None or self.recorder is not None:
            self._exit_unmeasured(raised=kind is not None)
            return
        self._depth = 0
        try:
            ended = meter.end()
            self.measuring = False
            if self._publish is not None:
                self._publish(None)
            self._pending.append((run, self._begun, ended, self.facts.take()))
            if len(self._pending) >= self._batch or kind is not None or meter.failed or self._barrier:
                self._after_step(run, meter, raised=kind is not None)
        except Exception as error:
            self._show(measuring=False)
            self._problems.error("step_timing_ctx", error)

    # -- runs ---------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a step is open, measured or not."""
        return self._depth > 0

    @property
    def unread(self) -> int:
        """Steps whose times were not read yet."""
        return len(self._pending)

    def activate(self, publish: Callable[[Any], None] | None) -> None:
        """Call ``publish`` with what is to be published in each measured step, and with None when it ends."""
        self._publish = publish
        if publish is not None and self.measuring:
            publish(self.published)

    def measure(self, run: Run | None, meter: Meter | None) -> None:
        """Steps from here on are measured, as part of a run; None: they are not."""
        self.run, self.meter = run, meter or self.meter
        self.record(None)

    def record(self, recorder: Recorder | None) -> Recorder | None:
        """Record steps from here on instead of measuring them, or measure them again. Returns the recorder before."""
        before, self.recorder, self._begin, self._before = self.recorder, recorder, None, None
        if recorder is not None:
            self._begin = recorder.begin
        elif self.run is not None and self.meter is not None:
            self._begin = self.meter.begin
            self._before = self._before_step if self._barrier or self.meter.waits else None
        return before

    def capture(self, *, on: bool) -> None:
        """A CUDA graph is captured: buckets are noted outside of steps too, until it is done."""
        if on:
            self._captured_in_step = self.measuring
        self._show(measuring=on or (self._captured_in_step and self.measuring))
        if not self.measuring:
            self.facts.take()

    def give_up(self) -> None:
        """Forget the open step."""
        if self.measuring and self.meter is not None:
            self.meter.stop()
        self._show(measuring=False)
        self.facts.take()
        self._depth = 0

    def end_run(self) -> None:
        """Steps from here on are not measured. Waits for the device, and takes the run's last steps."""
        self._begin = None
        if self._pending and self.meter is not None:
            try:
                self.meter.drain()
            except Exception as error:  # what the device had done by then can still be read
                self._problems.error("waiting for the device", error)
            self._take(self.meter, all_of_them=True)
        self.measure(None, None)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _enter_unmeasured(self) -> None:
        self._depth += 1
        if self._depth > 1:
            self._problems.note("a step was begun inside a step: only the outer one is measured")
            return
        if self._barrier:
            self._wait_for_ranks()
        if self.run is not None:
            self.run.lost += 1
        else:
            self._on_unmeasured()

    def _exit_unmeasured(self, *, raised: bool) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth:
            return
        if self.recorder is None:
            if self._barrier and not raised:
                self._wait_for_ranks()
        elif self.measuring:
            self._show(measuring=False)
            try:
                self.recorder.end(self.facts.read(self.facts.take(), self.recorder.batch), raised=raised)
            except Exception as error:
                self._problems.error("record_steps", error)

    def _before_step(self) -> None:
        if self.meter is not None:
            self.meter.before()
        if self._barrier:
            self._wait_for_ranks()

    def _after_step(self, run: Run, meter: Meter, *, raised: bool) -> None:
        run.raised += raised
        if meter.failed:
            self._begin = None
            self._pending.pop()
            run.lost += 1
        elif len(self._pending) >= self._batch:
            self._batch = min(_BATCH, max(1, _NOTES * len(self._pending) // max(1, meter.notes)))
            self._take(meter)
        if self._barrier and not raised:
            self._wait_for_ranks()

    def _show(self, *, measuring: bool) -> None:
        self.measuring = measuring
        if self._publish is not None:
            self._publish(self.published if measuring else None)

    def _take(self, meter: Meter, *, all_of_them: bool = False) -> None:
        while self._pending:
            run, begun, ended, given = self._pending[0]
            reading = None
            try:
                reading = meter.read(begun, ended)
                if reading is None:
                    if len(self._pending) <= MOST_PENDING and not all_of_them:
                        return
                    behind = f"the device was more than {MOST_PENDING} steps behind"
                    self._problems.note(f"{behind}: steps were not measured")
            except Exception as error:
                self._problems.error("reading a step", error)
            self._pending.popleft()
            if reading is None:
                run.lost += 1
                meter.lose(ended)
            else:
                facts = self.facts.read(given, run.batch)
                run.add(reading, facts, self._results.samples)
                if self._on_step is not None:
                    self._on_step(meter, run, reading, facts)

    def _wait_for_ranks(self) -> None:
        try:
            barrier()
        except Exception as error:
            self._barrier = False
            self._problems.error("dist_barrier, which is off from now on", error)


def rank_and_world() -> tuple[int, int]:
    """Rank and world size: of torch.distributed once it is initialized, else of torchrun's variables, else 0 of 1."""
    dist = _initialized()
    if dist is not None:
        return int(dist.get_rank()), int(dist.get_world_size())
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, max(world, rank + 1)) if rank >= 0 else (0, 1)


def barrier() -> None:
    """Wait for all ranks; nothing where torch.distributed is not initialized."""
    dist = _initialized()
    if dist is not None:
        dist.barrier()


def _initialized() -> Any:
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
