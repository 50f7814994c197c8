"""The tables of a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Cell, Table, table
from rooflight.roofline.time_by_place import UNATTRIBUTED
from rooflight.studies.inference.facts import UNBINNED
from rooflight.studies.inference.result import (
    BoundsData,
    BucketBound,
    BucketSplit,
    GraphKind,
    RanksData,
    StepBound,
    StepStats,
    SummaryDocument,
)
from rooflight.studies.inference.serving import ServingData, ServingStats
from rooflight.studies.inference.speculation import SpeculativeData
from rooflight.studies.inference.sums import OTHERS

SHOWN: Final = 40
_long: Final = partial(table, top=SHOWN, see="summary.json has all")
"""A table of which people see the first rows."""

_NO_WORK_MS: Final = 1e-6
"""Less is no work that a bound says anything about."""

_Column = tuple[str, str, Callable[[Any], Cell]]


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _stats(of: Callable[[Any], StepStats] = lambda row: row.stats) -> tuple[_Column, ...]:
    return (
        ("steps", "", lambda row: of(row).steps),
        ("mean", "s", lambda row: _s(of(row).mean_ms)),
        ("p50", "s", lambda row: _s(of(row).p50_ms)),
        ("p90", "s", lambda row: _s(of(row).p90_ms)),
        ("p99", "s", lambda row: _s(of(row).p99_ms)),
        ("tok/s", "", lambda row: of(row).throughput_tok_s),
        ("tokens", "", lambda row: of(row).tokens_total),
    )


def _bounds(of: Callable[[Any], Any] = lambda row: row) -> tuple[_Column, ...]:
    """Columns of what a bucket's ops must do: a dash for what is less than a nanosecond of work."""

    def known(figure: Callable[[Any], Cell], other: Cell = None) -> Callable[[Any], Cell]:
        def cell(row: Any) -> Cell:
            found = of(row)
            return other if found.op_bound_ms is not None and found.op_bound_ms < _NO_WORK_MS else figure(found)

        return cell

    return (
        ("op bound", "s", known(lambda row: _s(row.op_bound_ms))),
        ("efficiency", "%", known(lambda row: row.efficiency)),
        ("limiter", "", known(lambda row: row.limiter, "no work")),
    )


def tables_of(summary: SummaryDocument) -> Iterable[Table]:
    """All tables that have rows, in the order of the report."""
    time: _Column = ("time", "s", lambda row: _s(row.stats.time_total_ms))
    yield table("global_summary", "Global summary", [summary], *_stats(), time)
    if summary.ranks is not None:
        yield from _ranks(summary.ranks)
    if summary.graphs:
        yield table(
            "cuda_graphs",
            "CUDA graphs",
            summary.graphs,
            ("graphs", "", lambda each: each.graphs),
            ("replays", "", lambda each: each.replays),
            ("buckets inside", "", _inside),
            wraps=("buckets inside",),
            note="A replay is timed as one, in bucket cuda_graph: the buckets inside were seen when the graph was "
            "captured, and their times are not known.",
            top=20,
            see="summary.json has all",
        )
    yield from _buckets(summary)
    yield _runs(summary)
    yield from _across_runs(summary)
    yield from _parts(summary)
    if summary.bucket_splits:
        yield _splits(summary.bucket_splits)
    if summary.speculative.rounds:
        yield from _speculation(summary)
    if summary.serving.requests:
        yield from _serving(summary.serving)
    if summary.bounds.steps:
        yield _step_bounds(summary.bounds)
    if any(split.bounds for split in summary.bucket_splits):
        yield _bucket_bounds(summary.bucket_splits)


def _inside(graph: GraphKind) -> str:
    if graph.buckets is None:
        return "not known: captured before attach_model()"
    return ", ".join(name if calls == 1 else f"{name} ({calls})" for name, calls in graph.buckets.items()) or "none"


def _buckets(summary: SummaryDocument) -> Iterable[Table]:
    for domain, rows in (("model", summary.buckets.model), ("engine", summary.buckets.engine)):
        if rows:
            yield table(
                f"{domain}_buckets",
                f"{domain.capitalize()} bucket breakdown (average per step)",
                rows,
                ("bucket", "", lambda row: row.name),
                ("avg", "s", lambda row: _s(row.exclusive_ms)),
                ("share", "%", lambda row: row.share),
                ("inclusive", "s", lambda row: _s(row.inclusive_ms)),
                ("calls per step", "", lambda row: row.calls_per_step),
                *(_bounds() if any(row.op_bound_ms is not None for row in rows) else ()),
                optional=("inclusive", "calls per step"),
                note="Each bucket without those inside it, so that shares sum to 100 %; inclusive has them too. "
                f"{UNATTRIBUTED} is the time in which no bucket of this domain was open.",
            )


def _runs(summary: SummaryDocument) -> Table:
    kv_cache: _Column = ("max KV cache", "B", lambda run: None if run.kv_cache is None else run.kv_cache.max_bytes)
    memory: _Column = ("memory after", "B", lambda run: None if run.memory is None else run.memory.after_bytes)
    return _long(
        "runs",
        "Per-run overview",
        summary.runs,
        ("run", "", lambda run: run.meta.number),
        ("label", "", lambda run: run.meta.label),
        ("batch", "", lambda run: run.meta.bsz if run.meta.batch_mean in (None, run.meta.bsz) else run.meta.batch_mean),
        ("count", "", lambda run: run.stats.steps),
        ("tokens", "", lambda run: run.stats.tokens_total),
        ("mean latency", "s", lambda run: _s(run.stats.mean_ms)),
        ("tok/s", "", lambda run: run.stats.throughput_tok_s),
        *((kv_cache,) if summary.kv_cache is not None else ()),
        *((memory,) if summary.memory is not None else ()),
        note=_warm_up_runs(summary.warmup_runs_skipped),
    )


def _warm_up_runs(runs: int) -> str:
    return "" if not runs else "Run 0 was a warm-up." if runs == 1 else f"Runs 0 to {runs - 1:,} were warm-ups."


def _across_runs(summary: SummaryDocument) -> Iterable[Table]:
    across = summary.runs_aggregate
    latency, speed, tokens = across.latency_ms, across.throughput_tok_s, across.tokens_total
    rows: list[tuple[str, Cell, Cell, int]] = [
        ("latency per step", _time(latency.mean), _time(latency.std), latency.n_runs),
        ("tok/s", speed.mean, speed.std, speed.n_runs),
        ("tokens", tokens.mean, tokens.std, tokens.n_runs),
    ]
    yield table(
        "across_runs",
        "Across runs: mean ± std",
        rows,
        ("metric", "", lambda row: row[0]),
        ("mean", "", lambda row: row[1]),
        ("std", "", lambda row: row[2]),
        ("runs", "", lambda row: row[3]),
        note="Each run counts the same; std is the sample standard deviation (n − 1).",
    )
    for domain, spreads in (("model", across.buckets_model_avg_ms), ("engine", across.buckets_engine_avg_ms)):
        if spreads:
            others = list(summary.others_detail.get(domain, {}))
            more = ", …" if len(others) > SHOWN else ""
            yield table(
                f"across_runs_{domain}",
                f"Across runs: {domain} buckets, mean ± std per step",
                spreads.items(),
                ("bucket", "", lambda row: row[0]),
                ("mean", "s", lambda row: _s(row[1].mean)),
                ("std", "s", lambda row: _s(row[1].std)),
                ("runs", "", lambda row: row[1].n_runs),
                note=f"{OTHERS}: {', '.join(others[:SHOWN])}{more}." if others else "",
            )


def _time(ms: float | None) -> Quantity | None:
    return None if ms is None else Quantity(ms / 1e3, "s")


def _parts(summary: SummaryDocument) -> Iterable[Table]:
    lengths = summary.decode_length_buckets
    of_key = _stats(lambda row: row[1])
    yield table(
        "decode_length_buckets",
        "Decode-length buckets",
        ({key: stats for key, stats in lengths.stats.items() if stats.steps} or lengths.stats).items(),
        ("KV length", "", lambda row: row[0]),
        *of_key,
        note=f"{UNBINNED}: steps without a KV length, or below the first bin." if UNBINNED in lengths.stats else "",
    )
    if len(summary.batch_sizes) > 1:
        batch: _Column = ("batch", "", lambda row: row.batch)
        yield _long("batch_sizes", "Decode steps by batch size", summary.batch_sizes, batch, *_stats())
    if summary.other_phases:
        yield table(
            "other_phases",
            "Steps of other phases",
            summary.other_phases.items(),
            ("phase", "", lambda row: row[0]),
            *of_key,
            note="Of the other tables, only buckets by batch size and KV length have these steps; so has the wall "
            "time.",
        )


_SPLIT: Final[tuple[_Column, ...]] = (
    ("domain", "", lambda row: row[0].domain),
    ("batch", "", lambda row: row[0].batch),
    ("KV length", "", lambda row: row[0].kv_bin),
)
"""Columns of rows that begin with a split."""


def _splits(splits: Iterable[BucketSplit]) -> Table:
    return _long(
        "bucket_splits",
        "Buckets by batch size and KV length",
        [
            (split, name, ms)
            for split in splits
            for name, ms in (*split.buckets_avg_ms.items(), (UNATTRIBUTED, split.unattributed_ms))
        ],
        *_SPLIT,
        ("steps", "", lambda row: row[0].steps),
        ("bucket", "", lambda row: row[1]),
        ("avg", "s", lambda row: _s(row[2])),
        ("share", "%", lambda row: row[2] / row[0].mean_ms if row[0].mean_ms else None),
    )


def _step_bounds(bounds: BoundsData) -> Table:
    return _long(
        "step_bounds",
        "Steps beside their bounds, by batch size and KV length",
        bounds.steps,
        ("batch", "", lambda step: step.batch),
        ("KV length", "", lambda step: step.kv_bin),
        ("recorded at", "", lambda step: step.kv_length),
        ("steps", "", lambda step: step.steps),
        ("avg", "s", lambda step: _s(step.mean_ms)),
        ("op bound", "s", lambda step: _s(step.op_bound_ms)),
        ("efficiency", "%", lambda step: step.efficiency),
        ("limiter", "", lambda step: step.limiter),
        ("program bound", "s", lambda step: _s(step.program_bound_ms)),
        ("fused bound", "s", lambda step: _s(step.fused_bound_ms)),
        ("compulsory bytes", "B", lambda step: step.compulsory_bytes),
        optional=("compulsory bytes", "fused bound", "program bound", "recorded at"),
        note="Efficiency: op bound / avg. Compulsory bytes: weights and KV cache read once, results written once.",
    )


def _bucket_bounds(splits: Iterable[BucketSplit]) -> Table:
    rows: list[tuple[BucketSplit, StepBound, str, float | None, StepBound | BucketBound]] = []
    for split in splits:
        whole = split.step_bound
        if whole is not None:
            ms = {**split.buckets_avg_ms, UNATTRIBUTED: split.unattributed_ms}
            rows.append((split, whole, "(whole step)", split.mean_ms, whole))
            rows += [(split, whole, each.name, ms.get(each.name), each) for each in split.bounds]
    return _long(
        "bucket_bounds",
        "Bounds by batch size and KV length",
        rows,
        *_SPLIT,
        ("recorded at", "", lambda row: row[1].kv_length),
        ("bucket", "", lambda row: row[2]),
        ("avg", "s", lambda row: _s(row[3])),
        *_bounds(lambda row: row[4]),
        note="Op bound: of the bucket's own ops in a step recorded at that KV length; those of all buckets sum to the "
        "whole step's. Efficiency: op bound / avg.",
    )


def _speculation(summary: SummaryDocument) -> Iterable[Table]:
    data = summary.speculative
    yield table(
        "speculative",
        "Speculative decoding",
        _metrics(data),
        ("metric", "", lambda row: row[0]),
        ("value", "", lambda row: row[1]),
        ("meaning", "", lambda row: row[2]),
        wraps=("meaning",),
    )
    yield from _accepted(data)
    yield _speedups(data)
    runs = [(run.meta, run.speculative) for run in summary.runs if run.speculative is not None]
    if len(runs) > 1:
        yield _long(
            "speculative_runs",
            "Speculative decoding by run",
            runs,
            ("run", "", lambda run: run[0].number),
            ("label", "", lambda run: run[0].label),
            ("rounds", "", lambda run: run[1].rounds),
            ("acceptance rate", "%", lambda run: run[1].acceptance_rate),
            ("alpha", "%", lambda run: run[1].alpha),
            ("mean accepted length", "", lambda run: run[1].mean_accepted_length),
            ("speed-up measured", "", lambda run: run[1].speedup_measured),
            ("predicted", "", lambda run: run[1].speedup_predicted),
            note="Speed-ups are relative to the plain steps of all runs.",
        )


def _accepted(data: SpeculativeData) -> Iterable[Table]:
    by_position = zip(data.acceptance_by_position or (), data.acceptance_by_position_if_tested or (), strict=True)
    yield _long(
        "acceptance_by_position",
        "Acceptance by position",
        enumerate(by_position, 1),
        ("position", "", lambda row: row[0]),
        ("accepted", "%", lambda row: row[1][0]),
        ("accepted if tested", "%", lambda row: row[1][1]),
        note="Accepted: of all rounds that proposed the position. If tested: of those that accepted all before it.",
    )
    yield _long(
        "accepted_lengths",
        "Accepted lengths",
        enumerate(data.rounds_by_accepted),
        ("draft tokens accepted", "", lambda row: row[0]),
        ("rounds", "", lambda row: row[1]),
        ("share", "%", lambda row: row[1] / data.rounds),
        note="Without the token that the target adds to each round.",
    )


def _speedups(data: SpeculativeData) -> Table:
    return table(
        "speedup_by_batch",
        "Speed-up by batch size",
        data.by_batch,
        ("batch", "", lambda row: row.batch),
        ("steps", "", lambda row: row.steps),
        ("step", "s", lambda row: _s(row.step_ms)),
        ("tok/s", "", lambda row: row.throughput_tok_s),
        ("KV length", "", lambda row: row.mean_kv_length),
        ("plain steps", "", lambda row: row.plain_steps),
        ("plain step", "s", lambda row: _s(row.plain_step_ms)),
        ("plain tok/s", "", lambda row: row.plain_throughput_tok_s),
        ("plain KV length", "", lambda row: row.plain_mean_kv_length),
        ("measured", "", lambda row: row.speedup_measured),
        ("predicted", "", lambda row: row.speedup_predicted),
        note="Speeds compare where KV lengths do.",
    )


def _metrics(data: SpeculativeData) -> Iterable[tuple[str, Cell, str]]:
    def share(value: float | None) -> Cell:
        return None if value is None else percent(value)

    yield "rounds", data.rounds, "one draft and its verification for one sequence"
    yield "proposed", data.proposed, "draft tokens"
    yield "accepted", data.accepted, "draft tokens, without those that the target adds"
    yield "acceptance rate", share(data.acceptance_rate), "accepted / proposed"
    yield "alpha", share(data.alpha), "accepted / tested: tokens after the first rejection are not tested"
    yield "mean accepted length", data.mean_accepted_length, "tokens of a round, with the one that the target adds"
    yield "tokens per target forward", data.tokens_per_target_forward, "of the whole batch"
    yield "step", _time(data.step_ms), "average"
    yield "draft", _time(data.draft_ms), "of a step, all passes of the draft"
    yield "verify", _time(data.verify_ms), "of a step, the target's pass"
    yield "overhead", _time(data.overhead_ms), "of a step, what is neither"
    yield "speed-up measured", data.speedup_measured, "tok/s in speculative steps / tok/s in plain steps, same batch"
    yield "speed-up predicted", data.speedup_predicted, "from alpha, the draft's depths and the times of steps"
    yield "speed-up by theorem 3.8", data.speedup_theorem_3_8, "if verification took a plain step, and nothing else"


def _serving(data: ServingData) -> Iterable[Table]:
    groups: dict[str, ServingStats] = {"(all)": data} | data.by_label
    yield table(
        "serving",
        "Serving: latency of requests",
        [
            (name, figure, latency)
            for name, stats in groups.items()
            for figure, latency in (
                ("TTFT", stats.ttft_ms),
                ("TPOT", stats.tpot_ms),
                ("ITL", stats.itl_ms),
                ("end to end", stats.e2e_ms),
            )
        ],
        ("runs", "", lambda row: row[0]),
        ("latency", "", lambda row: row[1]),
        ("n", "", lambda row: row[2].n),
        ("mean", "s", lambda row: _s(row[2].mean)),
        ("p50", "s", lambda row: _s(row[2].p50)),
        ("p90", "s", lambda row: _s(row[2].p90)),
        ("p99", "s", lambda row: _s(row[2].p99)),
        note="TTFT: begin to first delivery. TPOT: first to last delivery, over tokens but one. ITL: between two "
        "deliveries of a request, however many tokens each has. End to end: begin to end.",
    )
    yield _throughput(data, groups)


def _throughput(data: ServingData, groups: Mapping[str, ServingStats]) -> Table:
    goodput = data.goodput
    given = {"TTFT": goodput.slo_ttft_ms, "TPOT": goodput.slo_tpot_ms, "end to end": goodput.slo_e2e_ms}
    wanted = ", ".join(f"{name} ≤ {most:g} ms" for name, most in given.items() if most is not None)
    return table(
        "serving_throughput",
        "Serving: throughput and goodput",
        groups.items(),
        ("runs", "", lambda row: row[0]),
        ("requests", "", lambda row: row[1].requests),
        ("tokens", "", lambda row: row[1].tokens),
        ("tokens per delivery", "", lambda row: row[1].tokens_per_delivery),
        ("time", "s", lambda row: row[1].duration_s),
        ("requests/s", "", lambda row: row[1].requests_per_s),
        ("tok/s", "", lambda row: row[1].output_tok_s),
        ("met objectives", "%", lambda row: row[1].goodput.share),
        ("goodput requests/s", "", lambda row: row[1].goodput.requests_per_s),
        note=f"Objectives: {wanted}."
        if wanted
        else "No objectives: set slo_ttft_ms, slo_tpot_ms or slo_e2e_ms for goodput.",
    )


def _ranks(ranks: RanksData) -> Iterable[Table]:
    yield _long(
        "ranks",
        "Ranks",
        ranks.ranks,
        ("rank", "", lambda row: row.rank),
        ("steps", "", lambda row: row.steps),
        ("mean", "s", lambda row: _s(row.mean_ms)),
        ("p50", "s", lambda row: _s(row.p50_ms)),
        ("p99", "s", lambda row: _s(row.p99_ms)),
        ("tok/s", "", lambda row: row.throughput_tok_s),
        ("communication", "s", lambda row: _s(row.communication_ms)),
        ("problems", "", lambda row: row.problems),
        note="communication is the exclusive time of the model's comm. buckets per step: the rank that has least of it "
        "waits least, and the others wait for it.",
    )
    if any(row.requests or row.acceptance_rate is not None for row in ranks.ranks):
        yield _long(
            "rank_serving",
            "Drafts and requests of each rank",
            ranks.ranks,
            ("rank", "", lambda row: row.rank),
            ("accepted", "%", lambda row: row.acceptance_rate),
            ("mean accepted length", "", lambda row: row.mean_accepted_length),
            ("speed-up measured", "", lambda row: row.speedup_measured),
            ("requests", "", lambda row: row.requests),
            ("TTFT p50", "s", lambda row: _s(row.ttft_p50_ms)),
            ("TPOT p50", "s", lambda row: _s(row.tpot_p50_ms)),
        )
    yield from _rank_buckets(ranks)


def _rank_buckets(ranks: RanksData) -> Iterable[Table]:
    rows = [
        (domain, name, spread)
        for domain, spreads in (("model", ranks.buckets_model), ("engine", ranks.buckets_engine))
        for name, spread in spreads.items()
    ]
    if rows:
        yield _long(
            "rank_buckets",
            "Buckets across ranks (exclusive, average per step)",
            rows,
            ("domain", "", lambda row: row[0]),
            ("bucket", "", lambda row: row[1]),
            ("mean", "s", lambda row: _s(row[2].mean_ms)),
            ("least", "s", lambda row: _s(row[2].least_ms)),
            ("least rank", "", lambda row: row[2].least_rank),
            ("most", "s", lambda row: _s(row[2].most_ms)),
            ("most rank", "", lambda row: row[2].most_rank),
            ("spread", "s", lambda row: _s(row[2].spread_ms)),
            ("ranks", "", lambda row: row[2].ranks),
        )
