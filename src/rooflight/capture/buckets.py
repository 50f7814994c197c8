"""BucketTimer: marks (``capture/marks.py``) where a program opens and closes the buckets of a step.

A mark's key is a *state*: which buckets are open (``capture/bucket_states.py``). So the open buckets of a mark are
known while the step runs. Where only times are needed, ``capture/bucket_log.py`` costs the step less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import get_ident

from rooflight.capture.bucket_states import IN_STEP, OUTSIDE, Bucket, BucketStates, DomainTimes, Opened
from rooflight.capture.marks import Found, Marks


class BucketTimer:
    """Cuts steps, and the buckets of ``domains`` in them, by ``marks``.

    ``on_problem`` is called with a sentence about each likely mistake: a bucket opened in another thread than the
    step's, a bucket left open at its end, an error of the marks.
    """

    def __init__(self, marks: Marks, domains: Iterable[str], on_problem: Callable[[str], None]) -> None:
        self.thread = 0  # that of the open step, 0 between steps
        self.failed = False
        self.open: Opened = []
        self._state = OUTSIDE
        self._marks = marks
        self._on_problem = on_problem
        self._states = BucketStates(domains, self._make, on_problem)
        marks.start(len(self._states))

    def bucket(self, domain: str, name: str) -> Bucket:
        """The bucket with this name in a domain: the same one on every call."""
        return self._states.bucket(domain, name)

    def innermost(self, domain: str, state: int) -> str | None:
        """The bucket of a domain that was opened last of those open in a state; None if none is."""
        return self._states.innermost(domain, state)

    def times(self, by_state: Sequence[int]) -> dict[str, DomainTimes]:
        """The buckets of each domain, from nanoseconds by state."""
        return self._states.times(by_state)

    def begin(self) -> None:
        """Begin a step, in this thread."""
        self.open.clear()
        self.thread = get_ident()
        self._mark(IN_STEP)

    def end(self) -> Callable[[], Found | None]:
        """End the step. Returns a function that returns its nanoseconds by state, and under ``OUTSIDE`` those between
        the previous step and this one; None while the device has not come that far.
        """
        read = self._marks.cut(OUTSIDE)
        self.thread = 0
        self._state = OUTSIDE
        for bucket, _ in self.open:
            self._on_problem(f"bucket {bucket.name} was left open at the end of a step: it was closed there")
        return read

    def change(self, bucket: Bucket, *, opens: bool) -> None:
        """Open or close a bucket."""
        if get_ident() != self.thread:
            if self.thread and opens:
                self._on_problem(
                    f"bucket {bucket.name} was opened in another thread than its step's: it was not timed there"
                )
            return
        try:
            change = self._states.opened if opens else self._states.closed
            state = change(self.open, self._state, bucket)
            self._marks.reserve(len(self._states))
            self._mark(state)
        except Exception as error:
            self.thread = 0
            self.failed = True
            self._on_problem(f"timing ended after an error: {type(error).__name__}: {error}")

    def _mark(self, state: int) -> None:
        self._state = state
        self._marks.mark(state)

    def _make(self, number: int, domain: str, name: str) -> Bucket:
        return _MarkedBucket(self, number, domain, name)


class _MarkedBucket(Bucket):
    __slots__ = ("_timer",)

    def __init__(self, timer: BucketTimer, number: int, domain: str, name: str) -> None:
        super().__init__(number, domain, name)
        self._timer = timer

    def __enter__(self) -> Bucket:
        self._timer.change(self, opens=True)
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        self._timer.change(self, opens=False)
