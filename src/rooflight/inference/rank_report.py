"""The ranks in the report: each one's steps, the slowest, and the spread of each bucket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.inference.rank_data import RanksData
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Column, Table

_SHOWN: Final = 40
_SEE: Final = "summary.json has all"


def rank_tables(ranks: RanksData | None) -> Iterable[Table]:
    """Tables of the ranks; none for one rank."""
    if ranks is None:
        return
    yield Table(
        id="ranks",
        title="Ranks",
        columns=(
            Column("rank"),
            Column("steps"),
            Column("mean", "s"),
            Column("p50", "s"),
            Column("p99", "s"),
            Column("tok/s"),
            Column("communication", "s"),
            Column("problems"),
        ),
        rows=tuple(
            (
                row.rank,
                row.steps,
                *(None if ms is None else ms / 1e3 for ms in (row.mean_ms, row.p50_ms, row.p99_ms)),
                row.throughput_tok_s,
                None if row.communication_ms is None else row.communication_ms / 1e3,
                row.problems,
            )
            for row in ranks.ranks
        ),
        note="communication is the exclusive time of the model's comm. buckets per step: the rank that has least of it "
        "waits least, and the others wait for it.",
        top=_SHOWN,
        see=_SEE,
    )
    if any(row.requests or row.acceptance_rate is not None for row in ranks.ranks):
        yield _serving(ranks)
    rows = tuple(
        (domain, name, each.mean_ms / 1e3, each.least_ms / 1e3, each.least_rank, each.most_ms / 1e3, each.most_rank,
         each.spread_ms / 1e3, each.ranks)
        for domain, spreads in (("model", ranks.buckets_model), ("engine", ranks.buckets_engine))
        for name, each in spreads.items()
    )  # fmt: skip
    if rows:
        yield Table(
            id="rank_buckets",
            title="Buckets across ranks (exclusive, average per step)",
            columns=(
                Column("domain"),
                Column("bucket"),
                Column("mean", "s"),
                Column("least", "s"),
                Column("least rank"),
                Column("most", "s"),
                Column("most rank"),
                Column("spread", "s"),
                Column("ranks"),
            ),
            rows=rows,
            top=_SHOWN,
            see=_SEE,
        )


def _serving(ranks: RanksData) -> Table:
    return Table(
        id="rank_serving",
        title="Drafts and requests of each rank",
        columns=(
            Column("rank"),
            Column("accepted", "%"),
            Column("mean accepted length"),
            Column("speed-up measured"),
            Column("requests"),
            Column("TTFT p50", "s"),
            Column("TPOT p50", "s"),
        ),
        rows=tuple(
            (
                row.rank,
                row.acceptance_rate,
                row.mean_accepted_length,
                row.speedup_measured,
                row.requests,
                *(None if ms is None else ms / 1e3 for ms in (row.ttft_p50_ms, row.tpot_p50_ms)),
            )
            for row in ranks.ranks
        ),
        top=_SHOWN,
        see=_SEE,
    )


def rank_facts(ranks: RanksData | None) -> Iterable[tuple[str, Cell]]:
    """The slowest rank, and how far ranks differ."""
    if ranks is None:
        return
    yield "ranks", f"{len(ranks.ranks)} of {ranks.world} merged"
    latency = ranks.latency
    if latency is not None and latency.ranks > 1:
        share = "" if latency.spread_share is None else f", {percent(latency.spread_share)}"
        yield (
            "slowest rank",
            f"{latency.most_rank}: {_ms(latency.most_ms)} per step on average, {_ms(latency.spread_ms)} more than rank "
            f"{latency.least_rank}{share}",
        )
    waits = ranks.communication
    if waits is not None and waits.ranks > 1:
        yield (
            "communication",
            f"{_ms(waits.least_ms)} per step on rank {waits.least_rank} (waits least), {_ms(waits.most_ms)} on rank "
            f"{waits.most_rank} (waits most)",
        )
    same = ranks.same_steps
    if same is not None:
        slowest = max(same.slowest, key=lambda rank: same.slowest[rank])
        times = count_of(same.slowest[slowest], "step")
        yield (
            f"{count_of(same.steps, 'step')} across ranks",
            f"{_ms(same.spread_mean_ms)} between the slowest and the fastest rank on average, "
            f"{_ms(same.spread_max_ms)} at most; rank {slowest} is the slowest in {times}",
        )


def rank_notes(ranks: RanksData | None) -> Iterable[str]:
    """Ranks that are missing."""
    for each in () if ranks is None else ranks.missing:
        yield f"Rank {each.rank} is not in these results: {each.reason}."


def _ms(value: float) -> Quantity:
    return Quantity(value / 1e3, "s")
