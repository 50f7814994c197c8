"""The report's tables of requests; none where no request ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.inference.serving_results import Latency, ServingData, ServingStats
from rooflight.records.quantity import count_of, percent
from rooflight.records.report import Cell, Column, Table

_FIGURES: Final = (
    ("TTFT", "ttft_ms"),
    ("TPOT", "tpot_ms"),
    ("ITL", "itl_ms"),
    ("end to end", "e2e_ms"),
)


def serving_tables(data: ServingData) -> Iterable[Table]:
    """Latencies of requests, and throughput, of all and by the label of their runs."""
    if not data.requests:
        return
    groups: dict[str, ServingStats] = {"(all)": data} | data.by_label
    yield Table(
        id="serving",
        title="Serving: latency of requests",
        columns=(
            Column("runs"),
            Column("latency"),
            Column("n"),
            Column("mean", "s"),
            Column("p50", "s"),
            Column("p90", "s"),
            Column("p99", "s"),
        ),
        rows=tuple(
            (name, figure, *_latency(getattr(stats, field)))
            for name, stats in groups.items()
            for figure, field in _FIGURES
        ),
        note=(
            "TTFT: begin to first delivery. TPOT: first to last delivery, over tokens but one. ITL: between two "
            "deliveries of a request, however many tokens each has. End to end: begin to end."
        ),
    )
    yield Table(
        id="serving_throughput",
        title="Serving: throughput and goodput",
        columns=(
            Column("runs"),
            Column("requests"),
            Column("tokens"),
            Column("tokens per delivery"),
            Column("time", "s"),
            Column("requests/s"),
            Column("tok/s"),
            Column("met objectives", "%"),
            Column("goodput requests/s"),
        ),
        rows=tuple((name, *_throughput(stats)) for name, stats in groups.items()),
        note=_objectives(data),
    )


def serving_notes(data: ServingData) -> Iterable[str]:
    """What is not in the tables."""
    if data.unfinished:
        yield f"{count_of(data.unfinished, 'request')} did not end: in no latency but ITL."
    samples = data.request_samples
    if data.requests and not samples.exact:
        yield f"Percentiles of requests are of {samples.kept:,} chosen at random of {samples.seen:,}."


def serving_fact(data: ServingData) -> str | None:
    """Requests in one line."""
    if not data.requests:
        return None
    share = data.goodput.share
    met = "" if share is None else f", {percent(share)} of them within the objectives"
    return f"{count_of(data.requests, 'request')} of {count_of(data.tokens, 'token')}{met}"


def _latency(latency: Latency) -> tuple[Cell, ...]:
    times = (latency.mean, latency.p50, latency.p90, latency.p99)
    return latency.n, *(None if each is None else each / 1e3 for each in times)


def _throughput(stats: ServingStats) -> tuple[Cell, ...]:
    return (
        stats.requests,
        stats.tokens,
        stats.tokens_per_delivery,
        stats.duration_s,
        stats.requests_per_s,
        stats.output_tok_s,
        stats.goodput.share,
        stats.goodput.requests_per_s,
    )


def _objectives(data: ServingData) -> str:
    goodput = data.goodput
    given = {"TTFT": goodput.slo_ttft_ms, "TPOT": goodput.slo_tpot_ms, "end to end": goodput.slo_e2e_ms}
    wanted = ", ".join(f"{name} ≤ {most:g} ms" for name, most in given.items() if most is not None)
    return (
        f"Objectives: {wanted}." if wanted else "No objectives: set slo_ttft_ms, slo_tpot_ms or slo_e2e_ms for goodput."
    )
