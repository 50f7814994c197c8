"""BucketTimer: how long the named parts (*buckets*) of a step take, wherever the program opens and closes them.

Time is cut at marks (``capture/marks.py``): where a step begins and ends, and where a bucket opens and closes. A mark's
key is a *state*: which buckets are open. From the time in each state follow, for each domain (``"model"``,
``"engine"``) by itself:

- *exclusive* time of a bucket: time in which it was the one opened last of those open in its domain;
- *inclusive* time: time in which it was open, however often it was re-entered, each moment once;
- *unattributed* time: no bucket of the domain was open.

So exclusive times and the unattributed rest sum to the step, to the nanosecond, however buckets nest, overlap or raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Final

from rooflight.capture.marks import Found, Marks

OUTSIDE: Final = 0
"""The state between two steps."""

IN_STEP: Final = 1
"""The state in a step while no bucket is open."""

MORE_BUCKETS: Final = "(more buckets)"
"""The bucket of every name after the first 256, as of a program that puts a step's number in them."""

_MOST_BUCKETS: Final = 256
_MOST_STATES: Final = 4096

_Open = tuple["Bucket", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainTimes:
    """Nanoseconds by name of bucket, and those of none. ``exclusive_ns`` and ``unattributed_ns`` sum to the whole."""

    exclusive_ns: Mapping[str, int]
    inclusive_ns: Mapping[str, int]
    unattributed_ns: int


class Bucket:
    """One bucket: ``with bucket:`` times what runs inside. Can be nested in itself. Never raises.

    ``calls`` counts how often it was opened in a step.
    """

    __slots__ = ("_after", "_timer", "calls", "domain", "name")

    def __init__(self, timer: BucketTimer, domain: str, name: str) -> None:
        self._timer = timer
        self._after: dict[int, int] = {}  # by state: the state when this bucket is opened in it
        self.domain, self.name = domain, name
        self.calls = 0

    def __enter__(self) -> Bucket:
        timer = self._timer
        if get_ident() != timer.thread:
            timer.refuse(self)
            return self
        try:
            before = timer.state
            after = self._after.get(before)
            if after is None:
                after = self._after[before] = timer.state_after(before, self)
            timer.open.append((self, before))
            timer.state = after
            self.calls += 1
            timer.mark(after)
        except Exception as error:
            timer.fail(error)
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        timer = self._timer
        if get_ident() != timer.thread:
            return
        try:
            opened = timer.open
            if opened and opened[-1][0] is self:
                timer.state = before = opened[-1][1]
                timer.mark(before)
                opened.pop()
            else:
                timer.close(self)
        except Exception as error:
            timer.fail(error)


class SynchronizedBucket(Bucket):
    """A bucket on the host's clock that waits for the device where it opens and closes."""

    __slots__ = ()

    def __enter__(self) -> Bucket:
        self._timer.wait()
        return super().__enter__()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._timer.wait()
        super().__exit__(kind, error, trace)


class BucketTimer:
    """Times steps, and the buckets of ``domains`` in them, by ``marks``, which have the clock.

    ``on_problem`` gets a sentence for each call that cannot be what the program meant: a bucket opened in another
    thread than the step's, left open at its end, or an error of the clock. ``wait``: if given, buckets call it before
    they read the clock.
    """

    def __init__(
        self,
        marks: Marks,
        domains: Iterable[str],
        on_problem: Callable[[str], None],
        wait: Callable[[], None] | None = None,
    ) -> None:
        self.mark = marks.mark
        self.thread = 0  # that of the open step, 0 between steps
        self.state = OUTSIDE
        self.open: list[tuple[Bucket, int]] = []  # each with the state that it was opened in
        self.failed = False
        self._marks = marks
        self._on_problem = on_problem
        self._wait = wait
        self._buckets: dict[str, dict[str, Bucket]] = {domain: {} for domain in domains}
        # what is open in each state, in the order of opening: for each domain no name twice
        self._states: list[_Open] = [(), ()]
        self._numbers: dict[_Open, int] = {(): IN_STEP}
        marks.start(len(self._states))

    def bucket(self, domain: str, name: str) -> Bucket:
        """The bucket of a domain that has a name: always the same one."""
        buckets = self._buckets[domain]
        if len(buckets) >= _MOST_BUCKETS and name not in buckets:
            name = MORE_BUCKETS
        if name not in buckets:
            make = Bucket if self._wait is None else SynchronizedBucket
            buckets[name] = make(self, domain, name)
        return buckets[name]

    def buckets(self, domain: str) -> Iterable[Bucket]:
        """All buckets of a domain that were asked for."""
        return self._buckets[domain].values()

    def begin(self) -> None:
        """A step begins, in this thread."""
        self.open.clear()
        self.state = IN_STEP
        self.thread = get_ident()
        self.mark(IN_STEP)

    def end(self) -> Callable[[], Found | None]:
        """The step ends. Returns a call that gives its nanoseconds by state, and under ``OUTSIDE`` those between the
        step before and this one; None while the device has not come that far.
        """
        read = self._marks.cut(OUTSIDE)
        self.thread = 0
        self.state = OUTSIDE
        for bucket, _ in self.open:
            self._on_problem(f"bucket {bucket.name} was left open at the end of a step: it was closed there")
        return read

    def times(self, by_state: Sequence[int]) -> dict[str, DomainTimes]:
        """The buckets of each domain, from nanoseconds by state."""
        found: dict[str, DomainTimes] = {}
        for domain in self._buckets:
            exclusive: dict[str, int] = {}
            inclusive: dict[str, int] = {}
            unattributed = 0
            for state, opened in enumerate(self._states[IN_STEP:], start=IN_STEP):
                nanoseconds = by_state[state] if state < len(by_state) else 0  # states that no time was spent in
                names = [bucket.name for bucket in opened if bucket.domain == domain]
                for name in names:
                    inclusive[name] = inclusive.get(name, 0) + nanoseconds
                    exclusive.setdefault(name, 0)
                if names:
                    exclusive[names[-1]] += nanoseconds
                else:
                    unattributed += nanoseconds
            found[domain] = DomainTimes(exclusive_ns=exclusive, inclusive_ns=inclusive, unattributed_ns=unattributed)
        return found

    def divided(self, by_state: Sequence[int], domain: str, names: Iterable[str]) -> dict[str, int]:
        """Nanoseconds by which of the buckets ``names`` was opened last of those open, whatever else was: the exclusive
        times of a domain that had no other bucket. Names that never were opened are not in it.
        """
        wanted = set(names)
        found: dict[str, int] = {}
        for state, opened in enumerate(self._states):
            inside = [bucket.name for bucket in opened if bucket.domain == domain and bucket.name in wanted]
            if inside:
                for name in inside:
                    found.setdefault(name, 0)
                found[inside[-1]] += by_state[state] if state < len(by_state) else 0
        return found

    # -- what buckets call -------------------------------------------------------------------------------------------

    def state_after(self, state: int, bucket: Bucket) -> int:
        """The number of the state in which ``bucket`` is opened last, besides what is open in ``state``."""
        opened = (*(other for other in self._states[state] if other is not bucket), bucket)
        number = self._numbers.get(opened)
        if number is None:
            if len(self._states) >= _MOST_STATES:
                self._on_problem(
                    f"more than {_MOST_STATES} combinations of open buckets: the rest counts as their caller"
                )
                return state
            number = self._numbers[opened] = len(self._states)
            self._states.append(opened)
            self._marks.reserve(len(self._states))
        return number

    def close(self, bucket: Bucket) -> None:
        """Close a bucket that is not the one opened last: those opened after it stay open."""
        places = [place for place, (other, _) in enumerate(self.open) if other is bucket]
        if not places:
            return  # its step has ended
        still = [other for place, (other, _) in enumerate(self.open) if place != places[-1]]
        self.open.clear()
        state = IN_STEP
        for other in still:
            self.open.append((other, state))
            state = self.state_after(state, other)
        self.state = state
        self.mark(state)

    def refuse(self, bucket: Bucket) -> None:
        """A bucket was opened where no step is open in this thread."""
        if self.thread:
            self._on_problem(
                f"bucket {bucket.name} was opened in another thread than its step's: it was not timed there"
            )

    def wait(self) -> None:
        """Wait for the device, if a step is open here."""
        if self._wait is not None and get_ident() == self.thread:
            try:
                self._wait()
            except Exception as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """The clock failed: no more buckets are timed."""
        self.thread = 0
        self.failed = True
        self._on_problem(f"timing ended after an error: {type(error).__name__}: {error}")
