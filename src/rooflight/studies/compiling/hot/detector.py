"""Which patterns of operations repeat: hot paths, found from the name and shape of each operation."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

LONGEST_PERIOD: Final = 4096
"""Longest pattern, in operations, that is found in a stream without iterations."""
_MOST_PERIODS: Final = 8  # candidates followed at once
_MOST_PATTERNS: Final = 4096  # iterations whose repetitions are counted; the one not seen for longest is forgotten
_SHOWN: Final = 8
_CONTEXTS: Final = (1, 4, 16, 64)
_MODULUS: Final = 1 << 30
_MASK: Final = _MODULUS - 1
_BASE: Final = 1_000_003


@dataclass(frozen=True, slots=True)
class HotPath:
    """A pattern that became hot: its number of operations, the names of the first, and how often it was seen.

    ``iteration``: whether it is a whole iteration, or a period of a stream without iterations.
    """

    operations: int
    first: tuple[str, ...]
    seen: int
    iteration: bool

    def __str__(self) -> str:
        more = ", …" if self.operations > len(self.first) else ""
        what = "an iteration" if self.iteration else "a pattern"
        return (
            f"hot path: {what} of {self.operations} operations, seen {self.seen} times: {', '.join(self.first)}{more}"
        )


class HotPathDetector:
    """Counts how often patterns of operations repeat. Each client or thread whose stream it follows needs its own.

    With ``begin_iteration`` and ``end_iteration`` the pattern is an iteration: all iterations with the same operations,
    shapes and wiring are one pattern, wherever they are in the stream, so that patterns that alternate are found too.
    Without them it is a period of the stream: it is hot while the last ``hot_threshold`` periods are equal. A pattern
    in which shorter ones repeat may be found up to 64 operations later.

    ``on_hot`` is called with each pattern that becomes hot. What it raises passes through, after the count. Memory is
    bounded, whatever the stream. Operations are compared by a hash of 64 bits.

    Raises ValueError for a threshold below 1.
    """

    def __init__(self, hot_threshold: int = 10, on_hot: Callable[[HotPath], object] | None = None) -> None:
        if isinstance(hot_threshold, bool) or not isinstance(hot_threshold, int) or hot_threshold < 1:
            raise ValueError(f"hot_threshold {hot_threshold!r}: how often a pattern repeats, a whole number from 1")
        self.hot_threshold = hot_threshold
        self._on_hot = on_hot
        self._open: array[int] | None = None
        self._names: list[str] = []
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self._hot = False
        self._stream = _Stream(hot_threshold)

    def begin_iteration(self) -> None:
        """Begin an iteration. One that was left open, as by an exception, is forgotten."""
        self._open, self._names = array("q"), []

    def record_operation(
        self, op: str, input_shape: Iterable[int] | None = None, *, inputs: Iterable[int] | None = None
    ) -> None:
        """Note an operation: its name and the shape of its input.

        ``inputs``: how many operations before this one its inputs were made (1: by the last one). With it, the same
        operations with other wiring are another pattern.
        """
        kind = hash((op, None if input_shape is None else (*input_shape,), None if inputs is None else (*inputs,)))
        if self._open is None:
            if self._stream.add(kind, op) and self._on_hot is not None:
                self._on_hot(self._stream.path())
            return
        self._open.append(kind)
        if len(self._names) < _SHOWN:
            self._names.append(op)

    def end_iteration(self) -> bool:
        """End the iteration. Whether its pattern was seen ``hot_threshold`` times, this one included.

        An iteration without operations is no pattern. Raises ValueError without a ``begin_iteration``.
        """
        kinds, self._open = self._open, None
        if kinds is None:
            raise ValueError("end_iteration without begin_iteration")
        if not kinds:
            self._hot = False
            return False
        signature = blake2b(kinds.tobytes(), digest_size=16).digest()
        times = self._seen.pop(signature, 0) + 1
        self._seen[signature] = times
        if len(self._seen) > _MOST_PATTERNS:
            self._seen.popitem(last=False)
        self._hot = times >= self.hot_threshold
        if times == self.hot_threshold and self._on_hot is not None:
            self._on_hot(HotPath(len(kinds), tuple(self._names), times, iteration=True))
        return self._hot

    def should_compile(self) -> bool:
        """Whether what the stream repeats is hot: the iteration that ended last, or the current period.

        May be called at any time, also in the middle of an iteration.
        """
        return self._hot or self._stream.hot


class _Stream:
    """Finds periods in a stream: for a few candidate periods it counts how many operations in a row equalled the one a
    period before. A candidate is the distance to where the last operations stood before, for several numbers of them: a
    pattern of p operations is found by any number from p on, and mostly by fewer. While the stream repeats a hot
    period, its ``leader``, only that is compared; what was left out meanwhile is made up for when it ends.
    """

    def __init__(self, threshold: int) -> None:
        self._repeats = threshold - 1
        self._kinds: list[int] = [0] * LONGEST_PERIOD  # a ring of the last ones
        self._names: list[str] = [""] * LONGEST_PERIOD
        self._contexts = [_Context(length) for length in _CONTEXTS]
        self._periods: dict[int, int] = {}
        self._count = 0
        self._leader = self._followed = 0
        self.hot = False

    def add(self, kind: int, name: str) -> bool:
        """Note an operation. Whether the stream just became hot."""
        at, kinds = self._count, self._kinds
        place = at % LONGEST_PERIOD
        if self._leader:
            if kinds[place - self._leader] == kind:  # below 0 it counts from the end of the ring
                kinds[place] = kind
                self._names[place] = name
                self._followed += 1
                self._count = at + 1
                return False
            self._stop_following()
        periods = self._periods
        for period in [p for p in periods if kinds[place - p] != kind]:
            del periods[period]
        for period in periods:
            periods[period] += 1
        distances = [context.distance(at, kind, kinds) for context in self._contexts]
        kinds[place] = kind
        self._names[place] = name
        self._count = at + 1
        for period in distances:
            if 0 < period < LONGEST_PERIOD and period not in periods:
                if len(periods) >= _MOST_PERIODS:
                    del periods[min(periods, key=lambda p: periods[p] / p)]
                periods[period] = self._equal(period)
        was, self.hot = self.hot, self._repeats == 0
        if not self.hot and (hot := self._hot_periods()):
            self.hot, self._leader = True, min(hot)
        return self.hot and not was

    def _hot_periods(self) -> list[int]:
        return [period for period, equal in self._periods.items() if equal >= period * self._repeats]

    def _stop_following(self) -> None:
        leader, followed, at = self._leader, self._followed, self._count
        self._leader = self._followed = 0
        # earlier ones are the same as these, a period ago
        again = min(followed, leader + _CONTEXTS[-1], LONGEST_PERIOD - _CONTEXTS[-1] - 1)
        for context in self._contexts:
            if again < followed:
                context.jump(at - again, self._kinds)
            for number in range(at - again, at):
                context.distance(number, self._kinds[number % LONGEST_PERIOD], self._kinds)
        for period in self._periods:
            self._periods[period] = self._equal(period) if period != leader else self._periods[period] + followed

    def _equal(self, period: int) -> int:
        kinds, last, equal = self._kinds, self._count - 1, 0
        for equal in range(min(LONGEST_PERIOD, self._count) - period):
            if kinds[(last - equal) % LONGEST_PERIOD] != kinds[(last - equal - period) % LONGEST_PERIOD]:
                return equal
        return equal + 1

    def path(self) -> HotPath:
        """The hot period, the shortest one."""
        length = min(self._hot_periods(), default=1)
        first = self._count - length
        names = [self._names[(first + place) % LONGEST_PERIOD] for place in range(min(length, _SHOWN))]
        return HotPath(length, tuple(names), self._repeats + 1, iteration=False)


class _Context:
    def __init__(self, length: int) -> None:
        self._length = length
        self._leaving = pow(_BASE, length, _MODULUS)
        self._hash = 0
        self._last: OrderedDict[int, int] = OrderedDict()

    def distance(self, at: int, kind: int, kinds: list[int]) -> int:
        """How far back the operations that end with this one ended before; 0 where they did not."""
        gone = kinds[(at - self._length) % LONGEST_PERIOD] & _MASK if at >= self._length else 0
        # of less than 60 bits, for which Python is quick; candidates of equal hashes are compared one by one
        self._hash = now = (self._hash * _BASE + (kind & _MASK) - gone * self._leaving) & _MASK
        if at < self._length - 1:
            return 0
        last = self._last
        before = last.pop(now, at)
        last[now] = at
        if len(last) > LONGEST_PERIOD:
            last.popitem(last=False)
        return at - before

    def jump(self, at: int, kinds: list[int]) -> None:
        """Have the hash of the operations before ``at``, without an entry for those before."""
        self._hash = 0
        for number in range(at - self._length, at):
            self._hash = (self._hash * _BASE + (kinds[number % LONGEST_PERIOD] & _MASK)) & _MASK
