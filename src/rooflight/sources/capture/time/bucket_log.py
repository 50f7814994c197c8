"""BucketLog: how long the buckets of a step take. It only notes openings and closings, which costs the step least.

Each opening and each closing appends a stamp and a number to one list. The open buckets at each time are computed after
the step (``capture/time/buckets.py``), once for all steps that opened and closed the same buckets in the same order,
as decode steps do. Between heavy ops the processor has little of this code in its caches, so each line of Python and
each object that it touches counts: with sums and states kept in the step, a bucket took more than twice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from threading import get_ident
from typing import Any, Final

from rooflight.sources.capture.time.buckets import IN_STEP, OUTSIDE, Bucket, BucketStates, Opened
from rooflight.sources.capture.time.marks import CudaStamps, Found, HostStamps

MOST_NOTES: Final = 1 << 19
"""Openings and closings that the log holds, of the open step and of those that were not read yet: 25 MB at most, and 80
while they are read. What opens after them is counted, and not timed.
"""

_FULL: Final = -3
_BEGIN: Final = -2
_END: Final = -1
_MOST_PLANS: Final = 64
_LONGEST_PLAN: Final = 1 << 14
_MOST_READ: Final = 1 << 10  # entries that were read and are not yet deleted


_Clock = Callable[[], Any]

Calls = tuple[tuple[tuple[str, str], int], ...]
"""How often buckets were opened in a step, by domain and name."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The state after each key; by state what picks its stretches; the calls of buckets, and buckets left open."""

    states: tuple[int, ...]
    parts: tuple[tuple[int, Callable[[Sequence[int]], Sequence[int]]], ...]
    calls: Calls
    left_open: tuple[str, ...]


class BucketLog(BucketStates):
    """Times steps, and the buckets of ``domains`` in them, by the clock of ``stamps``.

    ``on_problem`` is called with a sentence about each likely mistake: a bucket opened in another thread than the
    step's, a bucket left open at its end. ``on_failure`` is called with one when the clock fails in a bucket, after
    which the step is not complete. ``wait``: if given, buckets call it before they read the clock. ``in_order``: give
    the nanoseconds of each stretch by itself, in the order of the step, and not of each state.
    """

    def __init__(
        self,
        stamps: HostStamps | CudaStamps,
        domains: Iterable[str],
        on_problem: Callable[[str], None],
        on_failure: Callable[[str], None],
        wait: Callable[[], None] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self._in_order = in_order
        self._on_failure = on_failure
        self._stamps = stamps
        at = stamps.stamp if wait is None else _after(wait, stamps.stamp)
        self._pen = _Pen(stamps.stamp, at, self._fail, self._refuse)
        self.begin, self.end = self._pen.begin, self._pen.end
        super().__init__(domains, self._pen.kind, on_problem)
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._before: Any = None  # the stamp at the end of the step that was read last

    @property
    def notes(self) -> int:
        """Openings and closings of the open step and of those that were not read yet."""
        return len(self._pen.log) // 2

    def take_dropped(self) -> int:
        """Openings that were not timed since this was asked last, because the log was full (``MOST_NOTES``)."""
        dropped, self._pen.dropped = self._pen.dropped, 0
        return dropped

    def stop(self) -> None:
        """Give up the open step: it cannot be read."""
        self._pen.stop()

    def read(self, begun: int, ended: int) -> tuple[Found, Calls] | None:
        """The nanoseconds of a step by state, and under ``OUTSIDE`` those since the step that was read before; and the
        calls of its buckets. None while the device has not come that far.

        ``begun`` and ``ended`` are what ``begin`` and ``end`` returned. Each step is read once, the oldest first.
        Raises ValueError for a step that was interrupted while it wrote, and what the device raises.
        """
        stamps, keys = self._pen.entries(begun, ended)
        plan = self._plans.get(keys) or self._new_plan(keys)
        states, parts = plan.states, plan.parts
        if None in stamps:
            places = [place for place, stamp in enumerate(stamps) if stamp is not None]
            stamps, states = [stamps[place] for place in places], tuple(states[place] for place in places)
            parts = _parts(states)
        if stamps and not self._stamps.passed(stamps[-1]):
            return None
        for name in plan.left_open:
            self._on_problem(f"bucket {name} was left open at the end of a step: it was closed there")
        if not stamps:
            return (), plan.calls
        found: list[tuple[int, int]] = []
        if self._before is not None:
            found.append((OUTSIDE, sum(self._stamps.between_ns((self._before, stamps[0])))))
            self._stamps.release((self._before,))
        stretches_ns = self._stamps.between_ns(stamps)
        if self._in_order:
            found.extend(zip(states, stretches_ns, strict=False))  # one state more: OUTSIDE
        else:
            found.extend((state, sum(of_state(stretches_ns))) for state, of_state in parts)
        self._before = stamps[-1]
        self._stamps.release(stamps[:-1])
        return found, plan.calls

    def forget(self, ended: int) -> None:
        """Forget the steps up to this one: they were read, or will not be."""
        self._pen.forget(ended)

    def lose(self) -> None:
        """Leave out a step: the time before the next one is then no gap between two steps that were read."""
        self._before = None

    def _new_plan(self, keys: tuple[int, ...]) -> _Plan:
        opened: Opened = []
        calls: Counter[tuple[str, str]] = Counter()
        state = IN_STEP
        states = [state]
        for key in keys[1:-1]:
            if key == _FULL:
                opened.clear()
                state = IN_STEP
                states.append(state)
                continue
            bucket = self.of_key(key)
            if key & 1:
                state = self.after_closing(opened, state, bucket)
            else:
                state = self.after_opening(opened, state, bucket)
                calls[bucket.domain, bucket.name] += 1
            states.append(state)
        left_open = tuple(bucket.name for bucket, _ in opened)
        states.append(OUTSIDE)
        plan = _Plan(tuple(states), _parts(states), tuple(calls.items()), left_open)
        if len(keys) <= _LONGEST_PLAN:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[keys] = plan
        return plan

    def _refuse(self, bucket: Bucket) -> None:
        thread, full_in = self._pen.threads()
        if full_in == get_ident():
            self._pen.dropped += 1
        elif thread or full_in:
            self._on_problem(
                f"bucket {bucket.name} was opened in another thread than its step's: it was not timed there"
            )

    def _fail(self, error: Exception) -> None:
        self._pen.stop()
        self._on_failure(f"timing ended after an error: {type(error).__name__}: {error}")


def _parts(states: Sequence[int]) -> tuple[tuple[int, Callable[[Sequence[int]], Sequence[int]]], ...]:
    places: dict[int, list[int]] = {}
    for place, state in enumerate(states[:-1]):
        places.setdefault(state, []).append(place)
    return tuple(
        (state, itemgetter(*found) if len(found) > 1 else itemgetter(slice(found[0], found[0] + 1)))
        for state, found in places.items()
    )


class _Pen:
    """Writes the log: by turns a stamp and a key. ``kind`` is the class of its buckets. ``threads`` are that of the
    open step, and that of one that found the log full: the rest of it is in no bucket.

    The functions that run in a step are closures, and methods of a class made for this log, because a cell is found
    with fewer accesses to memory than an attribute of an attribute.
    """

    def __init__(
        self, stamp: _Clock, at: _Clock, fail: Callable[[Exception], None], refuse: Callable[[Bucket], None]
    ) -> None:
        log: list[Any] = []
        note, ident, most = log.append, get_ident, 2 * MOST_NOTES  # each is a stamp and a key
        thread = full_in = 0

        def begin() -> int:
            nonlocal thread, full_in
            note(stamp())
            note(_BEGIN)
            thread, full_in = ident(), 0
            return self.forgotten + len(log) - 2

        def stop() -> None:
            nonlocal thread, full_in
            thread = full_in = 0

        def end() -> int:
            stop()
            note(stamp())
            note(_END)
            return self.forgotten + len(log)

        def fill() -> None:
            nonlocal thread, full_in
            note(stamp())
            note(_FULL)
            thread, full_in = 0, thread

        self.log, self.forgotten, self.dropped, self.begin, self.end, self.stop = log, 0, 0, begin, end, stop
        self.threads: Callable[[], tuple[int, int]] = lambda: (thread, full_in)

        class LoggedBucket(Bucket):
            __slots__ = ()

            def __enter__(self) -> Bucket:
                if ident() == thread:
                    try:
                        note(at())
                        note(self.opens)
                        if len(log) > most:
                            fill()
                    except Exception as error:
                        fail(error)
                else:
                    refuse(self)
                return self

            def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
                if ident() == thread:
                    try:
                        note(at())
                        note(self.closes)
                    except Exception as error:
                        fail(error)

            def around(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                mine = ident()
                if mine != thread:
                    refuse(self)
                    return call(*args, **kwargs)
                try:
                    note(at())
                    note(self.opens)
                    if len(log) > most:
                        fill()
                except Exception as error:
                    fail(error)
                try:
                    return call(*args, **kwargs)
                finally:
                    if mine == thread:
                        try:
                            note(at())
                            note(self.closes)
                        except Exception as error:
                            fail(error)

        self.kind: type[Bucket] = LoggedBucket

    def forget(self, ended: int) -> None:
        count = ended - self.forgotten
        if count == len(self.log) or count > _MOST_READ:
            del self.log[:count]
            self.forgotten = ended

    def entries(self, begun: int, ended: int) -> tuple[list[Any], tuple[int, ...]]:
        found = self.log[begun - self.forgotten : ended - self.forgotten]
        if len(found) % 2:
            raise ValueError("the step was interrupted while a bucket was noted")
        return found[::2], tuple(found[1::2])


def _after(wait: Callable[[], None], stamp: _Clock) -> _Clock:
    def waited() -> Any:
        wait()
        return stamp()

    return waited
