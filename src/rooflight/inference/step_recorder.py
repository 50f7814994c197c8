"""StepRecorder: steps recorded op by op instead of timed, each op in the bucket that is open when it runs.

Buckets open and close as in a timed step, by the same rules (``capture/buckets.py``). A mark names the phase of the ops
that follow it, so each op belongs to exactly one state of open buckets, and in each domain to one bucket or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rooflight.capture.bucket_states import IN_STEP, Bucket
from rooflight.capture.buckets import BucketTimer
from rooflight.capture.marks import RecordedMarks
from rooflight.inference.config import Domain
from rooflight.inference.told import DECODE, Facts
from rooflight.records.session import Session
from rooflight.roofline.time_by_place import UNATTRIBUTED

if TYPE_CHECKING:
    from rooflight.capture.recorder import record

_MOST_STEPS: Final = 256

Key = tuple[int | None, float | None]
"""Batch and KV length of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One recorded step. ``sessions`` has its ops by domain: the phase of each is the bucket it ran in. ``whole``: all
    that the engine's step did; False for the call of a model alone.
    """

    batch: int | None
    kv_length: float | None
    sessions: Mapping[Domain, Session]
    whole: bool
    cache_bytes: int | None


class StepRecorder:
    """Records steps between ``begin`` and ``end``. ``on_problem`` gets sentences (``BucketTimer``).

    ``batch`` is that of the next steps which say none. Of steps with the same batch and KV length the last is kept.
    """

    def __init__(self, on_problem: Callable[[str], None], *, whole: bool) -> None:
        self.batch: int | None = None
        self._on_problem = on_problem
        self._whole = whole
        self._marks = RecordedMarks()
        self._timer = BucketTimer(self._marks, tuple(Domain), on_problem)
        self._recording: record | None = None
        self._steps: dict[Key, RecordedStep] = {}

    @property
    def steps(self) -> tuple[RecordedStep, ...]:
        """The steps recorded so far."""
        return tuple(self._steps.values())

    def bucket(self, domain: Domain, name: str) -> Bucket:
        """The bucket of a domain that has a name."""
        return self._timer.bucket(domain, name)

    def begin(self) -> None:
        """A step begins."""
        from rooflight.capture.recorder import record  # loads torch

        self._recording = record(phases=False, on_error=self._failed)
        self._recording.__enter__()
        self._marks.recording = self._recording
        self._timer.begin()

    def end(self, facts: Facts, *, raised: bool) -> None:
        """The step ends. A decode step is kept, unless it raised: then it did not do all that a step must."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            self._timer.end()
        finally:
            self._marks.recording = None
            recording.__exit__()
        if not raised and facts.phase == DECODE:
            self._keep(recording.session, facts)

    def _keep(self, session: Session, facts: Facts) -> None:
        key = facts.batch, facts.length
        if not session.counted.any():
            self._on_problem(
                "a recorded step ran no op that torch sees in its thread, as the replay of a CUDA graph: no bound"
            )
        elif key not in self._steps and len(self._steps) >= _MOST_STEPS:
            self._on_problem(f"more than {_MOST_STEPS} different steps were recorded: the rest is left out")
        else:
            self._steps[key] = RecordedStep(
                batch=facts.batch,
                kv_length=facts.length,
                sessions={domain: self._by_bucket(session, domain) for domain in Domain},
                whole=self._whole,
                cache_bytes=facts.cache_bytes,
            )

    def _by_bucket(self, session: Session, domain: Domain) -> Session:
        states = [int(name) if name else IN_STEP for name in session.phases]
        names = tuple(self._timer.innermost(domain, state) or UNATTRIBUTED for state in states)
        return replace(session, phases=names)

    def _failed(self, error: Exception) -> None:
        self._on_problem(f"recording a step: {type(error).__name__}: {error}")
