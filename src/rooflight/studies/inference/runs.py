"""Runs: what is kept of measured steps, of one run and of all: exact sums, and raw samples in a fixed amount of memory.

Sums are whole nanoseconds. Raw samples are those of all steps as long as there are at most 65,536, then of a uniform
random choice of so many, so that memory stays constant however long an engine runs. Means, totals and throughput come
from the sums, percentiles from the samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rooflight.hardware.machine.memory import Memory
from rooflight.records.measurement import Spread
from rooflight.records.quantity import Quantity, count_of
from rooflight.sources.capture.time.bucket_log import MOST_NOTES
from rooflight.studies.inference.clocks import Meter, Reading
from rooflight.studies.inference.config import Domain
from rooflight.studies.inference.facts import DECODE, IDLE, OTHER_PHASES, UNBINNED, Facts, LengthBins
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.result import (
    BatchStats,
    Buckets,
    KvCacheData,
    LengthBin,
    LengthStats,
    MemoryData,
    RunData,
    RunMeta,
    RunsAggregate,
    RunSpread,
    StepStats,
    WallStats,
)
from rooflight.studies.inference.speculation import DRAFT, VERIFY, BatchSums, Speculation
from rooflight.studies.inference.sums import UNKNOWN, BucketSums, Reservoir, StepSums, Sums, percentiles, times_of

COLUMNS: Final = (
    *("run", "step", "batch", "kv_bin", "tokens", "step_ns", "host_ns", "proposed", "accepted", "kv_cache_bytes"),
    "kv_length",
)
"""Of a raw sample; ``kv_bin`` numbers the KV bins, of decode steps, then ``OTHER_PHASES``."""

MOST_RUNS: Final = 1024
"""Runs that have a row of their own: an engine whose every call is a run has no end of them."""


@dataclass(slots=True)
class KvCacheUse(Sums):
    """The bytes of a KV cache over steps that gave them; ``last_bytes`` is None before the first."""

    steps: int = 0
    sum_bytes: int = 0
    max_bytes: int = field(default=0, metadata={"add": max})
    last_bytes: int | None = field(default=None, metadata={"add": lambda mine, later: mine if later is None else later})

    def add(self, found: int) -> None:
        """One more step."""
        self.steps += 1
        self.sum_bytes += found
        self.max_bytes, self.last_bytes = max(self.max_bytes, found), found

    def data(self) -> KvCacheData | None:
        """As a summary has it; None where no step gave it."""
        return KvCacheData.view(self, mean_bytes=self.sum_bytes / self.steps) if self.steps else None


@dataclass(kw_only=True)
class Steps:
    """Steps of a run, or of all runs. ``cells`` has their sums by batch size (or ``UNKNOWN``) and ``kv_bin``."""

    bins: LengthBins
    cells: dict[tuple[int, int], StepSums] = field(default_factory=lambda: defaultdict(StepSums))
    samples: Reservoir = field(default_factory=lambda: Reservoir(COLUMNS, real="kv_length"))
    kv_cache: KvCacheUse = field(default_factory=KvCacheUse)

    @property
    def decode(self) -> range:
        """The bins of decode steps."""
        return range(len(self.bins.keys))

    def total(self, bins: Container[int] | None = None, batch: int | None = None) -> StepSums:
        """The sums of all steps, or of those of some bins or a batch size; not to be changed."""
        cells = [
            cell
            for (size, number), cell in self.cells.items()
            if (bins is None or number in bins) and batch in (None, size)
        ]
        return cells[0] if len(cells) == 1 else StepSums.total(cells)

    @property
    def totals(self) -> StepSums:
        """The sums of decode steps."""
        return self.total(self.decode)

    def csv(self) -> str:
        """The raw samples: -1 where a count is not known, ``nan`` for a length, and the phase in the last column."""
        phases = (*[DECODE] * len(self.decode), *OTHER_PHASES)
        return self.samples.csv(phase=[phases[number] for number in self.samples.columns()["kv_bin"].tolist()])

    # -- statistics ---------------------------------------------------------------------------------------------------

    def figures(self, runs: int) -> dict[str, Any]:
        """What a run's row has in common with the summary of ``runs``: the fields of both."""
        columns, totals = self.samples.columns(), self.totals
        step_ns, bins = columns["step_ns"], columns["kv_bin"]
        names = (*self.bins.keys, *OTHER_PHASES)
        by_bin = {name: step_stats(self.total({number}), step_ns[bins == number]) for number, name in enumerate(names)}
        phases = {phase: by_bin.pop(phase) for phase in OTHER_PHASES}
        if not by_bin[UNBINNED].steps:
            del by_bin[UNBINNED]
        lengths = LengthStats(
            bins=tuple(LengthBin(key=key, range=self.bins.ranges[number]) for number, key in enumerate(by_bin)),
            stats=by_bin,
            steps_without_length=totals.steps - totals.lengths,
        )
        return {
            "stats": step_stats(totals, step_ns[bins < len(self.decode)]),
            "wall": self._wall(runs),
            "other_phases": {phase: stats for phase, stats in phases.items() if stats.steps},
            "decode_length_buckets": lengths,
            "kv_cache": self.kv_cache.data(),
            **_bucket_figures(totals.buckets),
        }

    def by_batch(self) -> tuple[BatchStats, ...]:
        """Decode steps by batch size, the unknown ones last."""
        decode = {size for size, number in self.cells if number in self.decode}
        columns = self.samples.columns()
        is_decode = columns["kv_bin"] < len(self.decode)
        batch, step_ns = columns["batch"][is_decode], columns["step_ns"][is_decode]
        return tuple(
            BatchStats(
                batch=known_or_none(size), stats=step_stats(self.total(self.decode, size), step_ns[batch == size])
            )
            for size in sorted(decode, key=lambda size: (size < 0, size))
        )

    def _wall(self, runs: int) -> WallStats:
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


@dataclass(kw_only=True)
class Run(Steps):
    """A run while it is measured. ``batch`` is that of steps which give none.

    A ``baseline`` is not among the samples of all runs. In ``drafts``, ``speculative`` are the decode steps whose
    ``rounds`` are known. Of ``steps_with_drafts`` some may be of another phase, whose rounds are ``other_rounds``, or
    their drafts cannot be.
    """

    number: int
    label: str
    batch: int | None
    started_at: str
    clock: str
    baseline: bool = False
    memory_before: Memory | None = None
    drafts: BatchSums = field(default_factory=BatchSums)
    steps_with_drafts: int = 0
    raised: int = 0
    lost: int = 0
    idle_ns: tuple[int, int] = (0, 0)  # since the last step, on its clock and on the host's

    def add(self, reading: Reading, facts: Facts, everything: Reservoir) -> None:
        """One more step."""
        tokens, length, drafts, cached = facts.tokens, facts.length, facts.drafts, facts.cache_bytes
        times = times_of(reading)
        idle_ns, host_idle_ns = self.idle_ns
        if facts.phase == IDLE:
            self.idle_ns = idle_ns + times.step + times.gap, host_idle_ns + times.host_step + times.host_gap
            return
        self.idle_ns = 0, 0
        is_decode = facts.phase == DECODE
        number = self.bins.number(length) if is_decode else len(self.decode) + OTHER_PHASES.index(facts.phase)
        batch = UNKNOWN if facts.batch is None else facts.batch
        cell = self.cells[batch, number]
        cell.add(reading, times, tokens, length)
        if self.samples.seen:  # what was before the first is no gap between two
            cell.gap_ns += times.gap + idle_ns
            cell.host_gap_ns += times.host_gap + host_idle_ns
        if cached is not None:
            self.kv_cache.add(cached)
        if drafts is not None:
            self.steps_with_drafts += 1
        if drafts:
            (self.drafts.rounds if is_decode else self.drafts.other_rounds).add(drafts)
            if is_decode:
                self.drafts.speculative.add(reading, times, tokens, length)
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

    def speculation(self, meter: Meter) -> Speculation:
        """The run alone: one with a speculative step is a speculative run, whose plain steps count nowhere."""
        sums, took = self.drafts, self.drafts.speculative
        if self.steps_with_drafts:
            sums.parts_ns = Counter(meter.divided(took.by_state, took.host_by_state, (DRAFT, VERIFY)))
        else:
            sums.plain = self.totals
        return Speculation({self.batch: sums})

    def meta(self) -> RunMeta:
        """The run in a summary."""
        known = [(size * cell.steps, cell.steps) for (size, number), cell in self.cells.items()
                 if size != UNKNOWN and number in self.decode]  # fmt: skip
        sequences, steps = (sum(each) for each in zip(*known, strict=True)) if known else (0, 0)
        return RunMeta.view(
            self,
            bsz=self.batch,
            batch_mean=sequences / steps if steps else None,
            steps_raised=self.raised,
            steps_lost=self.lost,
        )


@dataclass(kw_only=True)
class Results(Steps):
    """Adds up finished runs, all but baselines. ``runs`` has the first ``MOST_RUNS`` one by one; ``runs_left_out`` are
    in all sums but those by run and across runs.
    """

    profiled: Sequence[Domain]
    problems: Problems
    runs: list[RunData] = field(default_factory=list)
    warmup_runs: int = 0
    runs_left_out: int = 0
    runs_with_steps: int = 0
    clocks: set[str] = field(default_factory=set)
    clocks_of_steps: set[str] = field(default_factory=set)
    speculation: Speculation = field(default_factory=Speculation)
    _speculation_of_runs: dict[int, Speculation] = field(default_factory=dict)
    _memory: dict[str, MemoryData] = field(default_factory=dict)  # by place

    def finish(self, run: Run, meter: Meter) -> RunData:
        """Add a run that has ended, and return what is known of it."""
        for (batch, number), cell in run.cells.items():
            cell.add_buckets(meter.times(cell.by_state, cell.host_by_state), self.profiled)
            if not run.baseline:
                self.cells[batch, number].merge(cell)
        if not run.baseline:
            self.kv_cache.merge(run.kv_cache)
        alone = run.speculation(meter)
        self.speculation.merge(alone)
        place = "host" if meter.device is None else "device"
        memory = _memory_data(place, run.memory_before, meter.memory())
        found = RunData(meta=run.meta(), memory=memory, **run.figures(1))
        self._keep(found, alone if run.steps_with_drafts else None)
        self._note_problems(run, found.stats, meter.take_dropped())
        return found

    def _note_problems(self, run: Run, stats: StepStats, dropped: int) -> None:
        """What a run could not measure, in words that no run has to itself: there may be runs without end."""
        if run.raised:
            self.problems.note("a step ended by an exception: it is in the statistics", run.raised)
        if stats.steps and stats.steps == stats.steps_without_tokens:
            self.problems.note("no step of a run has tokens: call set_step_tokens() in each")
        if dropped:
            self.problems.note(
                f"a bucket was not timed, since more than {MOST_NOTES // 2:,} were opened before their steps were "
                "read: the rest of such a step is unattributed",
                dropped,
            )

    def _keep(self, run: RunData, speculation: Speculation | None) -> None:
        self.clocks.add(run.meta.clock)
        if run.stats.steps:
            self.clocks_of_steps.add(run.meta.clock)
        self.runs_with_steps += not run.meta.baseline and (run.stats.steps > 0 or bool(run.other_phases))
        if run.memory is not None:
            later, before = run.memory, self._memory.get(run.memory.place, run.memory)
            self._memory[later.place] = replace(
                later,
                before_bytes=before.before_bytes,
                peak_bytes=max(before.peak_bytes, later.peak_bytes),
                peak_in_run=before.peak_in_run or later.peak_in_run,
            )
        if len(self.runs) >= MOST_RUNS:
            self.runs_left_out += 1
            return
        self.runs.append(run)
        if speculation is not None:
            self._speculation_of_runs[run.meta.number] = speculation

    def memory(self) -> MemoryData | None:
        """Memory from the begin of the first run to the end of the last; None where they ran at several places."""
        return next(iter(self._memory.values())) if len(self._memory) == 1 else None

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


def step_stats(sums: StepSums, samples_ns: NDArray[np.int64]) -> StepStats:
    """The statistics of steps: percentiles are of the samples, all others of the sums."""
    any_steps = bool(sums.steps)
    p50, p90, p95, p99 = percentiles(samples_ns, 50, 90, 95, 99)
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


def _bucket_figures(buckets: Mapping[Domain, BucketSums]) -> dict[str, Any]:
    found: dict[str, Any] = {"others_detail": {}, "buckets": {}}
    for domain in Domain:
        sums = buckets.get(domain, BucketSums())
        found[f"buckets_{domain}_avg_ms"], found["others_detail"][str(domain)] = sums.canonical(domain)
        found[f"unattributed_{domain}_ms"] = sums.unattributed_ms
        found["buckets"][str(domain)] = sums.rows(domain)
    return found | {"buckets": Buckets(**found["buckets"])}


def known_or_none(batch: int) -> int | None:
    """A batch size as results have it."""
    return None if batch == UNKNOWN else batch


def spread(values: Iterable[float | None]) -> RunSpread:
    """Mean and sample standard deviation of the values that are known, one a run."""
    known = Spread[int].known(dict(enumerate(values)))
    return RunSpread.view(known, n_runs=known.count)


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, RunSpread]:
    names = list(dict.fromkeys(name for run in runs for name in run))
    return {name: spread(run.get(name) for run in runs) for name in names}


def _memory_data(place: str, before: Memory | None, after: Memory | None) -> MemoryData | None:
    if before is None or after is None:
        return None
    return MemoryData(
        place=place,
        before_bytes=before.held_bytes,
        after_bytes=after.held_bytes,
        peak_bytes=after.peak_bytes,
        peak_in_run=after.peak_bytes > before.peak_bytes,
    )


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
