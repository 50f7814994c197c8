"""Runs: what is kept of measured steps, of one run and of all: exact sums, and raw samples in a fixed amount of memory.

Sums are whole nanoseconds. Raw samples are those of all steps as long as there are at most 65,536, then of a uniform
random choice of so many, so that memory stays constant however long an engine runs. Means, totals and throughput come
from the sums, percentiles from the samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rooflight.capture.time.bucket_log import MOST_NOTES
from rooflight.inference.clocks import Meter, Reading
from rooflight.inference.config import Domain
from rooflight.inference.facts import (
    DECODE,
    IDLE,
    OTHER_PHASES,
    UNBINNED,
    Facts,
    KvCacheUse,
    LengthBins,
    memory_data,
    over_runs,
)
from rooflight.inference.problems import Problems
from rooflight.inference.result import (
    BatchStats,
    Buckets,
    LengthBin,
    LengthStats,
    ProfilerCost,
    RunData,
    RunMeta,
    RunsAggregate,
    Spread,
    StepStats,
    WallStats,
)
from rooflight.inference.sections import MemoryData
from rooflight.inference.speculation import RoundSums, Speculation
from rooflight.inference.sums import BucketSums, Reservoir, StepSums, times_of
from rooflight.machine.memory import Memory
from rooflight.records.quantity import Quantity, count_of

if TYPE_CHECKING:
    from rooflight.inference.generation.trace import StepSpans


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


MOST_RUNS = 1024
"""Runs that have a row of their own: an engine whose every call is a run has no end of them."""


@dataclass(kw_only=True)
class Results(Steps):
    """Adds up finished runs, all but baselines. ``runs`` has the first ``MOST_RUNS`` one by one; ``runs_left_out`` are
    in all sums but those by run and across runs. ``own_ns`` were spent between steps on the profiler's bookkeeping.
    """

    profiled: Sequence[Domain]
    problems: Problems
    spans: StepSpans | None = None
    runs: list[RunData] = field(default_factory=list)
    warmup_runs: int = 0
    runs_left_out: int = 0
    runs_with_steps: int = 0
    clocks: set[str] = field(default_factory=set)
    clocks_of_steps: set[str] = field(default_factory=set)
    speculation: Speculation = field(default_factory=Speculation)
    own_ns: int = 0
    _speculation_of_runs: dict[int, Speculation] = field(default_factory=dict)
    _memory_later: MemoryData | None = None

    def finish(self, run: Run, meter: Meter) -> RunData:
        """Add a run that has ended, and return what is known of it."""
        for (batch, number), cell in run.cells.items():
            cell.add_buckets(meter.times(cell.by_state, cell.host_by_state), self.profiled)
            if not run.baseline:
                self.cell(batch, number).merge(cell)
        if not run.baseline:
            self.kv_cache.merge(run.kv_cache)
        alone = Speculation.of_run(run, meter)
        self.speculation.merge(alone)
        place = "host" if meter.device is None else "device"
        found = RunData(
            meta=run.meta(),
            stats=run.stats(),
            wall=run.wall(1),
            other_phases=run.other_phases(),
            decode_length_buckets=run.by_length(),
            memory=memory_data(place, run.memory_before, meter.memory()),
            kv_cache=run.kv_cache.data(),
            **run.bucket_fields(),
        )
        self._keep(found, alone if run.steps_with_drafts else None)
        self._note_problems(run, meter.take_dropped())
        return found

    def _note_problems(self, run: Run, dropped: int) -> None:
        """What a run could not measure, in words that no run has to itself: there may be runs without end."""
        totals = run.totals
        for times, problem in (
            (run.raised, "a step ended by an exception: it is in the statistics"),
            (
                int(totals.steps > 0 and not totals.token_steps),
                "no step of a run has tokens: call set_step_tokens() in each",
            ),
            (
                dropped,
                f"a bucket was not timed, since more than {MOST_NOTES // 2:,} were opened before their steps were "
                "read: the rest of such a step is unattributed",
            ),
            (
                run.left_out,
                f"a step had another batch size than the first {MOST_BATCHES} of its run: its batch counts as unknown",
            ),
        ):
            if times:
                self.problems.note(problem, times)

    def _keep(self, run: RunData, speculation: Speculation | None) -> None:
        """Keep a run as one of its own, while there are few."""
        self.clocks.add(run.meta.clock)
        if run.stats.steps:
            self.clocks_of_steps.add(run.meta.clock)
        self.runs_with_steps += not run.meta.baseline and (run.stats.steps > 0 or bool(run.other_phases))
        if len(self.runs) >= MOST_RUNS:
            self.runs_left_out += 1
            self._memory_later = over_runs((self._memory_later, run.memory))
            return
        self.runs.append(run)
        if speculation is not None:
            self._speculation_of_runs[run.meta.number] = speculation

    def memory(self) -> MemoryData | None:
        """Memory from the begin of the first run to the end of the last."""
        return over_runs((*(run.memory for run in self.runs), self._memory_later))

    def runs_data(self) -> tuple[RunData, ...]:
        """All finished runs; speed-ups of a draft are relative to plain runs, which may have come later."""
        alone = self._speculation_of_runs
        return tuple(
            replace(run, speculative=alone[run.meta.number].data(self.speculation)) if run.meta.number in alone else run
            for run in self.runs
        )

    def aggregate(self) -> RunsAggregate:
        """Mean and standard deviation across runs that have steps and are no baselines."""
        runs = [run for run in self.runs if run.stats.steps and not run.meta.baseline]
        return RunsAggregate(
            latency_ms=spread(run.stats.mean_ms for run in runs),
            throughput_tok_s=spread(run.stats.throughput_tok_s for run in runs),
            tokens_total=spread(run.stats.tokens_total for run in runs),
            buckets_model_avg_ms=_spreads([run.buckets_model_avg_ms for run in runs]),
            buckets_engine_avg_ms=_spreads([run.buckets_engine_avg_ms for run in runs]),
        )

    def cost(self, bucket_ns: float, *, on_host: bool) -> ProfilerCost:
        """What measuring cost the steps, if a bucket costs ``bucket_ns``."""
        everything = self.total()
        steps, time_ns = everything.steps, everything.time_ns
        opened = sum(calls for (domain, _), calls in everything.calls.items() if domain in self.profiled)
        in_steps_ns = opened * bucket_ns
        return ProfilerCost(
            bucket_ns=bucket_ns,
            buckets_per_step=opened / steps if steps else None,
            in_step_ms=in_steps_ns / steps / 1e6 if steps else None,
            in_step_share=in_steps_ns / time_ns if on_host and time_ns else None,
            between_steps_ms=self.own_ns / steps / 1e6 if steps else None,
        )


def spread(values: Iterable[float | None]) -> Spread:
    """Mean and sample standard deviation of the values that are known."""
    known = [value for value in values if value is not None]
    return Spread(
        mean=statistics.fmean(known) if known else None,
        std=statistics.stdev(known) if len(known) > 1 else None,
        n_runs=len(known),
    )


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Of each bucket over the runs that have it."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    return {name: spread(run.get(name) for run in runs) for name in names}


def run_line(run: RunData) -> str:
    """A run in one line."""
    stats = run.stats
    batch = "" if run.meta.bsz is None else f", batch {run.meta.bsz:,}"
    head = f"run {run.meta.number} ({run.meta.label}{batch}): {count_of(stats.steps, 'step')}"
    if stats.mean_ms is None:
        return head
    mean, p99 = (Quantity((ms or 0.0) / 1e3, "s") for ms in (stats.mean_ms, stats.p99_ms))
    speed = "" if stats.throughput_tok_s is None else f", {stats.throughput_tok_s:,.1f} tok/s"
    return f"{head}, mean {mean}, p99 {p99}{speed}"
