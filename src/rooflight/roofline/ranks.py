"""The ranks of one run side by side: who is slow, by how much, and for whom the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rooflight.network.collectives import kind_of, waits
from rooflight.records.quantity import count_of
from rooflight.records.report import Report
from rooflight.records.session import Session
from rooflight.records.showing import Shown
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.waiting import Waiting, waiting_of

_COMMON: Final = 0.5  # ranks of one program have at least such a share of their kinds of ops in common


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """A rank's step in seconds, None where unknown: as a whole, in computing ops, with collectives alone, at best, and
    as predicted.

    ``exposed_s`` is what it spent in collectives alone, which is mostly waiting for slower ranks.
    """

    rank: int
    measured_s: float | None
    computing_s: float | None
    exposed_s: float | None
    op_bound_s: float
    bytes_sent: int
    predicted_s: float | None = None

    @property
    def own_s(self) -> float | None:
        """The step without the time in collectives alone: what this rank takes whatever the others do. None where one
        of the two is unknown, or the profiler slowed collectives to longer than a whole step.
        """
        if self.measured_s is None or self.exposed_s is None or self.exposed_s > self.measured_s:
            return None
        return self.measured_s - self.exposed_s

    @property
    def slowness(self) -> float:
        """What ranks are ordered by: the step less the waiting, or the op bound where nothing was measured."""
        return self.op_bound_s if self.measured_s is None else self.measured_s - (self.exposed_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far ranks differ in one figure, in seconds."""

    name: str
    lowest_s: float
    median_s: float
    highest_s: float

    @property
    def seconds(self) -> float:
        """Highest − lowest."""
        return self.highest_s - self.lowest_s

    @property
    def share(self) -> float | None:
        """Highest − lowest, over the median; None where that is 0."""
        return self.seconds / self.median_s if self.median_s else None


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
        """What ``rooflight analyze`` shows of several sessions; ``top`` limits the rows of long tables."""
        from rooflight.roofline.ranks_report import ranks_report

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
        """The rank with the longest step less its waiting, for which others wait: of those measured, if any was."""
        measured = [time for time in self.times if time.measured_s is not None]
        # a rank whose collectives were not timed would have its waits counted as its own
        exposed = [time for time in measured if time.exposed_s is not None]
        return max(exposed or measured or self.times, key=lambda time: time.slowness).rank

    @cached_property
    def least_exposed(self) -> int | None:
        """The rank that waits least in collectives; None where they were not timed on every rank."""
        exposed = {time.rank: time.exposed_s for time in self.times if time.exposed_s is not None}
        return min(exposed, key=lambda rank: exposed[rank]) if len(exposed) == len(self.times) else None

    @cached_property
    def waiting(self) -> Waiting:
        """Who waited for whom in collectives."""
        return waiting_of({rank: analysis.session for rank, analysis in self.analyses.items()}, self.world_size)

    @cached_property
    def spreads(self) -> tuple[Spread, ...]:
        """The spread of each figure that is known of every rank."""
        figures: dict[str, list[float | None]] = {
            "measured step": [time.measured_s for time in self.times],
            "own time": [time.own_s for time in self.times],
            "computing ops": [time.computing_s for time in self.times],
            "exposed communication": [time.exposed_s for time in self.times],
            "op bound": [time.op_bound_s for time in self.times],
            "predicted": [time.predicted_s for time in self.times],
        }
        found = []
        for name, figure in figures.items():
            known = sorted(seconds for seconds in figure if seconds is not None)
            if len(known) == len(self.times):
                middle = len(known) // 2
                median = known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
                found.append(Spread(name=name, lowest_s=known[0], median_s=median, highest_s=known[-1]))
        return tuple(found)


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
    """Raise ValueError for a rank that has few of the first one's ops. Stages of a pipeline have most in common."""
    kinds = {name: _ops_of(session) for name, session in sessions.items()}
    first = max(kinds, key=lambda name: len(kinds[name]))
    for name, ops in kinds.items():
        if ops and len(ops & kinds[first]) < _COMMON * len(ops):
            raise ValueError(
                f"{first} and {name} are of different programs: of {count_of(len(ops), 'kind')} of ops in {name}, "
                f"{first} has {len(ops & kinds[first])}"
            )


def _ops_of(session: Session) -> set[str]:
    """The names of a session's ops, without collectives."""
    return {op.name for op in session.signatures if kind_of(op.name) is None and not waits(op.name)}


def _times(rank: int, analysis: Analysis) -> RankTimes:
    totals, found = analysis.totals, analysis.communication
    computing_s = totals.ops_measured_s
    if computing_s is not None and found.measured_s is not None:
        computing_s -= found.measured_s
    # a rank without collectives of its own waits for nobody
    exposed_s = found.exposed_step_s if found.collectives else (0.0 if computing_s is not None else None)
    return RankTimes(
        rank=rank,
        measured_s=totals.measured_s,
        computing_s=computing_s,
        exposed_s=exposed_s,
        op_bound_s=totals.op_bound_s,
        bytes_sent=totals.bytes_sent,
        predicted_s=totals.predicted.time_s if totals.predicted else None,
    )


def _rank(analysis: Analysis, name: str = "the session") -> int:
    return _number(analysis, "rank", name)


def _number(analysis: Analysis, key: str, name: str) -> int:
    text = analysis.session.environment.get(key, "")
    if not text.isdecimal():
        raise ValueError(f"{name} has no {key}: record it after torch.distributed.init_process_group")
    return int(text)
