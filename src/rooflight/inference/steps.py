"""Steps: what is kept of measured steps: exact sums of all, and raw samples of as many as fit a fixed amount of memory.

Sums are whole nanoseconds. Raw samples are those of all steps as long as there are at most 65,536, then of a uniform
random choice of so many, so that memory stays constant however long an engine runs. Means, totals and throughput come
from the sums, percentiles from the samples.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from math import nan
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.inference.config import Domain
from rooflight.inference.drafts import RoundSums
from rooflight.inference.kv_length import UNBINNED, LengthBins
from rooflight.inference.memory_use import KvCacheUse
from rooflight.inference.meter import Reading
from rooflight.inference.reservoir import Reservoir
from rooflight.inference.summary import BatchStats, Buckets, LengthBin, LengthStats, RunMeta, StepStats, WallStats
from rooflight.inference.sums import BucketSums, StepSums, times_of
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
    "kv_length",
)
"""Of a raw sample; ``kv_bin`` numbers the KV bins, of decode steps, then ``OTHER_PHASES``."""

MOST_BATCHES: Final = 256
"""Batch sizes that are kept apart: memory stays bounded whatever an engine says."""


def _samples() -> Reservoir:
    return Reservoir(COLUMNS, real="kv_length")


@dataclass(kw_only=True)
class Steps:
    """Steps of a run, or of all runs. ``cells`` has their sums by batch size (``UNKNOWN``: not known) and ``kv_bin``.
    Sizes after the first ``MOST_BATCHES`` count as unknown ones; ``left_out`` are the steps of these.
    """

    bins: LengthBins
    cells: dict[tuple[int, int], StepSums] = field(default_factory=dict)
    samples: Reservoir = field(default_factory=_samples)
    kv_cache: KvCacheUse = field(default_factory=KvCacheUse)
    left_out: int = 0
    _sizes: set[int] = field(default_factory=lambda: {UNKNOWN})

    def cell(self, batch: int, number: int) -> StepSums:
        """The sums of a batch size and bin."""
        if batch not in self._sizes:
            if len(self._sizes) > MOST_BATCHES:
                self.left_out += 1
                batch = UNKNOWN
            self._sizes.add(batch)
        return self.cells.setdefault((batch, number), StepSums())

    @property
    def decode(self) -> range:
        """The bins of decode steps."""
        return range(len(self.bins.keys))

    def total(self, bins: Container[int] | None = None, batch: int | None = None) -> StepSums:
        """The sums of all steps, or of those of some bins or a batch size."""
        return StepSums.total(
            cell
            for (size, number), cell in self.cells.items()
            if (bins is None or number in bins) and batch in (None, size)
        )

    @property
    def totals(self) -> StepSums:
        """The sums of decode steps."""
        return self.total(self.decode)

    @property
    def sums(self) -> dict[Domain, BucketSums]:
        """The buckets of decode steps."""
        return self.totals.buckets

    # -- statistics ---------------------------------------------------------------------------------------------------

    def stats(self) -> StepStats:
        """Of decode steps."""
        columns = self.samples.columns()
        return step_stats(self.totals, columns["step_ns"][columns["kv_bin"] < len(self.decode)])

    def _stats_of(self, number: int) -> StepStats:
        columns = self.samples.columns()
        return step_stats(self.total({number}), columns["step_ns"][columns["kv_bin"] == number])

    def other_phases(self) -> dict[str, StepStats]:
        """Of the other phases that there are."""
        found = {phase: self._stats_of(number) for number, phase in enumerate(OTHER_PHASES, len(self.decode))}
        return {phase: stats for phase, stats in found.items() if stats.steps}

    def by_length(self) -> LengthStats:
        """By KV bin; the one of unknown lengths only where it has any."""
        stats = {key: self._stats_of(number) for number, key in enumerate(self.bins.keys)}
        if not stats[UNBINNED].steps:
            del stats[UNBINNED]
        return LengthStats(
            bins=tuple(LengthBin(key=key, range=self.bins.ranges[number]) for number, key in enumerate(stats)),
            stats=stats,
            steps_without_length=self.totals.steps - self.totals.lengths,
        )

    def by_batch(self) -> tuple[BatchStats, ...]:
        """Decode steps by batch size, the unknown ones last."""
        sizes = sorted(
            {size for size, number in self.cells if number in self.decode}, key=lambda size: (size < 0, size)
        )
        columns = self.samples.columns()
        is_decode, known = columns["kv_bin"] < len(self.decode), np.isin(columns["batch"], sizes)

        def stats(size: int) -> StepStats:
            chosen = ~known | (columns["batch"] < 0) if size == UNKNOWN else columns["batch"] == size
            return step_stats(self.total(self.decode, size), columns["step_ns"][is_decode & chosen])

        return tuple(BatchStats(batch=known_or_none(size), stats=stats(size)) for size in sizes)

    def wall(self, runs: int) -> WallStats:
        """Steps and gaps by the host's clock. Throughput is known if the tokens of all steps are."""
        sums = self.total()
        wall_ns, gaps = sums.host_ns + sums.host_gap_ns, max(0, sums.steps - runs)
        return WallStats(
            wall_total_ms=wall_ns / 1e6,
            host_steps_ms=sums.host_ns / 1e6,
            gaps_total_ms=sums.host_gap_ns / 1e6,
            gap_mean_ms=sums.host_gap_ns / gaps / 1e6 if gaps else None,
            step_gaps_ms=sums.gap_ns / 1e6,
            throughput_tok_s=sums.tokens / (wall_ns / 1e9) if wall_ns and sums.token_steps == sums.steps else None,
        )

    def bucket_fields(self) -> dict[str, Any]:
        """The values of ``BucketFields``."""
        model, engine = (self.sums.get(domain, BucketSums()) for domain in (Domain.MODEL, Domain.ENGINE))
        of_model, other_model = model.canonical(Domain.MODEL)
        of_engine, other_engine = engine.canonical(Domain.ENGINE)
        return {
            "buckets_model_avg_ms": of_model,
            "buckets_engine_avg_ms": of_engine,
            "unattributed_model_ms": model.unattributed_ms,
            "unattributed_engine_ms": engine.unattributed_ms,
            "others_detail": {"model": other_model, "engine": other_engine},
            "buckets": Buckets(model=model.rows(Domain.MODEL), engine=engine.rows(Domain.ENGINE)),
        }


@dataclass(kw_only=True)
class Run(Steps):
    """A run while it is measured. ``batch`` is that of steps which say none.

    A ``baseline`` is not among the samples of all runs. ``speculative`` are the decode steps whose ``rounds`` are
    known, ``plain`` those without a draft. Of ``steps_with_drafts`` some may be of another phase, whose rounds are
    ``other_rounds``, or their drafts cannot be.
    """

    number: int
    label: str
    batch: int | None
    started_at: str
    clock: str
    baseline: bool = False
    memory_before: Memory | None = None
    rounds: RoundSums = field(default_factory=RoundSums)
    other_rounds: RoundSums = field(default_factory=RoundSums)
    plain: StepSums = field(default_factory=StepSums)
    speculative: StepSums = field(default_factory=StepSums)
    steps_with_drafts: int = 0
    raised: int = 0
    lost: int = 0
    idle_ns: tuple[int, int] = (0, 0)  # since the last step, on its clock and on the host's

    def add(self, reading: Reading, facts: Facts, everything: Reservoir) -> None:
        """One more step."""
        tokens, length, drafts, phase, cached, sequences = facts
        times = times_of(reading)
        idle_ns, host_idle_ns = self.idle_ns
        if phase == IDLE:
            self.idle_ns = idle_ns + times.step + times.gap, host_idle_ns + times.host_step + times.host_gap
            return
        self.idle_ns = 0, 0
        is_decode = phase == DECODE
        number = self.bins.number(length) if is_decode else len(self.decode) + OTHER_PHASES.index(phase)
        batch = UNKNOWN if sequences is None else sequences
        cell = self.cell(batch, number)
        cell.add(reading, times, tokens, length)
        if self.samples.seen:  # what was before the first is no gap between two
            cell.gap_ns += times.gap + idle_ns
            cell.host_gap_ns += times.host_gap + host_idle_ns
        if cached is not None:
            self.kv_cache.add(cached)
        if drafts is not None:
            self.steps_with_drafts += 1
        if drafts:
            (self.rounds if is_decode else self.other_rounds).add(drafts)
        if is_decode and (drafts or drafts is None):
            (self.speculative if drafts else self.plain).add(reading, times, tokens, length)
        proposed, accepted = (sum(drafts.proposed), sum(drafts.accepted)) if drafts else (UNKNOWN, UNKNOWN)
        row = (
            self.number,
            self.samples.seen,
            batch,
            number,
            UNKNOWN if tokens is None else tokens,
            times.step,
            times.host_step,
            proposed,
            accepted,
            UNKNOWN if cached is None else cached,
            nan if length is None else length,
        )
        self.samples.add(row)
        if not self.baseline:
            everything.add(row)

    def meta(self) -> RunMeta:
        """The run in a summary."""
        known = [(size * cell.steps, cell.steps) for (size, number), cell in self.cells.items()
                 if size != UNKNOWN and number in self.decode]  # fmt: skip
        sequences, steps = (sum(each) for each in zip(*known, strict=True)) if known else (0, 0)
        return RunMeta(
            number=self.number,
            label=self.label,
            bsz=self.batch,
            batch_mean=sequences / steps if steps else None,
            baseline=self.baseline,
            started_at=self.started_at,
            clock=self.clock,
            steps_raised=self.raised,
            steps_lost=self.lost,
        )


def step_stats(sums: StepSums, samples_ns: NDArray[np.int64]) -> StepStats:
    """The statistics of steps: percentiles are of the samples, all others of the sums."""
    ms, any_steps = samples_ns / 1e6, bool(sums.steps)
    p50, p90, p95, p99 = np.percentile(ms, (50, 90, 95, 99)).tolist() if ms.size else (None,) * 4
    return StepStats(
        steps=sums.steps,
        mean_ms=sums.mean_ms,
        min_ms=sums.least_ns / 1e6 if any_steps else None,
        max_ms=sums.most_ns / 1e6 if any_steps else None,
        p50_ms=p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        throughput_tok_s=sums.tok_s,
        tokens_total=sums.tokens if sums.token_steps or not any_steps else None,
        time_total_ms=sums.time_ns / 1e6,
        steps_without_tokens=sums.steps - sums.token_steps,
    )


def known_or_none(batch: int) -> int | None:
    """A batch size as results have it."""
    return None if batch == UNKNOWN else batch
