"""Who waits for whom in collectives: the ranks of a group beside each other, collective by collective.

A collective ends on all ranks of its group at about the same time: it lasts until the last rank has arrived, and as
long as the exchange takes from then on. So of one collective the rank with the shortest time arrived last, and how much
longer another rank's time is, that rank waited. Clocks of different machines are not compared, durations alone are.

Only collectives whose every rank needs all others are looked at: in a broadcast or a send a rank may leave early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.network.collectives import CollectiveKind, kind_of
from rooflight.hardware.network.groups import RankGroup
from rooflight.records.document import Fields
from rooflight.records.measurement import Float64
from rooflight.records.session import Session

_EVERYBODY: Final = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.BARRIER,
    }
)

_Group = tuple[int, ...]


class Wait(Fields, frozen=True, kw_only=True):
    """How long ``rank`` waited per step for ``for_rank`` to arrive, in so many collectives."""

    rank: int
    for_rank: int
    seconds: float
    collectives: float


class RankWaits(Fields, frozen=True, kw_only=True):
    """One rank, per step: ``waits_s`` it waited for others, of which ``longest_s`` for ``longest_for``;
    ``others_wait_s`` is what all others together waited for it, in ``last_in`` collectives in which it arrived last.
    """

    rank: int
    waits_s: float
    longest_for: int | None
    longest_s: float
    others_wait_s: float
    last_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The waits of all ranks, the longest first. ``collectives`` of a step were compared, ``unmatched`` were not: their
    group is unknown, another rank of it has no session or ran something else, or one was not timed.
    """

    waits: tuple[Wait, ...] = ()
    collectives: int = 0
    unmatched: int = 0

    @property
    def by_rank(self) -> tuple[RankWaits, ...]:
        """One entry per rank that took part, in order."""
        ranks = sorted({wait.rank for wait in self.waits} | {wait.for_rank for wait in self.waits})
        mine: dict[int, list[Wait]] = defaultdict(list)
        others: dict[int, list[Wait]] = defaultdict(list)
        for wait in self.waits:  # the longest first
            mine[wait.rank].append(wait)
            others[wait.for_rank].append(wait)
        return tuple(
            RankWaits(
                rank=rank,
                waits_s=sum(wait.seconds for wait in mine[rank]),
                longest_for=mine[rank][0].for_rank if mine[rank] and mine[rank][0].seconds > 0 else None,
                longest_s=mine[rank][0].seconds if mine[rank] else 0.0,
                others_wait_s=sum(wait.seconds for wait in others[rank]),
                last_in=max((wait.collectives for wait in others[rank]), default=0.0),
            )
            for rank in ranks
        )

    @property
    def last(self) -> RankWaits | None:
        """The rank for which the others waited longest in sum; None if nobody waited."""
        found = max(self.by_rank, key=lambda rank: rank.others_wait_s, default=None)
        return found if found is not None and found.others_wait_s > 0 else None


def waiting_of(sessions: Mapping[int, Session], world_size: int) -> Waiting:
    """What the ranks of a run, by number, waited for each other."""
    called = {rank: _collectives(session, world_size) for rank, session in sessions.items()}
    groups = dict.fromkeys(group for mine in called.values() for group in mine)
    waited: dict[tuple[int, int], float] = defaultdict(float)
    counted: dict[tuple[int, int], float] = defaultdict(float)
    compared = unmatched = 0
    for group in groups:
        members = [rank for rank in group if group in called.get(rank, {})]
        most = max(len(called[rank][group].kinds) for rank in members)
        matched = _matched([called[rank][group] for rank in members]) if len(members) > 1 else None
        compared, unmatched = compared + (matched.calls if matched else 0), unmatched + most
        if matched is None:
            continue
        unmatched -= matched.calls
        last = np.argmin(matched.seconds, axis=0)
        later = matched.seconds - np.take_along_axis(matched.seconds, last[None], axis=0)
        for place, rank in enumerate(members):
            for other in np.unique(last).tolist():
                here = last == other
                if other != place:
                    waited[rank, members[other]] += float(later[place][here].sum()) / matched.samples
                    counted[rank, members[other]] += float(here.sum()) / matched.samples
    waits = [
        Wait(rank=rank, for_rank=other, seconds=seconds, collectives=counted[rank, other])
        for (rank, other), seconds in waited.items()
    ]
    unmatched += sum(len(_unknown(session, world_size)) for session in list(sessions.values())[:1])
    return Waiting(
        waits=tuple(sorted(waits, key=lambda wait: (-wait.seconds, wait.rank, wait.for_rank))),
        collectives=compared,
        unmatched=unmatched,
    )


@dataclass(frozen=True, slots=True)
class _Calls:
    """The collectives of one rank in one group, in order: kind and payload of each, and seconds [samples, calls]."""

    kinds: list[tuple[CollectiveKind | None, int]]
    seconds: Float64
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Matched:
    """Seconds of the same collectives on several ranks [ranks, samples · calls]."""

    seconds: Float64
    samples: int
    calls: int


def _collectives(session: Session, world_size: int) -> dict[_Group, _Calls]:
    measurement = session.measurement
    if measurement is None or not len(measurement.op_samples_s):
        return {}
    groups = _group_of_signatures(session, world_size)
    signature = session.columns.signature
    numbers = {number for number, group in groups.items() if group}
    records: dict[_Group, list[int]] = defaultdict(list)
    for record in np.flatnonzero(session.counted & np.isin(signature, list(numbers))).tolist():
        records[groups[int(signature[record])]].append(record)
    steps = tuple(step.name for step in measurement.timeline.steps if step.in_session) if measurement.timeline else ()
    return {
        group: _Calls(
            kinds=[_described(session, int(signature[record])) for record in mine],
            seconds=np.asarray(measurement.op_samples_s[:, mine], dtype=np.float64),
            steps=steps if len(steps) == len(measurement.op_samples_s) else (),
        )
        for group, mine in records.items()
    }


def _described(session: Session, number: int) -> tuple[CollectiveKind | None, int]:
    op = session.signatures[number]
    return kind_of(op.name), op.input_bytes


def _group_of_signatures(session: Session, world_size: int) -> dict[int, _Group]:
    found: dict[int, _Group] = {}
    for number, op in enumerate(session.signatures):
        if kind_of(op.name) in _EVERYBODY:
            group = RankGroup.of(op)
            everybody = not group.ranks and group.size == world_size
            found[number] = tuple(range(world_size)) if everybody else tuple(sorted(group.ranks))
    return found


def _unknown(session: Session, world_size: int) -> NDArray[np.intp]:
    unknown = [number for number, group in _group_of_signatures(session, world_size).items() if not group]
    return np.flatnonzero(session.counted & np.isin(session.columns.signature, unknown))


def _matched(ranks: list[_Calls]) -> _Matched | None:
    """The collectives of these ranks, in the steps that all have; None unless all ran the same in the same order."""
    rows = _same_steps(ranks)
    if any(rank.kinds != ranks[0].kinds for rank in ranks) or not rows[0]:
        return None
    seconds = np.stack([rank.seconds[row] for rank, row in zip(ranks, rows, strict=True)])
    timed = np.isfinite(seconds).all(axis=(0, 1))
    if not timed.any():
        return None
    return _Matched(seconds[:, :, timed].reshape(len(ranks), -1), len(rows[0]), int(timed.sum()))


def _same_steps(ranks: list[_Calls]) -> list[list[int]]:
    """The samples of each rank that are of the same steps: of the same names, else as many as all have."""
    if all(rank.steps for rank in ranks):
        common = [name for name in ranks[0].steps if all(name in rank.steps for rank in ranks)]
        return [[rank.steps.index(name) for name in common] for rank in ranks]
    return [list(range(min(len(rank.seconds) for rank in ranks)))] * len(ranks)
