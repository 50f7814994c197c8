"""Results: what finished runs add up to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rooflight.capture.bucket_log import MOST_NOTES
from rooflight.inference.config import Domain
from rooflight.inference.memory_use import memory_data, over_runs
from rooflight.inference.meter import Meter
from rooflight.inference.problems import Problems
from rooflight.inference.speculation_results import Speculation
from rooflight.inference.steps import MOST_BATCHES, Run, Steps
from rooflight.inference.summary import ProfilerCost, RunData, RunsAggregate, Spread
from rooflight.inference.summary_sections import MemoryData
from rooflight.records.quantity import Quantity, count_of

if TYPE_CHECKING:
    from rooflight.inference.step_spans import StepSpans

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
