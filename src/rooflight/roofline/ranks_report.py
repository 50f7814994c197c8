"""The ranks of a run as a Report: a row per rank, the spread, and the slowest rank in full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TypeVar

from rooflight.devices.spec import roofs_used_by
from rooflight.records.document import Document, Fields
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Column, Report, Table
from rooflight.records.series import Series
from rooflight.roofline.ranks import RankedAnalysis, RankTimes
from rooflight.roofline.report import report_of
from rooflight.roofline.report_data import AnalysisDocument, analysis_data

_EVEN = 0.05  # share of a step that the ranks' waiting may differ by for them to count as even
_NAMED = 8
_PAIRS = 1000  # pairs of ranks in JSON, the longest waits


class RankData(Fields, frozen=True, kw_only=True):
    """A rank's step in seconds; ``own_s`` is the step without the time in collectives alone."""

    rank: int
    measured_s: float | None
    computing_s: float | None
    exposed_s: float | None
    op_bound_s: float
    bytes_sent: int
    predicted_s: float | None
    own_s: float | None


class SpreadData(Fields, frozen=True, kw_only=True):
    """How far ranks differ in one figure."""

    name: str
    lowest_s: float
    median_s: float
    highest_s: float
    spread_s: float
    share_of_median: float | None


class WaitData(Fields, frozen=True, kw_only=True):
    """How long a rank waited per step for another to arrive in collectives."""

    rank: int
    for_rank: int
    seconds: float
    collectives: float


class RankWaitsData(Fields, frozen=True, kw_only=True):
    """Per step: how long a rank waited for others in collectives, for which of them longest, how long the others waited
    for it in sum, and in how many collectives it arrived last.
    """

    rank: int
    waits_s: float
    longest_for: int | None
    longest_s: float
    others_wait_s: float
    last_in: float


class WaitingData(Fields, frozen=True, kw_only=True):
    """Who waits for whom: by rank, and the pairs that wait longest. So many ``collectives`` of a step were compared."""

    ranks: tuple[RankWaitsData, ...]
    longest: tuple[WaitData, ...]
    collectives: int
    unmatched: int


class RanksDocument(Document, frozen=True, kw_only=True, tag="rooflight.ranks/1"):
    """The ranks of a run side by side, and the slowest in full."""

    world_size: int
    missing_ranks: tuple[int, ...]
    slowest_rank: int
    least_exposed_rank: int | None
    ranks: tuple[RankData, ...]
    spreads: tuple[SpreadData, ...]
    waiting: WaitingData
    slowest: AnalysisDocument
    conclusion: str


def ranks_report(ranked: RankedAnalysis, *, top: int = 10) -> Report:
    """The report of a run's ranks; ``top`` limits the rows of long tables. Raises ValueError for ``top`` < 1."""
    slowest = ranked.analyses[ranked.slowest]
    whole = report_of(slowest, top=top)
    tables = tuple(_of_slowest(table, ranked) for table in whole.tables)
    return Report(
        title=f"{whole.title}, {count_of(ranked.world_size, 'rank')}",
        data=_data(ranked, analysis_data(slowest, whole.conclusion)),
        facts=tuple(_facts(ranked)),
        tables=(_ranks_table(ranked, top), *_waits_table(ranked, top), _spread_table(ranked), *tables),
        series=tuple(_of_slowest(series, ranked) for series in whole.series),
        notes=(*ranked.notes, *_notes(ranked), *(f"Rank {ranked.slowest}: {note}" for note in whole.notes)),
        conclusion=f"{_verdict(ranked)}{_last(ranked)} Rank {ranked.slowest}: {whole.conclusion}",
    )


_Part = TypeVar("_Part", Table, Series)


def _of_slowest(part: _Part, ranked: RankedAnalysis) -> _Part:
    """A table or picture of the slowest rank's report, under a name of its own."""
    return replace(part, id=f"slowest_{part.id}", title=f"Rank {ranked.slowest}: {part.title}")


def _verdict(ranked: RankedAnalysis) -> str:
    """Who is slow, by how much, and who waits."""
    if len(ranked.times) == 1:
        return f"Only rank {ranked.slowest} is known."
    slowest = next(time for time in ranked.times if time.rank == ranked.slowest)
    if slowest.measured_s is None:
        return (
            f"Nothing was measured: rank {slowest.rank} has the largest op bound, {Quantity(slowest.op_bound_s, 's')}."
        )
    spreads = {spread.name: spread for spread in ranked.spreads}
    step, waiting = spreads.get("measured step"), spreads.get("exposed communication")
    if step is None or waiting is None or slowest.exposed_s is None:
        more = "" if step is None else f", {Quantity(step.seconds, 's')} longer than the fastest"
        return f"Rank {slowest.rank} has the longest step: {Quantity(slowest.measured_s, 's')}{more}."
    if waiting.seconds <= _EVEN * step.median_s:
        return f"The ranks are even: their waiting differs by {Quantity(waiting.seconds, 's')} per step."
    most = max(ranked.times, key=lambda time: time.exposed_s or 0.0)
    return (
        f"Rank {slowest.rank} is the slowest: it spends {Quantity(slowest.exposed_s, 's')} of a step in collectives "
        f"alone, while rank {most.rank}, which waits for it, spends {Quantity(waiting.highest_s, 's')} "
        f"({Quantity(waiting.seconds, 's')} apart, {percent(waiting.seconds / step.median_s)} of a step)."
        if most.rank != slowest.rank
        else f"Rank {slowest.rank} is the slowest, and its collectives last longest: its own link may be the reason."
    )


def _last(ranked: RankedAnalysis) -> str:
    """The rank that arrives last in collectives, where the others wait for it for some share of a step."""
    last, others = ranked.waiting.last, len(ranked.waiting.by_rank) - 1
    steps = [time.measured_s for time in ranked.times if time.measured_s is not None]
    if last is None or not steps or last.others_wait_s / others <= _EVEN * max(steps):
        return ""
    return (
        f" Rank {last.rank} arrives last in {last.last_in:.3g} of {count_of(ranked.waiting.collectives, 'collective')} "
        f"per step; each of the others waits {Quantity(last.others_wait_s / others, 's')} for it on average."
    )


def _facts(ranked: RankedAnalysis) -> Iterable[tuple[str, Cell]]:
    known = len(ranked.times)
    yield "ranks", f"{known} of {ranked.world_size}" if ranked.missing else f"{ranked.world_size}"
    yield "slowest rank", str(ranked.slowest)
    if ranked.least_exposed is not None and known > 1:
        yield "waits least", f"rank {ranked.least_exposed} (least time in collectives alone)"
    if (last := ranked.waiting.last) is not None:
        yield "arrives last", f"rank {last.rank}, in {last.last_in:.3g} of {ranked.waiting.collectives:,} collectives"
        yield "others wait for it", Quantity(last.others_wait_s, "s")
    backends = {analysis.session.environment.get("backend", "") for analysis in ranked.analyses.values()} - {""}
    if backends:
        yield "backend", ", ".join(sorted(backends))
    devices = [analysis.device for analysis in ranked.analyses.values()]
    yield "devices", ", ".join(sorted({device.name for device in devices}))
    yield "roofs from", roofs_used_by(devices)


def _notes(ranked: RankedAnalysis) -> Iterable[str]:
    if ranked.missing:
        shown = ", ".join(map(str, ranked.missing[:_NAMED])) + (", …" if len(ranked.missing) > _NAMED else "")
        which = f"rank {shown}" if len(ranked.missing) == 1 else f"ranks {shown}"
        yield f"No session of {which}: it may have died, and may have been the slowest."
    if ranked.waiting.unmatched and len(ranked.times) > 1:
        yield (
            f"Who waited for whom is not known of {count_of(ranked.waiting.unmatched, 'collective')} per step: its "
            "group is not known, a rank of it has no session or ran other collectives, or it was not timed."
        )
    if not ranked.comparable:
        yield "Not all ranks were measured: the slowest is the slowest of the measured ones."
    targets = {analysis.session.environment.get("target", "") for analysis in ranked.analyses.values()}
    if len(targets) > 1:
        yield f"The ranks did not run the same: {', '.join(sorted(target or '(unnamed)' for target in targets))}."


def _ranks_table(ranked: RankedAnalysis, top: int) -> Table:
    slowest_first = sorted(ranked.times, key=lambda time: -time.slowness)
    shown = sorted(slowest_first[:top], key=lambda time: time.rank)
    predicted = (Column("predicted", "s"),) if any(time.predicted_s is not None for time in shown) else ()
    return Table(
        id="ranks",
        title="Ranks" if len(shown) == len(ranked.times) else "Slowest ranks",
        columns=(
            Column("rank"),
            Column("measured step", "s"),
            Column("own time", "s"),
            Column("computing ops", "s"),
            Column("exposed comm.", "s"),
            Column("op bound", "s"),
            *predicted,
            Column("sent", "B"),
        ),
        rows=tuple(_row(time, bool(predicted)) for time in (*shown, *slowest_first[top:])),
        top=top,
        optional=("sent",),
        note="Own time: the step without the time in collectives alone, which is mostly waiting for slower ranks.",
    )


def _row(time: RankTimes, predicts: bool) -> tuple[Cell, ...]:
    predicted = (time.predicted_s,) if predicts else ()
    times = time.measured_s, time.own_s, time.computing_s, time.exposed_s, time.op_bound_s
    return (time.rank, *times, *predicted, time.bytes_sent)


def _waits_table(ranked: RankedAnalysis, top: int) -> Iterable[Table]:
    waits = ranked.waiting.by_rank
    if not waits:
        return
    yield Table(
        id="waits",
        title="Who waits for whom",
        columns=(
            Column("rank"),
            Column("waits for others", "s"),
            Column("longest for rank"),
            Column("for it", "s"),
            Column("others wait for it", "s"),
            Column("arrives last in"),
        ),
        rows=tuple(
            (
                each.rank,
                each.waits_s,
                "-" if each.longest_for is None else each.longest_for,
                each.longest_s,
                each.others_wait_s,
                round(each.last_in, 2),
            )
            for each in sorted(waits, key=lambda each: -each.others_wait_s)
        ),
        top=top,
        note="Per step. A collective lasts until its last rank arrives: who has the shortest time in it arrived last, "
        "and what another rank's time has more, it waited. Others wait for it: all other ranks in sum.",
    )


def _spread_table(ranked: RankedAnalysis) -> Table:
    return Table(
        id="spread",
        title="Spread over ranks",
        columns=(
            Column("figure"),
            Column("lowest", "s"),
            Column("median", "s"),
            Column("highest", "s"),
            Column("spread", "s"),
            Column("of median", "%"),
        ),
        rows=tuple(
            (spread.name, spread.lowest_s, spread.median_s, spread.highest_s, spread.seconds, spread.share)
            for spread in ranked.spreads
        ),
    )


def _data(ranked: RankedAnalysis, slowest: AnalysisDocument) -> RanksDocument:
    return RanksDocument(
        world_size=ranked.world_size,
        missing_ranks=tuple(ranked.missing),
        slowest_rank=ranked.slowest,
        least_exposed_rank=ranked.least_exposed,
        ranks=tuple(RankData(**asdict(time), own_s=time.own_s) for time in ranked.times),
        spreads=tuple(
            SpreadData(**asdict(spread), spread_s=spread.seconds, share_of_median=spread.share)
            for spread in ranked.spreads
        ),
        waiting=WaitingData(
            ranks=tuple(RankWaitsData(**asdict(rank)) for rank in ranked.waiting.by_rank),
            longest=tuple(WaitData(**asdict(wait)) for wait in ranked.waiting.waits[:_PAIRS]),
            collectives=ranked.waiting.collectives,
            unmatched=ranked.waiting.unmatched,
        ),
        slowest=slowest,
        conclusion=_verdict(ranked),
    )
