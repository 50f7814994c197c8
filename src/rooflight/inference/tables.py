"""The tables of a summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from rooflight.inference.facts import UNBINNED
from rooflight.inference.result import OTHERS, BucketSplit, Spread, StepStats, SummaryDocument
from rooflight.inference.sections import (
    BoundsData,
    GraphData,
    RanksData,
    ServingData,
    SpeculativeData,
    WholeStep,
)
from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Axis, Cell, Line, Mark, Series, Table, table_of_fields
from rooflight.roofline.time_by_place import UNATTRIBUTED

_SHOWN: Final = 40
_long: Final = partial(table_of_fields, top=_SHOWN, see="summary.json has all")
"""A table of which people see the first rows."""

_STATS: Final = (
    "stats.steps, stats.mean_ms, stats.p50_ms, stats.p90_ms, stats.p99_ms, stats.throughput_tok_s as tok/s, "
    "stats.tokens_total as tokens"
)


def tables_of(summary: SummaryDocument) -> Iterable[Table]:
    """All tables that have rows, in the order of the report."""
    yield table_of_fields("global_summary", "Global summary", [summary], f"{_STATS}, stats.time_total_ms as time")
    if summary.ranks is not None:
        yield from _ranks(summary.ranks)
    if summary.graphs:
        yield table_of_fields(
            "cuda_graphs",
            "CUDA graphs",
            [{"graph": graph, "buckets inside": _inside(graph)} for graph in summary.graphs],
            "graph.graphs, graph.replays, buckets inside",
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
        yield _long(
            "step_bounds",
            "Steps beside their bounds, by batch size and KV length",
            summary.bounds.steps,
            "batch, kv_bin as KV length, kv_length as recorded at, steps, mean_ms as avg, bound_ms as estimated, "
            "efficiency %, limiter as bound, program_bound_ms as program, fused_bound_ms as fused, op_bound_ms as op, "
            "compulsory_bound_ms as compulsory, compulsory_bytes as compulsory bytes",
            optional=("compulsory bytes", "fused", "program", "recorded at", "op", "compulsory"),
            note="Program, fused and op bound are those of a whole step. Compulsory is the time to read weights and KV "
            "cache once and to write the results, or that of all arithmetic if it is longer. Estimated is the larger "
            "of op and compulsory.",
        )
    if any(split.bounds for split in summary.bucket_splits):
        yield _bucket_bounds(summary.bucket_splits)


def _inside(graph: GraphData) -> str:
    if graph.buckets is None:
        return "not known: captured before attach_model()"
    return ", ".join(name if calls == 1 else f"{name} ({calls})" for name, calls in graph.buckets.items()) or "none"


def _buckets(summary: SummaryDocument) -> Iterable[Table]:
    for domain, rows in (("model", summary.buckets.model), ("engine", summary.buckets.engine)):
        if rows:
            bounded = any(row.bound_ms is not None for row in rows)
            yield table_of_fields(
                f"{domain}_buckets",
                f"{domain.capitalize()} bucket breakdown (average per step)",
                rows,
                "name as bucket, exclusive_ms as avg, share %, inclusive_ms, calls_per_step"
                + (", bound_ms as estimated, efficiency %, limiter as bound" if bounded else ""),
                note="Each bucket without those inside it, so that shares sum to 100 %; inclusive has them too. "
                f"{UNATTRIBUTED} is the time in which no bucket of this domain was open.",
            )


def _runs(summary: SummaryDocument) -> Table:
    batches = [each.meta.bsz if each.meta.batch_mean is None else each.meta.batch_mean for each in summary.runs]
    return _long(
        "runs",
        "Per-run overview",
        [{"run": run, "batch": _whole(batch)} for run, batch in zip(summary.runs, batches, strict=True)],
        "run.meta.number as run, run.meta.label, batch, run.stats.steps as count, run.stats.tokens_total as tokens, "
        "run.stats.mean_ms as mean latency, run.stats.throughput_tok_s as tok/s"
        + (", run.kv_cache.max_bytes as max KV cache" if summary.kv_cache is not None else "")
        + (", run.memory.after_bytes as memory after" if summary.memory is not None else ""),
        note="Runs are numbered from 0; the numbers that are missing are those of warm-up runs."
        if summary.warmup_runs_skipped
        else "",
    )


def _whole(mean: float | None) -> float | None:
    return int(mean) if mean is not None and mean == int(mean) else mean


def _across_runs(summary: SummaryDocument) -> Iterable[Table]:
    across = summary.runs_aggregate
    latency = {name: None if ms is None else Quantity(ms / 1e3, "s")
               for name, ms in (("mean", across.latency_ms.mean), ("std", across.latency_ms.std))}  # fmt: skip
    yield table_of_fields(
        "across_runs",
        "Across runs: mean ± std",
        [
            {"metric": "latency per step", "of": {**latency, "n_runs": across.latency_ms.n_runs}},
            {"metric": "tok/s", "of": across.throughput_tok_s},
            {"metric": "tokens", "of": across.tokens_total},
        ],
        "metric, of.mean, of.std, of.n_runs as runs",
        note="Each run counts the same; std is the sample standard deviation (n − 1).",
    )
    by_domain: dict[str, Mapping[str, Spread]] = {
        "model": across.buckets_model_avg_ms,
        "engine": across.buckets_engine_avg_ms,
    }
    for domain, spreads in by_domain.items():
        if spreads:
            others = list(summary.others_detail.get(domain, {}))
            more = ", …" if len(others) > _SHOWN else ""
            yield table_of_fields(
                f"across_runs_{domain}",
                f"Across runs: {domain} buckets, mean ± std per step",
                [{"bucket": name, "mean_ms": each.mean, "std_ms": each.std, "runs": each.n_runs}
                 for name, each in spreads.items()],
                "bucket, mean_ms, std_ms, runs",
                note=f"{OTHERS} is the sum of {', '.join(others[:_SHOWN])}{more}." if others else "",
            )  # fmt: skip


def _parts(summary: SummaryDocument) -> Iterable[Table]:
    """Steps by KV length, batch size and phase. Bins without a step are left out, unless all are."""
    lengths = summary.decode_length_buckets

    def rows(by_key: Mapping[str, StepStats]) -> list[dict[str, Any]]:
        return [{"key": key, "stats": stats} for key, stats in by_key.items()]

    yield table_of_fields(
        "decode_length_buckets",
        "Decode-length buckets",
        rows({key: stats for key, stats in lengths.stats.items() if stats.steps} or lengths.stats),
        f"key as KV length, {_STATS}",
        note=f"{UNBINNED}: steps without a KV length, or below the first bin." if UNBINNED in lengths.stats else "",
    )
    if len(summary.batch_sizes) > 1:
        yield _long("batch_sizes", "Decode steps by batch size", summary.batch_sizes, f"batch, {_STATS}")
    if summary.other_phases:
        yield table_of_fields(
            "other_phases",
            "Steps of other phases",
            rows(summary.other_phases),
            f"key as phase, {_STATS}",
            note="Of the other tables, only buckets by batch size and KV length have these steps; so has the wall "
            "time.",
        )


def _splits(splits: Iterable[BucketSplit]) -> Table:
    rows = [
        {"steps": split, "bucket": name, "avg_ms": ms, "share": ms / split.mean_ms if split.mean_ms else None}
        for split in splits
        for name, ms in (*split.buckets_avg_ms.items(), (UNATTRIBUTED, split.unattributed_ms))
    ]
    columns = "steps.domain, steps.batch, steps.kv_bin as KV length, steps.steps, bucket, avg_ms, share %"
    return _long("bucket_splits", "Buckets by batch size and KV length", rows, columns)


def _bucket_bounds(splits: Iterable[BucketSplit]) -> Table:
    """One row for each bucket of the steps of a batch and KV bin, after one for the whole step."""
    rows: list[dict[str, Any]] = []
    for split in splits:
        if split.step_bound is not None:
            ms = {**split.buckets_avg_ms, UNATTRIBUTED: split.unattributed_ms}
            rows.append({"steps": split, "bucket": "(whole step)", "avg_ms": split.mean_ms, "of": split.step_bound})
            rows += [{"steps": split, "bucket": each.name, "avg_ms": ms.get(each.name), "of": each}
                     for each in split.bounds]  # fmt: skip
    return _long(
        "bucket_bounds",
        "Bounds by batch size and KV length",
        rows,
        "steps.domain, steps.batch, steps.kv_bin as KV length, steps.step_bound.kv_length as recorded at, bucket, "
        "avg_ms, of.bound_ms as estimated, of.efficiency %, of.limiter as bound",
        note="Estimated is the op bound of the bucket's own ops in a step recorded at that KV length; the bounds of "
        "all buckets sum to that of the whole step.",
    )


def _speculation(summary: SummaryDocument) -> Iterable[Table]:
    data = summary.speculative
    yield table_of_fields(
        "speculative",
        "Speculative decoding",
        [dict(zip(("metric", "value", "meaning"), row, strict=True)) for row in _metrics(data)],
        "metric, value, meaning",
        wraps=("meaning",),
    )
    by_position = zip(data.acceptance_by_position or (), data.acceptance_by_position_if_tested or (), strict=True)
    yield _long(
        "acceptance_by_position",
        "Acceptance by position",
        [{"position": position, "accepted": accepted, "accepted if tested": if_tested}
         for position, (accepted, if_tested) in enumerate(by_position, 1)],
        "position, accepted %, accepted if tested %",
        note="Accepted: of all rounds that proposed the position. If tested: of those that accepted all before it.",
    )  # fmt: skip
    yield _long(
        "accepted_lengths",
        "Accepted lengths",
        [{"accepted": accepted, "rounds": rounds, "share": rounds / data.rounds}
         for accepted, rounds in enumerate(data.rounds_by_accepted)],
        "accepted as draft tokens accepted, rounds, share %",
        note="Without the token that the target adds to each round.",
    )  # fmt: skip
    yield table_of_fields(
        "speedup_by_batch",
        "Speed-up by batch size",
        data.by_batch,
        "batch, steps, step_ms, throughput_tok_s as tok/s, mean_kv_length as KV length, plain_steps, plain_step_ms, "
        "plain_throughput_tok_s as plain tok/s, plain_mean_kv_length as plain KV length, speedup_measured as measured, "
        "speedup_predicted as predicted",
        note="Speeds compare where KV lengths do.",
    )
    runs = [run for run in summary.runs if run.speculative is not None]
    if len(runs) > 1:
        yield _long(
            "speculative_runs",
            "Speculative decoding by run",
            runs,
            "meta.number as run, meta.label, speculative.rounds, speculative.acceptance_rate %, speculative.alpha %, "
            "speculative.mean_accepted_length, speculative.speedup_measured as speed-up measured, "
            "speculative.speedup_predicted as predicted",
            note="Speed-ups are relative to the plain steps of all runs.",
        )


def _metrics(data: SpeculativeData) -> Iterable[tuple[str, Cell, str]]:
    def share(value: float | None) -> Cell:
        return None if value is None else percent(value)

    def ms(value: float | None) -> Cell:
        return None if value is None else Quantity(value / 1e3, "s")

    yield "rounds", data.rounds, "one draft and its verification for one sequence"
    yield "proposed", data.proposed, "draft tokens"
    yield "accepted", data.accepted, "draft tokens, without those that the target adds"
    yield "acceptance rate", share(data.acceptance_rate), "accepted / proposed"
    yield "alpha", share(data.alpha), "accepted / tested: tokens after the first rejection are not tested"
    yield "mean accepted length", data.mean_accepted_length, "tokens of a round, with the one that the target adds"
    yield "tokens per target forward", data.tokens_per_target_forward, "of the whole batch"
    yield "step", ms(data.step_ms), "average"
    yield "draft", ms(data.draft_ms), "of a step, all passes of the draft"
    yield "verify", ms(data.verify_ms), "of a step, the target's pass"
    yield "overhead", ms(data.overhead_ms), "of a step, what is neither"
    yield "speed-up measured", data.speedup_measured, "tok/s in speculative steps / tok/s in plain steps, same batch"
    yield "speed-up predicted", data.speedup_predicted, "from alpha, the draft's depths and the times of steps"
    yield "speed-up by theorem 3.8", data.speedup_theorem_3_8, "if verification took a plain step, and nothing else"


def _serving(data: ServingData) -> Iterable[Table]:
    groups = {"(all)": data} | data.by_label
    figures = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "end to end": "e2e_ms"}
    latencies = [
        {"runs": name, "latency": figure, "n": of.n, "mean_ms": of.mean, "p50_ms": of.p50, "p90_ms": of.p90,
         "p99_ms": of.p99}
        for name, stats in groups.items()
        for figure, field in figures.items()
        for of in [getattr(stats, field)]
    ]  # fmt: skip
    yield table_of_fields(
        "serving",
        "Serving: latency of requests",
        latencies,
        "runs, latency, n, mean_ms, p50_ms, p90_ms, p99_ms",
        note="TTFT: begin to first delivery. TPOT: first to last delivery, over tokens but one. ITL: between two "
        "deliveries of a request, however many tokens each has. End to end: begin to end.",
    )
    goodput = data.goodput
    given = {"TTFT": goodput.slo_ttft_ms, "TPOT": goodput.slo_tpot_ms, "end to end": goodput.slo_e2e_ms}
    wanted = ", ".join(f"{name} ≤ {most:g} ms" for name, most in given.items() if most is not None)
    yield table_of_fields(
        "serving_throughput",
        "Serving: throughput and goodput",
        [{"runs": name, "of": stats} for name, stats in groups.items()],
        "runs, of.requests, of.tokens, of.tokens_per_delivery, of.duration_s as time, of.requests_per_s as requests/s, "
        "of.output_tok_s as tok/s, of.goodput.share as met objectives %, "
        "of.goodput.requests_per_s as goodput requests/s",
        note=f"Objectives: {wanted}."
        if wanted
        else "No objectives: set slo_ttft_ms, slo_tpot_ms or slo_e2e_ms for goodput.",
    )


def _ranks(ranks: RanksData) -> Iterable[Table]:
    yield _long(
        "ranks",
        "Ranks",
        ranks.ranks,
        "rank, steps, mean_ms, p50_ms, p99_ms, throughput_tok_s as tok/s, communication_ms, problems",
        note="communication is the exclusive time of the model's comm. buckets per step: the rank that has least of it "
        "waits least, and the others wait for it.",
    )
    if any(row.requests or row.acceptance_rate is not None for row in ranks.ranks):
        yield _long(
            "rank_serving",
            "Drafts and requests of each rank",
            ranks.ranks,
            "rank, acceptance_rate as accepted %, mean_accepted_length, speedup_measured as speed-up measured, "
            "requests, ttft_p50_ms as TTFT p50, tpot_p50_ms as TPOT p50",
        )
    rows = [
        {"domain": domain, "bucket": name, "of": spread}
        for domain, spreads in (("model", ranks.buckets_model), ("engine", ranks.buckets_engine))
        for name, spread in spreads.items()
    ]
    if rows:
        yield _long(
            "rank_buckets",
            "Buckets across ranks (exclusive, average per step)",
            rows,
            "domain, bucket, of.mean_ms, of.least_ms, of.least_rank, of.most_ms, of.most_rank, of.spread_ms, of.ranks",
        )


def series_of(summary: SummaryDocument) -> Iterable[Series]:
    """All pictures that have values."""
    yield from _bounds_over_length(summary.bounds)
    data = summary.speculative
    if data.rounds:
        lengths = data.rounds_by_accepted[:_SHOWN]
        names = tuple(f"{number} accepted" for number in range(len(lengths)))
        yield Series(
            id="accepted_lengths",
            title="Accepted lengths",
            x=Axis(name="draft tokens accepted"),
            y=Axis(name="rounds"),
            lines=(Line(name="rounds", x=names, y=tuple(map(float, lengths)), mark=Mark.BARS),),
        )
        shares = (data.acceptance_by_position or ())[:_SHOWN]
        names = tuple(f"position {number}" for number in range(1, len(shares) + 1))
        yield Series(
            id="acceptance_by_position",
            title="Acceptance by position of the draft",
            x=Axis(name="position"),
            y=Axis(name="accepted", unit="%"),
            lines=(Line(name="of rounds that proposed the position", x=names, y=shares, mark=Mark.BARS),),
        )


def _bounds_over_length(bounds: BoundsData) -> Iterable[Series]:
    """Steps and their bounds over the KV length, of the batch size that has most steps in several KV bins."""
    by_batch: dict[int | None, list[tuple[float, WholeStep]]] = {}
    for each in bounds.steps:
        if each.kv_length is not None:
            by_batch.setdefault(each.batch, []).append((each.kv_length, each))
    several = {size: steps for size, steps in by_batch.items() if len({length for length, _ in steps}) > 1}
    if not several:
        return
    size = max(several, key=lambda size: sum(each.steps for _, each in several[size]))
    chosen = sorted(several[size], key=lambda pair: pair[0])
    x = tuple(length for length, _ in chosen)
    yield Series(
        id="step_bounds",
        title=f"Steps of {'unknown batch' if size is None else f'batch {size:,}'} beside their bounds",
        x=Axis(name="KV length"),
        y=Axis(name="time of a step", unit="s", logarithmic=True),
        lines=(
            Line(name="measured", x=x, y=tuple(each.mean_ms / 1e3 for _, each in chosen)),
            Line(name="op bound", x=x, y=tuple(each.op_bound_ms / 1e3 for _, each in chosen)),
            Line(name="compulsory bound", x=x, y=tuple(each.compulsory_bound_ms / 1e3 for _, each in chosen)),
        ),
        note="Times are means of KV bins; bounds are of a step recorded at the mean KV length of each.",
    )
