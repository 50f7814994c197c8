"""BucketStates: the sets of *buckets*, named parts of a step, that are open together, and the times that follow.

Time is cut where a step begins and ends, and where a bucket opens and closes. Between two cuts the *state* is which
buckets are open. The time in each state gives, for each domain (``"model"``, ``"engine"``) separately:

- *exclusive* time of a bucket: time in which, of the open buckets of its domain, it was the one opened last;
- *inclusive* time: time in which it was open, however often it was re-entered, each moment once;
- *unattributed* time: no bucket of the domain was open.

So exclusive times and the unattributed rest sum to the step, to the nanosecond, however buckets nest, overlap or raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, Final

OUTSIDE: Final = 0
"""The state between two steps."""

IN_STEP: Final = 1
"""The state in a step while no bucket is open."""

MORE_BUCKETS: Final = "(more buckets)"
"""The bucket of every name after the first 256, for instance of a program that puts the step's number in names."""

_MOST_BUCKETS: Final = 256
_MOST_STATES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainTimes:
    """Nanoseconds by name of bucket, and in no bucket. ``exclusive_ns`` and ``unattributed_ns`` sum to the step."""

    exclusive_ns: Mapping[str, int]
    inclusive_ns: Mapping[str, int]
    unattributed_ns: int


class Bucket:
    """One bucket: ``with bucket:`` times the block. Can be nested in itself. Never raises.

    ``opens`` and ``closes`` are numbers that no other bucket of its timer has.
    """

    __slots__ = ("closes", "domain", "name", "opens")

    def __init__(self, number: int, domain: str, name: str) -> None:
        self.opens, self.closes = 2 * number, 2 * number + 1
        self.domain, self.name = domain, name

    def __enter__(self) -> Bucket:
        raise NotImplementedError

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        raise NotImplementedError

    def around(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call something with the bucket open."""
        with self:
            return call(*args, **kwargs)


Opened = list[tuple[Bucket, int]]
"""The open buckets, in the order of opening, each with the state that it was opened in."""


class BucketStates:
    """The buckets of ``domains``, each made once by ``make(number, domain, name)``, and the states that occurred."""

    def __init__(
        self, domains: Iterable[str], make: Callable[[int, str, str], Bucket], on_problem: Callable[[str], None]
    ) -> None:
        self._make = make
        self._on_problem = on_problem
        self._by_name: dict[str, dict[str, Bucket]] = {domain: {} for domain in domains}
        self._by_number: list[Bucket] = []
        self._after: dict[tuple[int, int], int] = {}  # by state and number of a bucket that is opened in it
        # the open buckets of each state, in the order of opening; no name twice in a domain
        self._states: list[tuple[Bucket, ...]] = [(), ()]
        self._numbers: dict[tuple[Bucket, ...], int] = {(): IN_STEP}

    def bucket(self, domain: str, name: str) -> Bucket:
        """The bucket with this name in a domain: the same one on every call."""
        buckets = self._by_name[domain]
        if len(buckets) >= _MOST_BUCKETS and name not in buckets:
            name = MORE_BUCKETS
        if name not in buckets:
            made = buckets[name] = self._make(len(self._by_number), domain, name)
            self._by_number.append(made)
        return buckets[name]

    def of_key(self, key: int) -> Bucket:
        """The bucket whose ``opens`` or ``closes`` is ``key``."""
        return self._by_number[key >> 1]

    def after_opening(self, opened: Opened, state: int, bucket: Bucket) -> int:
        """Open a bucket in a state. Returns the state after it, in which ``bucket`` is opened last."""
        opened.append((bucket, state))
        after = self._after.get((state, bucket.opens))
        if after is None:
            after = self._after[state, bucket.opens] = self._state_after(state, bucket)
        return after

    def after_closing(self, opened: Opened, state: int, bucket: Bucket) -> int:
        """Close the last opening of ``bucket``. Returns the state after it: buckets opened after it stay open. If it is
        not open, that is the same state.
        """
        if opened and opened[-1][0] is bucket:
            return opened.pop()[1]
        places = [place for place, (other, _) in enumerate(opened) if other is bucket]
        if not places:
            return state  # its step has ended
        still = [other for place, (other, _) in enumerate(opened) if place != places[-1]]
        opened.clear()
        state = IN_STEP
        for other in still:
            state = self.after_opening(opened, state, other)
        return state

    def _state_after(self, state: int, bucket: Bucket) -> int:
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
        return number

    def opened(self, state: int) -> Sequence[Bucket]:
        """The buckets that are open in a state, in the order of opening."""
        return self._states[state]

    def innermost(self, domain: str, state: int) -> str | None:
        """The bucket of a domain that was opened last of those open in a state; None if none is."""
        names = [bucket.name for bucket in self._states[state] if bucket.domain == domain]
        return names[-1] if names else None

    def times(self, by_state: Sequence[int]) -> dict[str, DomainTimes]:
        """The buckets of each domain, from nanoseconds by state."""
        found: dict[str, DomainTimes] = {}
        for domain in self._by_name:
            exclusive: dict[str, int] = {}
            inclusive: dict[str, int] = {}
            unattributed = 0
            for state, opened in enumerate(self._states[IN_STEP:], start=IN_STEP):
                nanoseconds = by_state[state] if state < len(by_state) else 0  # states in which no time was spent
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
        """The exclusive times that the buckets ``names`` would have if their domain had no others, in nanoseconds.
        Names that were never opened are left out.
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


class RecordedBuckets(BucketStates):
    """Names the phases of a recording after the states of a step. ``on_problem`` is called with a sentence about each
    likely mistake: a bucket opened in another thread than the step's, a bucket left open at its end, an error.
    """

    def __init__(self, domains: Iterable[str], on_problem: Callable[[str], None]) -> None:
        super().__init__(domains, partial(_RecordedBucket, self), on_problem)
        self._thread = 0  # that of the open step, 0 between steps
        self._open: Opened = []
        self._state = OUTSIDE
        self._set_phase: Callable[[str], object] = str

    def begin(self, set_phase: Callable[[str], object]) -> None:
        """Begin a step, in this thread; ``set_phase`` is the recording's."""
        self._open.clear()
        self._thread, self._set_phase = get_ident(), set_phase
        self._enter(IN_STEP)

    def end(self) -> None:
        """End the step."""
        self._thread, self._state = 0, OUTSIDE
        for bucket, _ in self._open:
            self._on_problem(f"bucket {bucket.name} was left open at the end of a step: it was closed there")

    def change(self, bucket: Bucket, *, opens: bool) -> None:
        """Open or close a bucket."""
        if get_ident() != self._thread:
            if self._thread and opens:
                self._on_problem(
                    f"bucket {bucket.name} was opened in another thread than its step's: it was not timed there"
                )
            return
        try:
            change = self.after_opening if opens else self.after_closing
            self._enter(change(self._open, self._state, bucket))
        except Exception as error:
            self._thread = 0
            self._on_problem(f"timing ended after an error: {type(error).__name__}: {error}")

    def _enter(self, state: int) -> None:
        self._state = state
        self._set_phase(str(state))


class _RecordedBucket(Bucket):
    __slots__ = ("_buckets",)

    def __init__(self, buckets: RecordedBuckets, number: int, domain: str, name: str) -> None:
        super().__init__(number, domain, name)
        self._buckets = buckets

    def __enter__(self) -> Bucket:
        self._buckets.change(self, opens=True)
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        self._buckets.change(self, opens=False)
