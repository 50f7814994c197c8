"""What is kept of measured steps: exact sums of all, and raw samples of as many as fit a fixed amount of memory.

Sums are whole nanoseconds. Raw samples are those of all steps as long as there are at most 65,536, then of a uniform
random choice of so many (Vitter's algorithm R, with a fixed seed), so that memory stays constant however long an engine
runs. Means, totals and throughput come from the sums, percentiles from the samples.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.capture.bucket_states import OUTSIDE
from rooflight.capture.marks import Found
from rooflight.inference.drafts import RoundSums
from rooflight.inference.kv_length import LengthBins
from rooflight.inference.memory_use import KvCacheUse
from rooflight.inference.meter import Reading
from rooflight.inference.reservoir import MOST_SAMPLES, Reservoir
from rooflight.inference.told import DECODE, IDLE, OTHER_PHASES, Facts
from rooflight.machine.memory import Memory

UNKNOWN: Final = -1

COLUMNS: Final = (
    "run",
    "step",
    "batch",
    "kv_bin",
    "tokens",
    "step_ns",
    "host_ns",
    "proposed",
    "accepted",
    "kv_cache_bytes",
)


@dataclass(slots=True)
class Totals:
    """Exact sums over steps. Those of tokens are over the steps whose tokens are known."""

    steps: int = 0
    time_ns: int = 0
    tokens: int = 0
    token_steps: int = 0
    token_time_ns: int = 0
    least_ns: int | None = None
    most_ns: int | None = None

    def add(self, step_ns: int, tokens: int | None) -> None:
        """One more step."""
        self.steps += 1
        self.time_ns += step_ns
        if tokens is not None:
            self.tokens += tokens
            self.token_steps += 1
            self.token_time_ns += step_ns
        if self.least_ns is None or step_ns < self.least_ns:
            self.least_ns = step_ns
        if self.most_ns is None or step_ns > self.most_ns:
            self.most_ns = step_ns

    @property
    def tok_s(self) -> float | None:
        """Tokens per second, over the steps whose tokens are known."""
        return self.tokens / (self.token_time_ns / 1e9) if self.token_time_ns else None

    def merge(self, other: Totals) -> None:
        """The steps of both."""
        self.steps += other.steps
        self.time_ns += other.time_ns
        self.tokens += other.tokens
        self.token_steps += other.token_steps
        self.token_time_ns += other.token_time_ns
        least = [each for each in (self.least_ns, other.least_ns) if each is not None]
        most = [each for each in (self.most_ns, other.most_ns) if each is not None]
        self.least_ns, self.most_ns = min(least, default=None), max(most, default=None)


class Samples:
    """Raw samples, one row a step: whole numbers in ``COLUMNS`` and the KV length (NaN: unknown)."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._rows = Reservoir(COLUMNS, most)
        self._lengths = array("d")

    def add(self, row: tuple[int, ...], length: float | None) -> None:
        """One more step: kept, or not, or in the place of another."""
        place = self._rows.add(row)
        if place is None:
            return
        length = nan if length is None else length
        if place == len(self._lengths):
            self._lengths.append(length)
        else:
            self._lengths[place] = length

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return self._rows.seen

    @property
    def kept(self) -> int:
        """How many samples there are."""
        return self._rows.kept

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The samples by column."""
        return self._rows.columns()

    def lengths(self) -> NDArray[np.float64]:
        """Their KV lengths."""
        return np.array(self._lengths, dtype=np.float64)


@dataclass(slots=True)
class Decoding:
    """Steps that decode in one way, plainly or with a draft, and their KV lengths where those are known."""

    totals: Totals = field(default_factory=Totals)
    length_sum: float = 0.0
    lengths: int = 0

    def add(self, step_ns: int, tokens: int | None, length: float | None) -> None:
        """One more step."""
        self.totals.add(step_ns, tokens)
        if length is not None:
            self.length_sum += length
            self.lengths += 1

    @property
    def step_ms(self) -> float | None:
        """A step on average."""
        return self.totals.time_ns / self.totals.steps / 1e6 if self.totals.steps else None

    @property
    def mean_length(self) -> float | None:
        """The KV length on average."""
        return self.length_sum / self.lengths if self.lengths else None

    def merge(self, other: Decoding) -> None:
        """The steps of both."""
        self.totals.merge(other.totals)
        self.length_sum += other.length_sum
        self.lengths += other.lengths


@dataclass(slots=True)
class Cell:
    """The steps of one batch size and bin, and their nanoseconds by state. ``length_sum`` is of the KV lengths that are
    known; those of ``unknown_lengths`` steps are not.
    """

    totals: Totals = field(default_factory=Totals)
    length_sum: float = 0.0
    unknown_lengths: int = 0
    by_state: list[int] = field(default_factory=list)
    host_by_state: list[int] = field(default_factory=list)

    def add(self, step_ns: int, tokens: int | None, length: float | None) -> None:
        """One more step."""
        self.totals.add(step_ns, tokens)
        if length is None:
            self.unknown_lengths += 1
        else:
            self.length_sum += length

    @property
    def mean_length(self) -> float | None:
        """The mean KV length, None where that of a step is not known."""
        return None if self.unknown_lengths or not self.totals.steps else self.length_sum / self.totals.steps

    def merge(self, other: Cell) -> None:
        """The steps of both; nanoseconds by state are of one run alone, and stay there."""
        self.totals.merge(other.totals)
        self.length_sum += other.length_sum
        self.unknown_lengths += other.unknown_lengths


MOST_RUNS: Final = 1024
"""Runs that have a row of their own: an engine whose every call is a run has no end of them."""

MOST_BATCHES: Final = 256
"""Batch sizes that are kept apart: memory stays bounded whatever an engine says."""


class Cells:
    """Steps by batch size (``UNKNOWN``: not known) and bin: first the KV bins, of decode steps, then ``OTHER_PHASES``.
    Sizes after the first ``MOST_BATCHES`` count as unknown ones; ``left_out`` are the steps of these.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], Cell] = {}
        self._sizes: set[int] = {UNKNOWN}
        self.left_out = 0

    def at(self, batch: int, number: int) -> Cell:
        """The cell of a batch size and the number of a bin."""
        return self._cells.get((batch, number)) or self._new(batch, number)

    def _new(self, batch: int, number: int) -> Cell:
        if batch not in self._sizes:
            if len(self._sizes) > MOST_BATCHES:
                self.left_out += 1
                batch = UNKNOWN
            self._sizes.add(batch)
        return self._cells.setdefault((batch, number), Cell())

    def items(self) -> Iterable[tuple[tuple[int, int], Cell]]:
        """Each cell that has steps, after its batch size and bin."""
        return sorted(self._cells.items(), key=lambda item: item[0])

    def add(self, batch: int, number: int, cell: Cell) -> int:
        """More steps; returns the batch size that they count under."""
        self.at(batch, number).merge(cell)
        return batch if (batch, number) in self._cells else UNKNOWN

    def unknown_lengths(self, bins: Container[int]) -> int:
        """Steps of some bins whose KV length is not known."""
        return sum(cell.unknown_lengths for (_, number), cell in self._cells.items() if number in bins)

    def totals(self, bins: Container[int] | None = None, batches: Container[int] | None = None) -> Totals:
        """All steps, or those of some bins or batch sizes."""
        found = Totals()
        for (batch, number), cell in self._cells.items():
            if (bins is None or number in bins) and (batches is None or batch in batches):
                found.merge(cell.totals)
        return found


@dataclass(slots=True, kw_only=True)
class Run:
    """One run while it is measured. ``totals`` is of the decode steps, ``cells`` have all. ``batch`` is that of steps
    which say none. Of the decode steps ``batch_steps`` have a known batch, whose sum is ``batch_sum``. ``calls``
    counts the calls of buckets in decode steps by domain and name, ``calls_elsewhere`` those in other steps.

    A ``baseline`` is not among the samples of all runs. ``speculative`` are the decode steps whose ``rounds`` are
    known, ``plain`` those without a draft. Of ``steps_with_drafts`` some may be of another phase, whose rounds are
    ``other_rounds``, or their drafts cannot be.
    """

    number: int
    label: str
    batch: int | None
    started_at: str
    clock: str
    bins: LengthBins
    totals: Totals = field(default_factory=Totals)
    cells: Cells = field(default_factory=Cells)
    batch_sum: int = 0
    batch_steps: int = 0
    samples: Samples = field(default_factory=Samples)
    rounds: RoundSums = field(default_factory=RoundSums)
    other_rounds: RoundSums = field(default_factory=RoundSums)
    plain: Decoding = field(default_factory=Decoding)
    speculative: Decoding = field(default_factory=Decoding)
    speculative_by_state: list[int] = field(default_factory=list)
    speculative_host_by_state: list[int] = field(default_factory=list)
    baseline: bool = False
    kv_cache: KvCacheUse = field(default_factory=KvCacheUse)
    memory_before: Memory | None = None
    steps_with_drafts: int = 0
    host_ns: int = 0
    gap_ns: int = 0
    host_gap_ns: int = 0
    raised: int = 0
    lost: int = 0
    idle_ns: int = 0
    host_idle_ns: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls_elsewhere: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, reading: Reading, facts: Facts, everything: Samples) -> None:
        """One more step."""
        found, host_found, calls = reading
        tokens, length, drafts, phase, cached, sequences = facts
        if phase == IDLE:
            self._idle(found, host_found)
            return
        is_decode = phase == DECODE
        number = self.bins.number(length) if is_decode else len(self.bins.keys) + OTHER_PHASES.index(phase)
        batch = UNKNOWN if sequences is None else sequences
        cell = self.cells.at(batch, number)
        step_ns, gap_ns = _add(found, cell.by_state)
        host_ns, host_gap_ns = (step_ns, gap_ns) if host_found is None else _add(host_found, cell.host_by_state)
        if self.samples.steps:  # what was before the first is no gap between two
            self.gap_ns += gap_ns + self.idle_ns
            self.host_gap_ns += host_gap_ns + self.host_idle_ns
        self.idle_ns = self.host_idle_ns = 0
        self.host_ns += host_ns
        row = (
            self.number,
            self.samples.steps,
            batch,
            number,
            UNKNOWN if tokens is None else tokens,
            step_ns,
            host_ns,
            *((UNKNOWN,) * 2 if not drafts else (sum(drafts.proposed), sum(drafts.accepted))),
            UNKNOWN if cached is None else cached,
        )
        if is_decode:
            self.totals.add(step_ns, tokens)
            if sequences is not None:
                self.batch_sum += sequences
                self.batch_steps += 1
        opened = self.calls if is_decode else self.calls_elsewhere
        for bucket, times in calls:
            opened[bucket] += times
        cell.add(step_ns, tokens, length)
        if cached is not None:
            self.kv_cache.add(cached)
        if drafts is not None:
            self.steps_with_drafts += 1
        if drafts and not is_decode:
            self.other_rounds.add(drafts)
        elif drafts:
            self.rounds.add(drafts)
            self.speculative.add(step_ns, tokens, length)
            _add(found, self.speculative_by_state)
            _add(host_found or (), self.speculative_host_by_state)
        elif drafts is None and is_decode:
            self.plain.add(step_ns, tokens, length)
        self.samples.add(row, length)
        if not self.baseline:
            everything.add(row, length)

    def _idle(self, found: Found, host_found: Found | None) -> None:
        whole_ns = sum(nanoseconds for _, nanoseconds in found)
        self.idle_ns += whole_ns
        self.host_idle_ns += whole_ns if host_found is None else sum(nanoseconds for _, nanoseconds in host_found)


def _add(found: Found, sums: list[int]) -> tuple[int, int]:
    """Add nanoseconds by state to sums of them. Returns those of the step, and those before it."""
    step_ns = gap_ns = 0
    for state, nanoseconds in found:
        if state == OUTSIDE:
            gap_ns += nanoseconds
            continue
        step_ns += nanoseconds
        if state >= len(sums):
            sums.extend([0] * (state + 1 - len(sums)))
        sums[state] += nanoseconds
    return step_ns, gap_ns
