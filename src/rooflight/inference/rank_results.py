"""Merging what ranks measured: each one's steps and buckets beside the others', the slowest rank and the spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rooflight.inference.rank_data import MissingRank, RankRow, RanksData, RankSpread, SameSteps
from rooflight.inference.summary import BucketTime, SummaryDocument

Steps = Mapping[tuple[int, int], int]
"""Nanoseconds of steps by run and step."""

COMMUNICATION: Final = "comm."


def ranks_data(
    summaries: Mapping[int, SummaryDocument],
    files: Mapping[int, str],
    missing: Iterable[MissingRank],
    steps: Sequence[tuple[int, Steps]],
    world: int,
) -> RanksData:
    """The ranks side by side, from their summaries and, where all of them are known, their raw steps."""
    ranks = {rank: summaries[rank] for rank in sorted(summaries)}
    waits = {rank: _communication_ms(summary) for rank, summary in ranks.items()}
    return RanksData(
        world=world,
        ranks=tuple(_row(rank, summary, files[rank], waits[rank]) for rank, summary in ranks.items()),
        missing=tuple(missing),
        latency=spread_of({rank: each.stats.mean_ms for rank, each in ranks.items()}),
        communication=spread_of(waits) if any(waits.values()) else None,
        same_steps=_same_steps(steps) if len(steps) == len(ranks) > 1 else None,
        buckets_model=_buckets({rank: summary.buckets.model for rank, summary in ranks.items()}),
        buckets_engine=_buckets({rank: summary.buckets.engine for rank, summary in ranks.items()}),
    )


def spread_of(values: Mapping[int, float | None]) -> RankSpread | None:
    """The spread of what is known, by rank; None if nothing is. Of equal values the lowest rank's counts."""
    known = {rank: value for rank, value in values.items() if value is not None}
    if not known:
        return None
    least, most = min(known, key=lambda rank: known[rank]), max(known, key=lambda rank: known[rank])
    mean = sum(known.values()) / len(known)
    return RankSpread(
        ranks=len(known),
        mean_ms=mean,
        least_ms=known[least],
        least_rank=least,
        most_ms=known[most],
        most_rank=most,
        spread_ms=known[most] - known[least],
        spread_share=(known[most] - known[least]) / mean if mean else None,
    )


def _row(rank: int, summary: SummaryDocument, file: str, communication_ms: float | None) -> RankRow:
    stats = summary.stats
    return RankRow(
        rank=rank,
        file=file,
        steps=stats.steps,
        mean_ms=stats.mean_ms,
        p50_ms=stats.p50_ms,
        p99_ms=stats.p99_ms,
        throughput_tok_s=stats.throughput_tok_s,
        communication_ms=communication_ms,
        acceptance_rate=summary.speculative.acceptance_rate,
        mean_accepted_length=summary.speculative.mean_accepted_length,
        speedup_measured=summary.speculative.speedup_measured,
        requests=summary.serving.requests,
        ttft_p50_ms=summary.serving.ttft_ms.p50,
        tpot_p50_ms=summary.serving.tpot_ms.p50,
        steps_lost=sum(run.meta.steps_lost for run in summary.runs),
        problems=sum(summary.problems.values()),
    )


def _communication_ms(summary: SummaryDocument) -> float | None:
    if not summary.buckets.model:
        return None
    return sum(row.exclusive_ms for row in summary.buckets.model if row.name.startswith(COMMUNICATION))


def _buckets(rows: Mapping[int, Sequence[BucketTime]]) -> dict[str, RankSpread]:
    """The exclusive time of each bucket, over the ranks that have it."""
    names = dict.fromkeys(row.name for of_rank in rows.values() for row in of_rank)
    found = {}
    for name in names:
        by_rank = {rank: row.exclusive_ms for rank, of_rank in rows.items() for row in of_rank if row.name == name}
        spread = spread_of(by_rank)
        if spread is not None:
            found[name] = spread
    return found


def _same_steps(steps: Sequence[tuple[int, Steps]]) -> SameSteps | None:
    common = set.intersection(*(set(each) for _, each in steps))
    if not common:
        return None
    slowest: Counter[str] = Counter()
    spreads_ms = []
    for step in common:
        by_rank = [(each[step], rank) for rank, each in steps]
        (least_ns, _), (most_ns, _) = min(by_rank), max(by_rank)
        spreads_ms.append((most_ns - least_ns) / 1e6)
        slowest[str(min(rank for nanoseconds, rank in by_rank if nanoseconds == most_ns))] += 1
    return SameSteps(
        steps=len(common),
        spread_mean_ms=sum(spreads_ms) / len(common),
        spread_max_ms=max(spreads_ms),
        slowest=dict(sorted(slowest.items(), key=lambda item: int(item[0]))),
    )
