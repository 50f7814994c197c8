"""A window of a few iterations in which Kineto follows a program: its ops and, on a GPU, kernels and why it was idle.

A script on a GPU has it once its step is recorded: three iterations that nothing disturbs, between two syncs, then as
many under the profiler.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.capture.time.kineto import STEP_MARK, events_of

if TYPE_CHECKING:
    from rooflight.records.timeline import StepKind
    from rooflight.sources.capture.run.recording import Recorder
    from rooflight.sources.capture.run.steps import Steps
    from rooflight.sources.capture.time.collectives import Event

ITERATIONS: Final = 3
_LEVEL: Final = "KINETO_LOG_LEVEL"
TRACE: Final = "kineto_trace"
"""The fact of a session's environment that names the trace of its window, until that is read."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What Kineto saw: its events, and of a GPU the file of its trace, empty where there is none."""

    events: list[Event]
    trace: str = ""


class Kineto:
    """Torch's profiler of ops and of the kernels of a ``device`` (``"cuda"``, None: ops alone), without shapes or
    stacks.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._profiler: Any = None
        self._mark: Any = None

    @staticmethod
    def is_taken() -> bool:
        """Whether the program profiles itself."""
        from torch._C._autograd import _profiler_enabled

        return _profiler_enabled()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._device is not None:
            import torch

            torch.cuda.synchronize()

    def start(self) -> None:
        """Follow the program from here on."""
        from torch.autograd.profiler import profile

        self._profiler = profile(use_cpu=True, use_device=self._device, use_kineto=True)
        loud = _LEVEL not in os.environ
        os.environ.setdefault(_LEVEL, "6")  # or Kineto, which reads it once, writes marks to standard error
        try:
            self._profiler.__enter__()
        finally:
            if loud:
                del os.environ[_LEVEL]

    def next(self) -> None:
        """An iteration begins, and the one before ends."""
        from torch.autograd.profiler import record_function

        self.end()
        self._mark = record_function(STEP_MARK)
        self._mark.__enter__()

    def end(self) -> None:
        """The iteration ends."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def drop(self) -> None:
        """Follow it no more, and keep nothing of it."""
        self.end()
        self._profiler.__exit__(None, None, None)

    def stop(self) -> Profile:
        """Follow it no more."""
        self.end()
        self.synchronize()
        self._profiler.__exit__(None, None, None)
        results, trace = self._profiler.kineto_results, ""
        if self._device is not None:
            file, trace = tempfile.mkstemp(prefix="rooflight-", suffix=".json")
            os.close(file)
            results.save(trace)
        return Profile(events_of(results), trace)


class Window:
    """That of a script. ``device`` is the kind whose steps have one; ``kineto`` and ``clock`` are the real ones but in
    tests. ``mean_s`` is an undisturbed iteration, ``profile`` what was seen of others; None as long as there is none.
    """

    def __init__(
        self, recorder: Recorder, kineto: Kineto | None = None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._recorder, self._kineto, self._clock = recorder, kineto or Kineto("cuda"), clock
        self._turn, self._begin = 0, 0.0
        self.device, self.mean_s = "cuda", 0.0
        self.places = range(0)  # of its steps
        self.profile: Profile | None = None

    def opens(self, kind: StepKind, steps: Steps) -> None:
        """A call of ``steps`` has ended; once its step is recorded, the window opens."""
        kept, recorder = self._recorder.kept.get(kind), self._recorder
        if recorder.records or kept is None or not kept.whole or kept.place < recorder.skip or steps.place[1]:
            return
        if kept.session.environment.get("device_kind") != self.device:
            steps.ended = None
            return
        try:
            self._turns(kind, steps)
        except Exception as error:  # the script is to go on
            recorder.notes.append(f"Op times are lacking: Kineto failed ({type(error).__name__}: {error}).")
            steps.ended = None

    def _turns(self, kind: StepKind, steps: Steps) -> None:
        turn, kineto = self._turn, self._kineto
        if turn == 0 and kineto.is_taken():
            return
        self._turn += 1
        if turn == 0:  # the step after the recorded one, which finds other caches, is over
            kineto.synchronize()
            self._begin = self._clock()
            self.places = range(steps.place[0], steps.place[0] + 2 * ITERATIONS)
        elif turn == ITERATIONS:
            kineto.synchronize()
            self.mean_s = (self._clock() - self._begin) / ITERATIONS
            self._recorder.taken[kind].update(self.places[ITERATIONS:])
            kineto.start()
        if turn == 2 * ITERATIONS:
            self.profile = kineto.stop()
            steps.ended = None
        elif turn >= ITERATIONS:
            kineto.next()

    def drop(self) -> None:
        """Keep nothing of what was seen."""
        profile, self.profile = self.profile, None
        if profile is not None and profile.trace:
            Path(profile.trace).unlink(missing_ok=True)

    def close(self) -> None:
        """The script ends."""
        if self._turn > ITERATIONS and self.profile is None:
            with suppress(Exception):
                self._kineto.drop()
