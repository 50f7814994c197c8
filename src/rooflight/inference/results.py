"""Results: what finished runs add up to, and the summary made of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rooflight.capture.bucket_log import MOST_NOTES
from rooflight.capture.bucket_states import DomainTimes
from rooflight.inference.config import ORDERS, Domain
from rooflight.inference.kv_length import UNBINNED, LengthBins
from rooflight.inference.memory_use import KvCacheUse, MemoryData, memory_data, over_runs
from rooflight.inference.meter import Meter
from rooflight.inference.problems import Problems
from rooflight.inference.speculation_results import Speculation
from rooflight.inference.steps import MOST_BATCHES, MOST_RUNS, UNKNOWN, Cells, Run, Samples, Totals
from rooflight.inference.summary import (
    OTHERS,
    BatchStats,
    Buckets,
    BucketSplit,
    BucketTime,
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
from rooflight.inference.told import OTHER_PHASES
from rooflight.records.quantity import Quantity, count_of
from rooflight.roofline.time_by_place import UNATTRIBUTED

if TYPE_CHECKING:
    from rooflight.inference.step_spans import StepSpans


@dataclass(slots=True)
class BucketSums:
    """Nanoseconds of a domain over steps, and how often each bucket was opened."""

    steps: int = 0
    exclusive_ns: dict[str, int] = field(default_factory=dict)
    inclusive_ns: dict[str, int] = field(default_factory=dict)
    unattributed_ns: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, steps: int, times: DomainTimes) -> None:
        """More steps."""
        self.steps += steps
        _add(self.exclusive_ns, times.exclusive_ns)
        _add(self.inclusive_ns, times.inclusive_ns)
        self.unattributed_ns += times.unattributed_ns

    def merge(self, other: BucketSums) -> None:
        """The steps of both."""
        self.steps += other.steps
        _add(self.exclusive_ns, other.exclusive_ns)
        _add(self.inclusive_ns, other.inclusive_ns)
        self.unattributed_ns += other.unattributed_ns
        _add(self.calls, other.calls)

    @property
    def whole_ns(self) -> int:
        """The time of the steps on the domain's clock."""
        return self.unattributed_ns + sum(self.exclusive_ns.values())

    def average_ms(self, nanoseconds: int) -> float:
        """Per step, in ms."""
        return nanoseconds / self.steps / 1e6


class Results:
    """Adds up finished runs. ``samples`` has the raw samples of all, ``runs`` the first ``MOST_RUNS`` one by one;
    ``runs_left_out`` are in all sums but those by run and across runs.
    """

    def __init__(self, edges: Sequence[int], profiled: Iterable[Domain], problems: Problems) -> None:
        self.bins = LengthBins(edges)
        self.problems = problems
        self.warmup_runs = 0
        self.runs: list[RunData] = []
        self.runs_left_out = 0
        self.runs_with_steps = 0
        self.clocks: set[str] = set()
        self.clocks_of_steps: set[str] = set()
        self._memory_later: MemoryData | None = None
        self.totals = Totals()
        self.cells = Cells()
        self.samples = Samples()
        self.sums = {domain: BucketSums() for domain in profiled}
        self.splits: dict[tuple[int, int, Domain], BucketSums] = {}
        self.speculation = Speculation()
        self._speculation_of_runs: dict[int, Speculation] = {}
        self.kv_cache = KvCacheUse()
        self.host_ns = self.host_gap_ns = self.gap_ns = 0
        self.own_ns = 0  # between steps, for the profiler's own bookkeeping
        self.buckets_opened = 0
        self.spans: StepSpans | None = None

    def finish(self, run: Run, meter: Meter) -> RunData:
        """Add a run that has ended, and return what is known of it."""
        sums = {domain: BucketSums() for domain in self.sums}
        for (said, number), cell in run.cells.items():
            times = meter.times(cell.by_state, cell.host_by_state)
            batch = UNKNOWN if run.baseline else self.cells.add(said, number, cell)
            for domain, of_domain in sums.items():
                if number < len(self.bins.keys):
                    of_domain.add(cell.totals.steps, times[domain])
                if not run.baseline:
                    split = self.splits.setdefault((batch, number, domain), BucketSums())
                    split.add(cell.totals.steps, times[domain])
        for (name, bucket), calls in run.calls.items():
            if name in sums:
                sums[Domain(name)].calls[bucket] = calls
        self.speculation.add(run, meter)
        if not run.baseline:
            self._merge(run, sums)
        place = "host" if meter.device is None else "device"
        memory = memory_data(place, run.memory_before, meter.memory())
        found = self._run_data(run, sums, memory)
        self._keep(found, Speculation.of_run(run, meter))
        self._note_problems(run, meter.take_dropped())
        return found

    def _note_problems(self, run: Run, dropped: int) -> None:
        """What a run could not measure, in words that no run has to itself: there may be runs without end."""
        if run.raised:
            self.problems.note("a step ended by an exception: it is in the statistics", run.raised)
        if run.totals.steps and not run.totals.token_steps:
            self.problems.note("no step of a run has tokens: call set_step_tokens() in each")
        if dropped:
            self.problems.note(
                f"a bucket was not timed, since more than {MOST_NOTES // 2:,} were opened before their steps were "
                "read: the rest of such a step is unattributed",
                dropped,
            )
        if run.cells.left_out:
            self.problems.note(
                f"a step had another batch size than the first {MOST_BATCHES} of its run: its batch counts as unknown",
                run.cells.left_out,
            )

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

    def _merge(self, run: Run, sums: Mapping[Domain, BucketSums]) -> None:
        """Add a run to the sums over all."""
        self.buckets_opened += sum(
            calls for opened in (run.calls, run.calls_elsewhere) for (name, _), calls in opened.items() if name in sums
        )
        for domain, of_domain in sums.items():
            self.sums[domain].merge(of_domain)
        self.totals.merge(run.totals)
        self.host_ns += run.host_ns
        self.host_gap_ns += run.host_gap_ns
        self.gap_ns += run.gap_ns
        self.kv_cache.merge(run.kv_cache)

    def _run_data(self, run: Run, sums: Mapping[Domain, BucketSums], memory: MemoryData | None) -> RunData:
        columns = run.samples.columns()
        return RunData(
            meta=RunMeta(
                number=run.number,
                label=run.label,
                bsz=run.batch,
                batch_mean=run.batch_sum / run.batch_steps if run.batch_steps else None,
                baseline=run.baseline,
                started_at=run.started_at,
                clock=run.clock,
                steps_raised=run.raised,
                steps_lost=run.lost,
            ),
            stats=step_stats(run.totals, decode_ns(self.bins, columns)),
            wall=wall_stats(run.cells.totals(), run.host_ns, run.host_gap_ns, run.gap_ns, 1),
            other_phases=phase_stats(self.bins, run.cells, columns),
            decode_length_buckets=length_stats(self.bins, run.cells, columns),
            memory=memory,
            kv_cache=run.kv_cache.data(),
            **bucket_fields(sums),
        )

    def runs_data(self) -> tuple[RunData, ...]:
        """All finished runs; speed-ups of a draft are relative to plain runs, which may have come later."""
        alone = self._speculation_of_runs
        return tuple(
            replace(run, speculative=alone[run.meta.number].beside(self.speculation))
            if run.meta.number in alone
            else run
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

    def splits_in_order(self) -> list[tuple[tuple[int, int, Domain], BucketSums]]:
        """The sums of buckets by batch size, number of the KV bin and domain: those of the model first."""
        domains = list(Domain)
        return sorted(self.splits.items(), key=lambda item: (domains.index(item[0][2]), *item[0][:2]))

    def split_data(self) -> tuple[BucketSplit, ...]:
        """The buckets by batch size and KV bin."""
        return tuple(
            BucketSplit(
                domain=domain.value,
                batch=None if batch == UNKNOWN else batch,
                kv_bin=(*self.bins.keys, *OTHER_PHASES)[number],
                steps=sums.steps,
                mean_ms=sums.average_ms(sums.whole_ns),
                buckets_avg_ms=_ordered(sums, ORDERS[domain]),
                unattributed_ms=sums.average_ms(sums.unattributed_ns),
            )
            for (batch, number, domain), sums in self.splits_in_order()
        )


def profiler_cost(results: Results, bucket_ns: float, *, on_host: bool) -> ProfilerCost:
    """What measuring cost the steps, if a bucket costs ``bucket_ns``."""
    everything = results.cells.totals()
    steps, time_ns = everything.steps, everything.time_ns
    opened = results.buckets_opened
    in_steps_ns = opened * bucket_ns
    return ProfilerCost(
        bucket_ns=bucket_ns,
        buckets_per_step=opened / steps if steps else None,
        in_step_ms=in_steps_ns / steps / 1e6 if steps else None,
        in_step_share=in_steps_ns / time_ns if on_host and time_ns else None,
        between_steps_ms=results.own_ns / steps / 1e6 if steps else None,
    )


def step_stats(totals: Totals, samples_ns: NDArray[np.int64]) -> StepStats:
    """The statistics of steps: percentiles are of the samples, all others of the sums."""
    ms = samples_ns / 1e6
    p50, p90, p95, p99 = np.percentile(ms, (50, 90, 95, 99)).tolist() if ms.size else (None,) * 4
    return StepStats(
        steps=totals.steps,
        mean_ms=totals.time_ns / totals.steps / 1e6 if totals.steps else None,
        min_ms=None if totals.least_ns is None else totals.least_ns / 1e6,
        max_ms=None if totals.most_ns is None else totals.most_ns / 1e6,
        p50_ms=p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        throughput_tok_s=totals.tok_s,
        tokens_total=totals.tokens if totals.token_steps or not totals.steps else None,
        time_total_ms=totals.time_ns / 1e6,
        steps_without_tokens=totals.steps - totals.token_steps,
    )


def wall_stats(totals: Totals, host_ns: int, host_gap_ns: int, gap_ns: int, runs: int) -> WallStats:
    """Steps and gaps by the host's clock. Throughput is known if the tokens of all steps are."""
    wall_ns = host_ns + host_gap_ns
    gaps = totals.steps - runs if totals.steps else 0
    all_known = totals.token_steps == totals.steps
    return WallStats(
        wall_total_ms=wall_ns / 1e6,
        host_steps_ms=host_ns / 1e6,
        gaps_total_ms=host_gap_ns / 1e6,
        gap_mean_ms=host_gap_ns / gaps / 1e6 if gaps else None,
        step_gaps_ms=gap_ns / 1e6,
        throughput_tok_s=totals.tokens / (wall_ns / 1e9) if wall_ns and all_known else None,
    )


def decode_ns(bins: LengthBins, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """The samples of decode steps."""
    return columns["step_ns"][columns["kv_bin"] < len(bins.keys)]


def phase_stats(bins: LengthBins, cells: Cells, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, StepStats]:
    """Steps of the other phases that there are."""
    numbers = enumerate(OTHER_PHASES, start=len(bins.keys))
    return {
        phase: step_stats(cells.totals({number}), columns["step_ns"][columns["kv_bin"] == number])
        for number, phase in numbers
        if cells.totals({number}).steps
    }


def length_stats(bins: LengthBins, cells: Cells, columns: Mapping[str, NDArray[np.int64]]) -> LengthStats:
    """Steps by KV bin; the one of unknown lengths only where it has any."""
    by_bin = [cells.totals({number}) for number in range(len(bins.keys))]
    numbers = [number for number, key in enumerate(bins.keys) if key != UNBINNED or by_bin[number].steps]
    return LengthStats(
        bins=tuple(LengthBin(key=bins.keys[number], range=bins.ranges[number]) for number in numbers),
        stats={
            bins.keys[number]: step_stats(by_bin[number], columns["step_ns"][columns["kv_bin"] == number])
            for number in numbers
        },
        steps_without_length=cells.unknown_lengths(range(len(bins.keys))),
    )


def batch_stats(bins: LengthBins, cells: Cells, columns: Mapping[str, NDArray[np.int64]]) -> tuple[BatchStats, ...]:
    """Decode steps by batch size, the unknown ones last."""
    decode = range(len(bins.keys))
    sizes = dict.fromkeys(batch for (batch, number), _ in cells.items() if number in decode)
    is_decode = columns["kv_bin"] < len(bins.keys)
    known = [size for size in sizes if size != UNKNOWN]
    return tuple(
        BatchStats(
            batch=None if size == UNKNOWN else size,
            stats=step_stats(
                cells.totals(decode, {size}),
                columns["step_ns"][
                    is_decode & (~np.isin(columns["batch"], known) if size == UNKNOWN else columns["batch"] == size)
                ],
            ),
        )
        for size in (*known, *(size for size in sizes if size == UNKNOWN))
    )


def bucket_fields(sums: Mapping[Domain, BucketSums]) -> dict[str, Any]:
    """The values of ``BucketFields``."""
    found: dict[str, Any] = {}
    rows: dict[str, tuple[BucketTime, ...]] = {}
    details: dict[str, dict[str, float]] = {}
    for domain in Domain:
        of_domain = sums.get(domain, BucketSums())
        averages = _ordered(of_domain, ORDERS[domain])
        canonical = {name: value for name, value in averages.items() if name in ORDERS[domain]}
        details[domain.value] = {name: value for name, value in averages.items() if name not in canonical}
        if details[domain.value]:
            others = sum(ns for name, ns in of_domain.exclusive_ns.items() if name not in ORDERS[domain])
            canonical[OTHERS] = of_domain.average_ms(others)
        found[f"buckets_{domain.value}_avg_ms"] = canonical
        found[f"unattributed_{domain.value}_ms"] = (
            of_domain.average_ms(of_domain.unattributed_ns) if of_domain.steps else None
        )
        rows[domain.value] = tuple(_rows(of_domain, averages))
    return found | {"others_detail": details, "buckets": Buckets(**rows)}


def _ordered(sums: BucketSums, order: Sequence[str]) -> dict[str, float]:
    """Exclusive ms per step of the buckets that were opened: canonical ones in their order, then others by time."""
    opened = [name for name, nanoseconds in sums.exclusive_ns.items() if name in sums.calls or nanoseconds]
    others = sorted((name for name in opened if name not in order), key=lambda name: -sums.exclusive_ns[name])
    names = [*(name for name in order if name in opened), *others]
    return {name: sums.average_ms(sums.exclusive_ns[name]) for name in names}


def _rows(sums: BucketSums, averages: Mapping[str, float]) -> Iterable[BucketTime]:
    if not sums.steps:
        return
    whole_ns = sums.whole_ns
    for name, value in averages.items():
        yield BucketTime(
            name=name,
            exclusive_ms=value,
            inclusive_ms=sums.average_ms(sums.inclusive_ns[name]),
            share=sums.exclusive_ns[name] / whole_ns if whole_ns else None,
            calls_per_step=sums.calls.get(name, 0) / sums.steps,
        )
    rest = sums.average_ms(sums.unattributed_ns)
    share = sums.unattributed_ns / whole_ns if whole_ns else None
    yield BucketTime(name=UNATTRIBUTED, exclusive_ms=rest, inclusive_ms=rest, share=share, calls_per_step=None)


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


def _add(sums: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value
