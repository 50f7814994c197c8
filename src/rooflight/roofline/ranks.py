"""The ranks of one run side by side: who is slow, by how much, and for whom the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Final, TypeVar

from msgspec import structs

from rooflight.hardware.devices.spec import roofs_used_by
from rooflight.hardware.network.collectives import kind_of, waits
from rooflight.records.account import WORDS, Cause
from rooflight.records.document import Document, Fields
from rooflight.records.measurement import Spread
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Report, Series, Shown, Table, share, table
from rooflight.records.session import Session
from rooflight.roofline.account.account import Account, AccountFields
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.tables.document import AnalysisDocument
from rooflight.roofline.tables.tables import account_table
from rooflight.roofline.waiting import RankWaits, Wait, Waiting, waiting_of

_EVEN: Final = 0.05  # share of a step that the ranks' waiting may differ by for them to count as even
_NAMED: Final = 8
_FIGURES: Final = {
    "measured step": "measured_s",
    "own time": "own_s",
    "computing ops": "computing_s",
    "exposed communication": "exposed_s",
    "op bound": "op_bound_s",
    "predicted": "predicted_s",
}
_PAIRS: Final = 1000  # pairs of ranks in JSON, the longest waits
_COMMON: Final = 0.5  # ranks of one program have at least such a share of their kinds of ops in common


class RankTimes(Fields, frozen=True, kw_only=True):
    """A rank's step in seconds, None where unknown: as a whole, in computing ops, with collectives alone, at best, and
    as predicted.

    ``exposed_s`` is what it spent in collectives alone, which is mostly waiting for slower ranks. ``own_s`` is the step
    without that: what this rank takes whatever the others do. None where one of the two is unknown, or the profiler
    slowed collectives to longer than a whole step.
    """

    rank: int
    measured_s: float | None
    computing_s: float | None
    exposed_s: float | None
    op_bound_s: float
    bytes_sent: int
    predicted_s: float | None
    own_s: float | None

    @property
    def slowness(self) -> float:
        """What ranks are ordered by: the step less the waiting, or the op bound where nothing was measured."""
        return self.op_bound_s if self.measured_s is None else self.measured_s - (self.exposed_s or 0.0)


class FigureSpread(Fields, frozen=True, kw_only=True):
    """How far ranks differ in one figure: highest − lowest, and that over the median, None where it is 0."""

    name: str
    lowest_s: float
    median_s: float
    highest_s: float
    spread_s: float
    share_of_median: float | None


class WaitingFigures(Fields, frozen=True, kw_only=True):
    """Who waits for whom: by rank, and the pairs that wait longest. So many ``collectives`` of a step were compared."""

    ranks: tuple[RankWaits, ...]
    longest: tuple[Wait, ...]
    collectives: int
    unmatched: int


class RanksDocument(Document, frozen=True, kw_only=True, tag="rooflight.ranks/1"):
    """The ranks of a run side by side, each with its account, and the slowest in full."""

    world_size: int
    missing_ranks: tuple[int, ...]
    slowest_rank: int
    least_exposed_rank: int | None
    ranks: tuple[RankTimes, ...]
    spreads: tuple[FigureSpread, ...]
    waiting: WaitingFigures
    slowest: AnalysisDocument
    accounts: dict[str, AccountFields]
    conclusion: str


class RankedAnalysis(Shown):
    """The analyses of a run's ranks, by rank. ``missing`` ranks of its world have none, as when they died. ``notes``
    say which files were taken.
    """

    def __init__(self, analyses: Sequence[Analysis], world_size: int, notes: Sequence[str] = ()) -> None:
        self.notes = tuple(notes)
        self.analyses = {_rank(analysis): analysis for analysis in analyses}
        self.world_size = world_size
        self.missing = tuple(rank for rank in range(world_size) if rank not in self.analyses)

    def __repr__(self) -> str:
        missing = f", {len(self.missing)} missing" if self.missing else ""
        return f"RankedAnalysis({count_of(self.world_size, 'rank')}{missing})"

    def report(self, *, top: int = 10) -> Report:
        """What ``rooflight analyze`` shows of several sessions; ``top`` limits the rows of long tables. Raises
        ValueError for ``top`` < 1.
        """
        return ranks_report(self, top=top)

    @cached_property
    def times(self) -> tuple[RankTimes, ...]:
        """One entry per rank, in order."""
        return tuple(_times(rank, analysis) for rank, analysis in self.analyses.items())

    @property
    def comparable(self) -> bool:
        """Whether all ranks were measured, or none: else their own times are not of the same kind."""
        return len({time.measured_s is None for time in self.times}) == 1

    @cached_property
    def slowest(self) -> int:
        """The rank for which the others wait longest, where that is known; else the rank with the longest step less its
        waiting, of those measured, if any was.
        """
        if (last := self.waiting.last) is not None:
            return last.rank
        if (own := self.own_by_account) is not None:
            return max(own, key=lambda rank: own[rank])
        measured = [time for time in self.times if time.measured_s is not None]
        # a rank whose collectives were not timed would have its waits counted as its own
        exposed = [time for time in measured if time.exposed_s is not None]
        return max(exposed or measured or self.times, key=lambda time: time.slowness).rank

    @cached_property
    def own_by_account(self) -> dict[int, float] | None:
        """By rank what an iteration takes without its waits in collectives, of live runs, in which no collective was
        timed; None where not all ranks know it.
        """
        accounts = {rank: analysis.account for rank, analysis in self.analyses.items()}
        waits = {rank: account.seconds(Cause.COMMUNICATION, Cause.RANK) for rank, account in accounts.items()}
        measured = all(account.source == "measured" for account in accounts.values())
        if not measured or not any(waits.values()) or any(time.exposed_s is not None for time in self.times):
            return None
        return {rank: account.wall_s - waits[rank] for rank, account in accounts.items()}

    @cached_property
    def least_exposed(self) -> int | None:
        """The rank that waits least in collectives; None where they were not timed on every rank."""
        exposed = self.figures.get("exposed communication")
        return exposed.least_name if exposed else None

    @cached_property
    def waiting(self) -> Waiting:
        """Who waited for whom in collectives."""
        return waiting_of({rank: analysis.session for rank, analysis in self.analyses.items()}, self.world_size)

    @cached_property
    def accounts(self) -> dict[int, Account]:
        """The account of each rank: its waits for other ranks are a row of their own."""
        waits = {each.rank: each.waits_s for each in self.waiting.by_rank}
        return {
            rank: analysis.account.waiting_for_ranks(waits.get(rank, 0.0)) for rank, analysis in self.analyses.items()
        }

    @property
    def straggles(self) -> tuple[Cause, float] | None:
        """The cause of which the slowest rank has most more than the others' median, and these seconds."""
        others = [account.by("cause") for rank, account in self.accounts.items() if rank != self.slowest]
        mine = self.accounts[self.slowest].by("cause")
        more = {
            Cause(name): seconds - median(each.get(name, 0.0) for each in others)
            for name, seconds in mine.items()
            if others and name not in (Cause.RANK, Cause.COMMUNICATION)
        }
        cause = max(more, key=lambda each: more[each], default=None)
        return None if cause is None or more[cause] <= 0 else (cause, more[cause])

    @cached_property
    def figures(self) -> dict[str, Spread[int]]:
        """The spread in seconds, over ranks, of each figure that is known of every rank."""
        spreads = {
            name: Spread[int].known({time.rank: getattr(time, field) for time in self.times})
            for name, field in _FIGURES.items()
        }
        return {name: spread for name, spread in spreads.items() if spread.count == len(self.times)}

    @property
    def spreads(self) -> tuple[FigureSpread, ...]:
        """``figures`` as the report has them."""
        return tuple(
            FigureSpread(
                name=name,
                lowest_s=spread.least,
                median_s=spread.median,
                highest_s=spread.most,
                spread_s=spread.width,
                share_of_median=share(spread.width, spread.median),
            )
            for name, spread in self.figures.items()
        )


def merge(analyses: Sequence[Analysis], names: Sequence[str] = (), notes: Sequence[str] = ()) -> RankedAnalysis:
    """Put the ranks of one run together; ``names``, such as those of files, are used in error messages, ``notes`` go to
    the report.

    Each session must have been recorded where ``torch.distributed`` was initialised. Raises ValueError for a session
    without a rank, a rank that comes twice, ranks of worlds of different sizes, and ranks of different programs; a rank
    that is missing is no error.
    """
    if not analyses:
        raise ValueError("no sessions to merge: give one per rank")
    called = list(names) or [f"session {number}" for number in range(1, len(analyses) + 1)]
    seen: dict[int, str] = {}
    world_size, first = 0, ""
    for analysis, name in sorted(zip(analyses, called, strict=True), key=lambda pair: _rank(pair[0], pair[1])):
        rank, size = _rank(analysis, name), _number(analysis, "world_size", name)
        if rank in seen:
            raise ValueError(f"{seen[rank]} and {name} are both rank {rank}: give each rank's session once")
        if first and size != world_size:
            raise ValueError(
                f"{first} is of {count_of(world_size, 'rank')}, {name} of {size}: these are different runs"
            )
        if not 0 <= rank < size:
            raise ValueError(f"{name} is marked as rank {rank} of {size}, which cannot be: record it again")
        seen[rank], world_size, first = name, size, first or name
    _check_same_program({name: analysis.session for analysis, name in zip(analyses, called, strict=True)})
    return RankedAnalysis(sorted(analyses, key=_rank), world_size, notes)


def _check_same_program(sessions: Mapping[str, Session]) -> None:
    kinds = {name: _ops_of(session) for name, session in sessions.items()}
    first = max(kinds, key=lambda name: len(kinds[name]))
    for name, ops in kinds.items():
        if ops and len(ops & kinds[first]) < _COMMON * len(ops):
            raise ValueError(
                f"{first} and {name} are of different programs: of {count_of(len(ops), 'kind')} of ops in {name}, "
                f"{first} has {len(ops & kinds[first])}"
            )


def _ops_of(session: Session) -> set[str]:
    return {op.name for op in session.signatures if kind_of(op.name) is None and not waits(op.name)}


def _times(rank: int, analysis: Analysis) -> RankTimes:
    totals, found = analysis.totals, analysis.communication
    computing_s = totals.ops_measured_s
    if computing_s is not None and found.measured_s is not None:
        computing_s -= found.measured_s
    # a rank without collectives of its own waits for nobody
    exposed_s = found.exposed_step_s if found.collectives else (0.0 if computing_s is not None else None)
    measured_s, own_s = totals.measured_s, None
    if measured_s is not None and exposed_s is not None and exposed_s <= measured_s:
        own_s = measured_s - exposed_s
    return RankTimes(
        rank=rank,
        own_s=own_s,
        measured_s=measured_s,
        computing_s=computing_s,
        exposed_s=exposed_s,
        op_bound_s=totals.op_bound_s,
        bytes_sent=totals.bytes_sent,
        predicted_s=totals.predicted_s,
    )


def _rank(analysis: Analysis, name: str = "the session") -> int:
    return _number(analysis, "rank", name)


def _number(analysis: Analysis, key: str, name: str) -> int:
    text = analysis.session.environment.get(key, "")
    if not text.isdecimal():
        raise ValueError(f"{name} has no {key}: record it after torch.distributed.init_process_group")
    return int(text)


def ranks_report(ranked: RankedAnalysis, *, top: int = 10) -> Report:
    """The report of a run's ranks; ``top`` limits the rows of long tables. Raises ValueError for ``top`` < 1."""
    whole = ranked.analyses[ranked.slowest].report(top=top)
    assert isinstance(whole.data, AnalysisDocument)
    account = account_table(ranked.accounts[ranked.slowest])
    tables = tuple(_of_slowest(account if table.id == account.id else table, ranked) for table in whole.tables)
    return Report(
        title=f"{whole.title}, {count_of(ranked.world_size, 'rank')}",
        data=RanksDocument.view(
            ranked,
            missing_ranks=ranked.missing,
            slowest_rank=ranked.slowest,
            least_exposed_rank=ranked.least_exposed,
            ranks=ranked.times,
            waiting=WaitingFigures.view(
                ranked.waiting, ranks=ranked.waiting.by_rank, longest=ranked.waiting.waits[:_PAIRS]
            ),
            slowest=structs.replace(whole.data, account=AccountFields.view(ranked.accounts[ranked.slowest])),
            accounts={str(rank): AccountFields.view(account) for rank, account in ranked.accounts.items()},
            conclusion=_verdict(ranked),
        ),
        facts=tuple(_facts(ranked)),
        tables=(_ranks_table(ranked, top), *_waits_table(ranked, top), _spread_table(ranked), *tables),
        series=tuple(_of_slowest(series, ranked) for series in whole.series),
        notes=(*ranked.notes, *_notes(ranked), *(f"Rank {ranked.slowest}: {note}" for note in whole.notes)),
        conclusion=f"{_verdict(ranked)}{_last(ranked)} Rank {ranked.slowest}: {whole.conclusion}",
    )


_Part = TypeVar("_Part", Table, Series)


def _of_slowest(part: _Part, ranked: RankedAnalysis) -> _Part:
    return replace(part, id=f"slowest_{part.id}", title=f"Rank {ranked.slowest}: {part.title}")


def _verdict(ranked: RankedAnalysis) -> str:
    if len(ranked.times) == 1:
        return f"Only rank {ranked.slowest} is known."
    slowest = next(time for time in ranked.times if time.rank == ranked.slowest)
    if slowest.measured_s is None:
        return (
            f"Nothing was measured: rank {slowest.rank} has the largest op bound, {Quantity(slowest.op_bound_s, 's')}."
        )
    if (own := ranked.own_by_account) is not None:
        return _of_accounts(ranked, own)
    step, waiting = ranked.figures.get("measured step"), ranked.figures.get("exposed communication")
    if step is None or waiting is None or slowest.exposed_s is None:
        more = "" if step is None else f", {Quantity(step.width, 's')} longer than the fastest"
        return f"Rank {slowest.rank} has the longest step: {Quantity(slowest.measured_s, 's')}{more}."
    if waiting.width <= _EVEN * step.median:
        return f"The ranks are even: their waiting differs by {Quantity(waiting.width, 's')} per step."
    return (
        f"Rank {slowest.rank} is the slowest: it spends {Quantity(slowest.exposed_s, 's')} of a step in collectives "
        f"alone, while rank {waiting.most_name}, which waits for it, spends {Quantity(waiting.most, 's')} "
        f"({Quantity(waiting.width, 's')} apart, {percent(waiting.width / step.median)} of a step)."
        if waiting.most_name != slowest.rank
        else f"Rank {slowest.rank} is the slowest, and its collectives last longest: its own link may be the reason."
    )


def _of_accounts(ranked: RankedAnalysis, own: Mapping[int, float]) -> str:
    wall_s, least = ranked.accounts[ranked.slowest].wall_s, min(own, key=lambda rank: own[rank])
    mine_s, apart_s = own[ranked.slowest], own[ranked.slowest] - own[least]
    if apart_s <= _EVEN * wall_s:
        return f"The ranks are even: what they take without their waits differs by {Quantity(apart_s, 's')}."
    return (
        f"The others wait for rank {ranked.slowest}: of an iteration of {Quantity(wall_s, 's')} it takes "
        f"{Quantity(mine_s, 's')} itself, rank {least} {Quantity(own[least], 's')}.{_straggler(ranked)}"
    )


def _last(ranked: RankedAnalysis) -> str:
    last, others = ranked.waiting.last, len(ranked.waiting.by_rank) - 1
    steps = [time.measured_s for time in ranked.times if time.measured_s is not None]
    if last is None or not steps or last.others_wait_s / others <= _EVEN * max(steps):
        return ""
    return (
        f" Rank {last.rank} arrives last in {last.last_in:.3g} of {count_of(ranked.waiting.collectives, 'collective')} "
        f"per step; each of the others waits {Quantity(last.others_wait_s / others, 's')} for it on average."
        f"{_straggler(ranked)}"
    )


def _straggler(ranked: RankedAnalysis) -> str:
    if ranked.straggles is None:
        return ""
    cause, seconds = ranked.straggles
    return f" It has {Quantity(seconds, 's')} more of {WORDS[cause].partition(':')[0]} than the others' median."


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
    predicted = (("predicted", "s", lambda time: time.predicted_s),)
    return table(
        "ranks",
        "Ranks" if len(shown) == len(ranked.times) else "Slowest ranks",
        (*shown, *slowest_first[top:]),
        ("rank", "", lambda time: time.rank),
        ("measured step", "s", lambda time: time.measured_s),
        ("own time", "s", lambda time: time.own_s),
        ("computing ops", "s", lambda time: time.computing_s),
        ("exposed comm.", "s", lambda time: time.exposed_s),
        ("op bound", "s", lambda time: time.op_bound_s),
        *(predicted if any(time.predicted_s is not None for time in shown) else ()),
        ("sent", "B", lambda time: time.bytes_sent),
        top=top,
        optional=("sent",),
        note="Own time: the step without the time in collectives alone, which is mostly waiting for slower ranks.",
    )


def _waits_table(ranked: RankedAnalysis, top: int) -> Iterable[Table]:
    waits = ranked.waiting.by_rank
    if waits:
        yield table(
            "waits",
            "Who waits for whom",
            sorted(waits, key=lambda each: -each.others_wait_s),
            ("rank", "", lambda each: each.rank),
            ("waits for others", "s", lambda each: each.waits_s),
            ("longest for rank", "", lambda each: "-" if each.longest_for is None else each.longest_for),
            ("for it", "s", lambda each: each.longest_s),
            ("others wait for it", "s", lambda each: each.others_wait_s),
            ("arrives last in", "", lambda each: round(each.last_in, 2)),
            top=top,
            note="Per step. A collective lasts until its last rank arrives: who has the shortest time in it arrived "
            "last, and what another rank's time has more, it waited. Others wait for it: all other ranks in sum.",
        )


def _spread_table(ranked: RankedAnalysis) -> Table:
    return table(
        "spread",
        "Spread over ranks",
        ranked.spreads,
        ("figure", "", lambda spread: spread.name),
        ("lowest", "s", lambda spread: spread.lowest_s),
        ("median", "s", lambda spread: spread.median_s),
        ("highest", "s", lambda spread: spread.highest_s),
        ("spread", "s", lambda spread: spread.spread_s),
        ("of median", "%", lambda spread: spread.share_of_median),
    )
