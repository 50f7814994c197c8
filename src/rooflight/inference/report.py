"""The report of all measured runs: ``report.md``, and ``summary.json`` as its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rooflight.inference.bounds_report import bound_facts, bound_notes, bounds_series, bounds_table, steps_table
from rooflight.inference.graph_report import graph_tables
from rooflight.inference.kv_length import UNBINNED
from rooflight.inference.memory_report import memory_cells, memory_columns, memory_facts
from rooflight.inference.rank_report import rank_facts, rank_notes, rank_tables
from rooflight.inference.serving_report import serving_fact, serving_notes, serving_tables
from rooflight.inference.speculation_report import (
    speculation_by_run,
    speculation_fact,
    speculation_notes,
    speculation_series,
    speculation_tables,
)
from rooflight.inference.summary import (
    OTHERS,
    BucketFields,
    BucketTime,
    LengthStats,
    ProfilerCost,
    RunData,
    Spread,
    StepStats,
    SummaryDocument,
)
from rooflight.inference.workload_report import workload_facts, workload_notes
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Column, Report, Table
from rooflight.roofline.time_by_place import UNATTRIBUTED

_LATENCIES: Final = (Column("mean", "s"), Column("p50", "s"), Column("p90", "s"), Column("p99", "s"))
_SPREAD: Final = (Column("mean", "s"), Column("std", "s"), Column("runs"))
_BOUND: Final = (Column("estimated", "s"), Column("efficiency", "%"), Column("bound"))
_SHOWN: Final = 40
_SEE: Final = "summary.json has all"
_NUMBERS: Final = "Runs are numbered from 0; the numbers that are missing are those of warm-up runs."
_UNBINNED: Final = f"{UNBINNED}: steps without a KV length, or below the first bin."
_EXCLUSIVE: Final = (
    "Each bucket without those inside it, so that shares sum to 100 %; inclusive has them too. "
    f"{UNATTRIBUTED} is the time in which no bucket of this domain was open."
)


def report_of(summary: SummaryDocument) -> Report:
    """The report of a summary."""
    return Report(
        title=f"Decode steps: {summary.meta.run_name}",
        data=summary,
        facts=tuple(_facts(summary)),
        tables=tuple(_tables(summary)),
        series=(*bounds_series(summary.bounds), *speculation_series(summary.speculative)),
        notes=tuple(_notes(summary)),
        conclusion=_conclusion(summary),
    )


def _tables(summary: SummaryDocument) -> Iterable[Table]:
    yield Table(
        id="global_summary",
        title="Global summary",
        columns=(
            Column("steps"),
            *_LATENCIES,
            Column("tok/s"),
            Column("tokens"),
            Column("time", "s"),
        ),
        rows=((*_stats(summary.stats), summary.stats.tokens_total, summary.stats.time_total_ms / 1e3),),
    )
    yield from rank_tables(summary.ranks)
    yield from graph_tables(summary.graphs)
    yield from _bucket_tables(summary, "Model bucket breakdown", "Engine bucket breakdown")
    yield Table(
        id="runs",
        title="Per-run overview",
        columns=(
            Column("run"),
            Column("label"),
            Column("batch"),
            Column("count"),
            Column("tokens"),
            Column("mean latency", "s"),
            Column("tok/s"),
            *memory_columns(summary),
        ),
        note=_NUMBERS if summary.warmup_runs_skipped else "",
        rows=tuple((*_run_row(run), *memory_cells(summary, run)) for run in summary.runs),
        top=_SHOWN,
        see=_SEE,
    )
    yield from _across_runs(summary)
    yield _lengths(summary.decode_length_buckets)
    if len(summary.batch_sizes) > 1:
        yield _batches(summary)
    if summary.other_phases:
        yield _other_phases(summary)
    if summary.bucket_splits:
        yield _splits(summary)
    yield from speculation_tables(summary.speculative)
    yield from speculation_by_run(
        [(run.meta.number, run.meta.label, run.speculative) for run in summary.runs if run.speculative is not None]
    )
    yield from serving_tables(summary.serving)
    if summary.bounds.steps:
        yield steps_table(summary.bounds)
    if any(split.bounds for split in summary.bucket_splits):
        yield bounds_table(summary.bucket_splits)


def _stats(stats: StepStats) -> tuple[Cell, ...]:
    times = (stats.mean_ms, stats.p50_ms, stats.p90_ms, stats.p99_ms)
    return stats.steps, *map(_seconds, times), stats.throughput_tok_s


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _bucket_tables(buckets: BucketFields, *titles: str) -> Iterable[Table]:
    both: tuple[tuple[str, Sequence[BucketTime]], ...] = (
        ("model", buckets.buckets.model),
        ("engine", buckets.buckets.engine),
    )
    for (domain, rows), title in zip(both, titles, strict=True):
        if rows:
            bounded = any(row.bound_ms is not None for row in rows)
            yield Table(
                id=f"{domain}_buckets",
                title=f"{title} (average per step)",
                columns=(
                    Column("bucket"),
                    Column("avg", "s"),
                    Column("share", "%"),
                    Column("inclusive", "s"),
                    Column("calls per step"),
                    *(_BOUND if bounded else ()),
                ),
                rows=tuple(
                    (
                        row.name,
                        row.exclusive_ms / 1e3,
                        row.share,
                        row.inclusive_ms / 1e3,
                        row.calls_per_step,
                        *((_seconds(row.bound_ms), row.efficiency, row.limiter) if bounded else ()),
                    )
                    for row in rows
                ),
                note=_EXCLUSIVE,
            )


def _run_row(run: RunData) -> tuple[Cell, ...]:
    stats = run.stats
    return (
        run.meta.number,
        run.meta.label,
        run.meta.bsz if run.meta.batch_mean in (None, run.meta.bsz) else run.meta.batch_mean,
        stats.steps,
        stats.tokens_total,
        _seconds(stats.mean_ms),
        stats.throughput_tok_s,
    )


def _across_runs(summary: SummaryDocument) -> Iterable[Table]:
    across = summary.runs_aggregate
    yield Table(
        id="across_runs",
        title="Across runs: mean ± std",
        columns=(Column("metric"), Column("mean"), Column("std"), Column("runs")),
        rows=(
            _spread_row("latency per step", across.latency_ms, is_time=True),
            _spread_row("tok/s", across.throughput_tok_s),
            _spread_row("tokens", across.tokens_total),
        ),
        note="Each run counts the same; std is the sample standard deviation (n − 1).",
    )
    by_domain: Mapping[str, Mapping[str, Spread]] = {
        "model": across.buckets_model_avg_ms,
        "engine": across.buckets_engine_avg_ms,
    }
    for domain, spreads in by_domain.items():
        if spreads:
            yield Table(
                id=f"across_runs_{domain}",
                title=f"Across runs: {domain} buckets, mean ± std per step",
                columns=(Column("bucket"), *_SPREAD),
                rows=tuple(
                    (name, _seconds(each.mean), _seconds(each.std), each.n_runs) for name, each in spreads.items()
                ),
                note=_of_others(summary.others_detail.get(domain, {})),
            )


def _of_others(names: Mapping[str, float]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{OTHERS} is the sum of {shown}{', …' if len(names) > _SHOWN else ''}." if names else ""


def _spread_row(name: str, spread: Spread, *, is_time: bool = False) -> tuple[Cell, ...]:
    def cell(value: float | None) -> Cell:
        return Quantity(value / 1e3, "s") if is_time and value is not None else value

    return name, cell(spread.mean), cell(spread.std), spread.n_runs


def _lengths(lengths: LengthStats) -> Table:
    """Bins without a step are left out, unless all are."""
    bins = [each for each in lengths.bins if lengths.stats[each.key].steps] or lengths.bins
    return Table(
        id="decode_length_buckets",
        title="Decode-length buckets",
        columns=(Column("KV length"), Column("steps"), *_LATENCIES, Column("tok/s"), Column("tokens")),
        rows=tuple((each.key, *_stats(lengths.stats[each.key]), lengths.stats[each.key].tokens_total) for each in bins),
        note=_UNBINNED if UNBINNED in lengths.stats else "",
    )


def _batches(summary: SummaryDocument) -> Table:
    return Table(
        id="batch_sizes",
        title="Decode steps by batch size",
        columns=(Column("batch"), Column("steps"), *_LATENCIES, Column("tok/s"), Column("tokens")),
        rows=tuple((each.batch, *_stats(each.stats), each.stats.tokens_total) for each in summary.batch_sizes),
        top=_SHOWN,
        see=_SEE,
    )


def _other_phases(summary: SummaryDocument) -> Table:
    return Table(
        id="other_phases",
        title="Steps of other phases",
        columns=(Column("phase"), Column("steps"), *_LATENCIES, Column("tok/s"), Column("tokens")),
        rows=tuple((phase, *_stats(stats), stats.tokens_total) for phase, stats in summary.other_phases.items()),
        note="Of the other tables, only buckets by batch size and KV length have these steps; so has the wall time.",
    )


def _splits(summary: SummaryDocument) -> Table:
    rows = [
        (
            split.domain,
            split.batch,
            split.kv_bin,
            split.steps,
            name,
            ms / 1e3,
            ms / split.mean_ms if split.mean_ms else None,
        )
        for split in summary.bucket_splits
        for name, ms in (*split.buckets_avg_ms.items(), (UNATTRIBUTED, split.unattributed_ms))
    ]
    return Table(
        id="bucket_splits",
        title="Buckets by batch size and KV length",
        columns=(
            Column("domain"),
            Column("batch"),
            Column("KV length"),
            Column("steps"),
            Column("bucket"),
            Column("avg", "s"),
            Column("share", "%"),
        ),
        rows=tuple(rows),
        top=_SHOWN,
        see=_SEE,
    )


def _facts(summary: SummaryDocument) -> Iterable[tuple[str, Cell]]:
    meta, config, wall = summary.meta, summary.meta.config, summary.wall
    if summary.workload is not None:
        yield from workload_facts(summary.workload)
    yield "output folder", meta.output_dir
    yield "rank", f"{meta.rank} of {meta.world}"
    yield from rank_facts(summary.ranks)
    yield "started", meta.started_at
    yield (
        "runs",
        (
            f"{len(summary.runs) + summary.runs_left_out:,} measured of {config.num_total_runs} planned, "
            f"{count_of(summary.warmup_runs_skipped, 'warm-up run')} skipped"
        ),
    )
    yield (
        "config",
        f"model_profiling={config.model_profiling} engine_profiling={config.engine_profiling} "
        f"strict_sync={config.strict_sync} dist_barrier={config.dist_barrier} "
        f"kv_len_reduce={config.kv_len_reduce} kv_bins={config.kv_bins}",
    )
    yield "clock of steps", meta.clock
    yield from bound_facts(summary.bounds)
    yield from memory_facts(summary)
    if summary.stats.steps or summary.other_phases:
        speed = "" if wall.throughput_tok_s is None else f", {wall.throughput_tok_s:,.1f} tok/s"
        share = wall.gaps_total_ms / wall.wall_total_ms if wall.wall_total_ms else 0.0
        yield (
            "wall time",
            (
                f"{Quantity(wall.wall_total_ms / 1e3, 's')}{speed}; "
                f"between steps {Quantity(wall.gaps_total_ms / 1e3, 's')}, {percent(share)}"
            ),
        )
        yield "profiler's own cost", _cost(summary.profiler_cost)
    told = {
        "speculative decoding": speculation_fact(summary.speculative),
        "requests": serving_fact(summary.serving),
    }
    yield from ((name, fact) for name, fact in told.items() if fact is not None)
    samples = summary.samples
    of_what = "all steps" if samples.exact else f"{samples.kept:,} steps chosen at random of {samples.steps:,}"
    yield "percentiles", f"of {of_what}, by {meta.percentiles}"


def _cost(cost: ProfilerCost) -> str:
    """Of a run with steps."""
    in_step, after = (Quantity((ms or 0.0) / 1e3, "s") for ms in (cost.in_step_ms, cost.between_steps_ms))
    share = "" if cost.in_step_share is None else f", {percent(cost.in_step_share)} of it"
    each = Quantity(cost.bucket_ns / 1e9, "s")
    return f"{in_step} in a step ({cost.buckets_per_step or 0:.1f} buckets of {each}{share}), {after} after it"


def _notes(summary: SummaryDocument) -> Iterable[str]:
    stats = summary.stats
    if stats.steps_without_tokens and stats.throughput_tok_s is not None:
        yield (
            f"{count_of(stats.steps_without_tokens, 'step has', 'steps have')} no token count: "
            "throughput is over the others."
        )
    if summary.runs_left_out:
        yield (
            f"The first {len(summary.runs):,} runs are shown one by one; {summary.runs_left_out:,} more are in all "
            "other figures but those across runs."
        )
    without = summary.decode_length_buckets.steps_without_length
    if without:
        yield (
            f"{count_of(without, 'step has', 'steps have')} no KV length, since set_step_seq_len() gave none: they are "
            "unbinned, and have no bound."
        )
    if summary.workload is not None:
        yield from workload_notes(summary.workload)
    yield from speculation_notes(summary.speculative)
    yield from serving_notes(summary.serving)
    yield from bound_notes(summary.bounds)
    yield from rank_notes(summary.ranks)
    for text, count in summary.problems.items():
        yield text if count == 1 else f"{text} ({count:,} times)"


def _conclusion(summary: SummaryDocument) -> str:
    stats = summary.stats
    if not stats.steps or stats.mean_ms is None:
        if summary.warmup_runs_skipped and not summary.runs:
            skipped = summary.warmup_runs_skipped
            runs = "only run was a warm-up run" if skipped == 1 else f"{skipped:,} runs were warm-up runs"
            return (
                f"No step was measured: the {runs} (warmup_runs={summary.meta.config.warmup_runs}). "
                "Make more runs, or set warmup_runs=0."
            )
        if summary.other_phases:
            phases = " and ".join(count_of(each.steps, f"{phase} step") for phase, each in summary.other_phases.items())
            return f"No decode step was measured, but {phases}."
        return "No step was measured: put each step in step_timing_ctx(), between begin_run() and end_run()."
    speed = "" if stats.throughput_tok_s is None else f", {stats.throughput_tok_s:,.1f} tok/s in steps"
    rows = (
        summary.buckets.model if len(summary.buckets.model) > 1 else summary.buckets.engine
    )  # not what holds the model
    largest = max(
        (row for row in rows if row.name != UNATTRIBUTED and row.share),
        key=lambda row: row.exclusive_ms,
        default=None,
    )
    most = "" if largest is None else f"; the largest bucket is {largest.name} with {percent(largest.share or 0.0)}"
    return f"{count_of(stats.steps, 'step')} of {Quantity(stats.mean_ms / 1e3, 's')} on average{speed}{most}."
