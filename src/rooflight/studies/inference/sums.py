"""Exact sums over steps, which add up: of a run's steps, of all runs', of any part of them; and a random choice of rows
of numbers in a fixed amount of memory (Vitter's algorithm R).
"""

from __future__ import annotations

import operator
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rooflight.records.document import Fields
from rooflight.roofline.time_by_place import UNATTRIBUTED
from rooflight.sources.capture.time.buckets import OUTSIDE, DomainTimes
from rooflight.sources.capture.time.marks import Found
from rooflight.studies.inference.clocks import Reading
from rooflight.studies.inference.config import ORDERS, Domain

_NO_STEP: Final = 1 << 62

UNKNOWN: Final = -1
"""A count that is not known, where rows are whole numbers."""


OTHERS: Final = "others"
"""The sum of all buckets whose names are not canonical."""


class BucketTime(Fields, frozen=True, kw_only=True):
    """A bucket, ms per step: ``exclusive_ms`` without buckets inside it, ``inclusive_ms`` with them. Shares of a
    domain's rows, that of the unattributed time among them, sum to 1. ``op_bound_ms``, ``limiter`` and ``efficiency``
    are those of ``BucketBound``, null in runs, and where steps of a batch and KV bin have none (``BoundsData``).
    """

    name: str
    exclusive_ms: float
    inclusive_ms: float
    share: float | None
    calls_per_step: float | None
    op_bound_ms: float | None = None
    limiter: str | None = None
    efficiency: float | None = None


class Sums:
    """A dataclass of counts and sums. Those of two parts add up field by field: by ``+``, or as the field says."""

    __slots__ = ()

    def merge(self, other: Self) -> None:
        """What both have counted."""
        for name, add in _additions(type(self)):  # type: ignore[arg-type]
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Sums):
                mine.merge(theirs)
            elif isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, dict):
                for key, part in theirs.items():
                    mine.setdefault(key, type(part)()).merge(part)
            else:
                setattr(self, name, add(mine, theirs))

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum of all parts."""
        found = cls()
        for part in parts:
            found.merge(part)
        return found


@cache  # at the end of each run
def _additions(kind: Any) -> tuple[tuple[str, Callable[[Any, Any], Any]], ...]:
    return tuple((each.name, each.metadata.get("add", operator.add)) for each in fields(kind))


@dataclass(slots=True)
class BucketSums(Sums):
    """Nanoseconds of a domain over steps, and how often each bucket was opened."""

    steps: int = 0
    exclusive_ns: Counter[str] = field(default_factory=Counter)
    inclusive_ns: Counter[str] = field(default_factory=Counter)
    unattributed_ns: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def whole_ns(self) -> int:
        """The time of the steps on the domain's clock."""
        return self.unattributed_ns + sum(self.exclusive_ns.values())

    def average_ms(self, nanoseconds: int) -> float:
        """Per step, in ms."""
        return nanoseconds / self.steps / 1e6

    @property
    def unattributed_ms(self) -> float | None:
        """Per step."""
        return self.average_ms(self.unattributed_ns) if self.steps else None

    def averages(self, domain: Domain) -> dict[str, float]:
        """Exclusive ms per step of the buckets that were opened: canonical ones in their order, then others by time."""
        order = ORDERS[domain]
        opened = [name for name, nanoseconds in self.exclusive_ns.items() if name in self.calls or nanoseconds]
        others = sorted((name for name in opened if name not in order), key=lambda name: -self.exclusive_ns[name])
        names = [*(name for name in order if name in opened), *others]
        return {name: self.average_ms(self.exclusive_ns[name]) for name in names}

    def canonical(self, domain: Domain) -> tuple[dict[str, float], dict[str, float]]:
        """``averages`` with the sum of the names that are not canonical, and these one by one."""
        averages, order = self.averages(domain), ORDERS[domain]
        known = {name: value for name, value in averages.items() if name in order}
        detail = {name: value for name, value in averages.items() if name not in order}
        others = sum(nanoseconds for name, nanoseconds in self.exclusive_ns.items() if name not in order)
        return (known | {OTHERS: self.average_ms(others)} if detail else known), detail

    def rows(self, domain: Domain) -> tuple[BucketTime, ...]:
        """A row for each bucket, and one for the rest."""
        if not self.steps:
            return ()
        whole_ns = self.whole_ns

        def row(name: str, exclusive_ns: int, inclusive_ns: int, calls: float | None) -> BucketTime:
            return BucketTime(
                name=name,
                exclusive_ms=self.average_ms(exclusive_ns),
                inclusive_ms=self.average_ms(inclusive_ns),
                share=exclusive_ns / whole_ns if whole_ns else None,
                calls_per_step=calls,
            )

        rest = row(UNATTRIBUTED, self.unattributed_ns, self.unattributed_ns, None)
        return *(
            row(name, self.exclusive_ns[name], self.inclusive_ns[name], self.calls[name] / self.steps)
            for name in self.averages(domain)
        ), rest


class StepTimes(NamedTuple):
    """Nanoseconds of a step and of the gap before it, on its own clock and on the host's."""

    step: int
    gap: int
    host_step: int
    host_gap: int


def times_of(reading: Reading) -> StepTimes:
    """The times of a step."""
    own = _step_and_gap(reading.found)
    return StepTimes(*own, *(own if reading.on_host is None else _step_and_gap(reading.on_host)))


def _step_and_gap(found: Found) -> tuple[int, int]:
    step = gap = 0
    for state, nanoseconds in found:
        if state == OUTSIDE:
            gap += nanoseconds
        else:
            step += nanoseconds
    return step, gap


_OF_ONE_RUN: Final = {"add": lambda mine, _: mine}
"""States are numbered anew in each run: sums by state stay where they are."""


@dataclass(slots=True)
class StepSums(Sums):
    """Sums over steps. Those of tokens and lengths are over the steps whose tokens or KV length is known. ``by_state``
    has nanoseconds by state of open buckets, ``buckets`` what follows from them once a run has ended.
    """

    steps: int = 0
    time_ns: int = 0
    gap_ns: int = 0
    host_ns: int = 0
    host_gap_ns: int = 0
    tokens: int = 0
    token_steps: int = 0
    token_time_ns: int = 0
    length_sum: float = 0.0
    lengths: int = 0
    least_ns: int = field(default=_NO_STEP, metadata={"add": min})
    most_ns: int = field(default=0, metadata={"add": max})
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_state: list[int] = field(default_factory=list, metadata=_OF_ONE_RUN)
    host_by_state: list[int] = field(default_factory=list, metadata=_OF_ONE_RUN)
    buckets: dict[Domain, BucketSums] = field(default_factory=dict)

    def add(self, reading: Reading, times: StepTimes, tokens: int | None, length: float | None) -> None:
        """One more step."""
        self.steps += 1
        self.time_ns += times.step
        self.host_ns += times.host_step
        self.least_ns, self.most_ns = min(self.least_ns, times.step), max(self.most_ns, times.step)
        if tokens is not None:
            self.tokens += tokens
            self.token_steps += 1
            self.token_time_ns += times.step
        if length is not None:
            self.length_sum += length
            self.lengths += 1
        for bucket, calls in reading.calls:
            self.calls[bucket] += calls
        _add_states(self.by_state, reading.found)
        if reading.on_host is not None:
            _add_states(self.host_by_state, reading.on_host)

    def add_buckets(self, times: dict[Domain, DomainTimes], profiled: Iterable[Domain]) -> None:
        """What follows from the nanoseconds by state."""
        for domain in profiled:
            of_domain = times[domain]
            self.buckets[domain] = BucketSums(
                self.steps,
                Counter(of_domain.exclusive_ns),
                Counter(of_domain.inclusive_ns),
                of_domain.unattributed_ns,
                Counter({name: calls for (opened, name), calls in self.calls.items() if opened == domain}),
            )

    @property
    def mean_ms(self) -> float | None:
        """A step on average."""
        return self.time_ns / self.steps / 1e6 if self.steps else None

    @property
    def tok_s(self) -> float | None:
        """Tokens per second, over the steps whose tokens are known."""
        return self.tokens / (self.token_time_ns / 1e9) if self.token_time_ns else None

    @property
    def mean_length(self) -> float | None:
        """The KV length on average, over the steps whose length is known."""
        return self.length_sum / self.lengths if self.lengths else None

    @property
    def length(self) -> float | None:
        """The KV length on average, None where that of a step is not known."""
        return self.mean_length if self.lengths == self.steps else None


def _add_states(sums: list[int], found: Sequence[tuple[int, int]]) -> None:
    for state, nanoseconds in found:
        if state != OUTSIDE:
            if state >= len(sums):
                sums.extend([0] * (state + 1 - len(sums)))
            sums[state] += nanoseconds


def percentiles(samples_ns: NDArray[Any], *wanted: int) -> list[float | None]:
    """Percentiles in ms; None where there are no samples."""
    return np.percentile(samples_ns / 1e6, wanted).tolist() if samples_ns.size else [None] * len(wanted)


MOST_SAMPLES: Final = 1 << 16


class Reservoir:
    """Keeps all rows as long as there are at most ``most``, then a random choice of so many, with a fixed seed.

    Numbers are whole and below 2**53, but in the column ``real``, where NaN is not known.
    """

    def __init__(self, columns: Sequence[str], most: int = MOST_SAMPLES, *, real: str = "") -> None:
        self.names = tuple(columns)
        self._most, self._real = most, real
        self._random = Random(0).random
        self._rows = array("d")  # one after the other
        self.seen = 0

    def add(self, row: tuple[float, ...]) -> None:
        """One more row: kept, or not, or in the place of another."""
        self.seen += 1
        if self.seen <= self._most:
            self._rows.extend(row)
            return
        place = int(self._random() * self.seen) * len(row)
        if place < len(self._rows):
            self._rows[place : place + len(row)] = array("d", row)

    @property
    def kept(self) -> int:
        """How many rows are kept."""
        return len(self._rows) // len(self.names)

    @property
    def exact(self) -> bool:
        """Whether every row is kept."""
        return self.kept == self.seen

    def columns(self) -> dict[str, NDArray[Any]]:
        """The rows kept, by column: whole numbers, but for the real one."""
        rows = np.array(self._rows).reshape(-1, len(self.names)).T
        return {
            name: column if name == self._real else column.astype(np.int64)
            for name, column in zip(self.names, rows, strict=True)
        }

    def csv(self, names: Sequence[str] = (), **more: Sequence[str]) -> str:
        """The rows kept as text: the columns called ``names``, all if there are none, and more after theirs."""
        columns = {name: column.tolist() for name, column in self.columns().items() if not names or name in names}
        lines = (",".join(map(str, row)) for row in zip(*(columns | more).values(), strict=True))
        return "\n".join((",".join(columns | more), *lines, ""))
