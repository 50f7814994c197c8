"""The cut: each instant of an iteration has one cause, the first that holds.

What the device does comes first, by how fast its work could be; then why it is idle. On a CPU the thread is the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from rooflight.records.account import REGIMES, Cause, Regime
from rooflight.records.measurement import NO_WORK, Float64
from rooflight.records.session import Int64
from rooflight.records.timeline import Between, HostLine, Within
from rooflight.roofline.account.account import Account, Pieces
from rooflight.roofline.account.times import OWN_CODE, Times

NEAR: Final = {"cpu": 0.01, "cuda": 0.5}
"""A kernel that reaches so much of its bound is limited as the bound is; further away something else slows it. GPU
libraries mostly reach more than half. Gathers, and writes to pages that are new to the program, reach a few percent of
a CPU's bandwidth."""
SHORT_S: Final = 20e-6
_MEMORY: Final = np.int8(REGIMES.index(Regime.MEMORY))
_SMALL: Final = 8.0  # times the dispatch floor
_LITTLE_S: Final = 2e-6
_FAR: Final = 0.1
_REST: Final = 1e-9
_MOSTLY: Final = 0.5
_SLOW: Final = 0.5  # of the median: so much longer is a slow iteration
_LIKE: Final = 1.5  # two times that differ by at most this factor are about the same

_OF_LIBRARY: Final = (
    (Cause.COMPILING, (Within.COMPILING,)),
    (Cause.LOADER, (Within.LOADER, Within.STARTING)),
    (Cause.SUBPROCESS, (Within.PROCESS,)),
    (Cause.CHECKPOINT, (Within.SAVING,)),
    (Cause.COMMUNICATION, (Within.COLLECTIVES,)),
)
_UNRECORDED: Final = (Within.OPS, Within.BACKWARD, Within.OPTIMIZER, Within.CHECKPOINTING)
_BETWEEN: Final = {"loader": Cause.LOADER, "checkpoint": Cause.CHECKPOINT, **dict.fromkeys(OWN_CODE, Cause.PYTHON)}
_CAUSE_OF: Final = {
    **{library: cause for cause, within in _OF_LIBRARY for library in within},
    **dict.fromkeys(_UNRECORDED, Cause.NO_OP),
}


def account_of(times: Times) -> Account:
    """The account of an iteration: of what was measured, else of what is predicted, else of the bounds."""
    analysis, measurement = times.analysis, times.analysis.measurement
    walls, spread, disturbed = np.array([times.step_s]), None, 0.0
    source = times.source
    if times.source == "measured" and measurement is not None:
        walls, disturbed = measurement.wall_samples_s, measurement.others_share or 0.0
        source = "measured" if times.measured or times.timeline is not None else "guessed"
        parts = of_a_thread(times) if times.on_cpu else of_a_device(times)
    elif times.source == "predicted":
        wall = analysis.totals.predicted_wall
        spread = (wall.low_s / wall.time_s, wall.high_s / wall.time_s) if wall is not None and wall.time_s else None
        parts = of_a_prediction(times)
    else:
        parts = work(times, times.bound_s, times.bound_s, 1)
    if not times.step_s and times.between:  # of a run without a step
        source = "measured"
    pieces = (*_closed(parts, times, len(walls)), *_before(times.between, len(walls)))
    walls = walls + sum(each.seconds for each in times.between)
    session, labels = times.session, times.analysis.labels

    def names_of(key: str) -> tuple[Int64, Sequence[str]]:
        groups, names = labels(key)
        return groups[session.counted], names

    return Account(pieces, walls, source, names_of, disturbed, spread)


def _closed(parts: Iterable[Pieces], times: Times, seen: int) -> list[Pieces]:
    """Pieces that sum to the step: too much is scaled down, and what nothing covers is unknown."""
    pieces, wall_s = list(parts), times.step_s
    total = sum(each.total_s for each in pieces)
    rest_s = wall_s - total
    if rest_s > _REST * wall_s:
        # what no cache holds of all ops at once, each alone finds there
        cause, regime = (Cause.LIGHT, Regime.MEMORY) if times.source == "bound" else (Cause.UNKNOWN, Regime.UNKNOWN)
        return [*pieces, Pieces.waited(cause, rest_s, seen, regime=regime)]
    return [each.scaled(wall_s / total) for each in pieces] if total != wall_s else pieces


# -- what the device does


def work(times: Times, own_s: Float64, taken_s: Float64, seen: int) -> Iterator[Pieces]:
    """The device's work: of calls that took ``taken_s`` each, of which ``own_s`` are their own, what they take at the
    fused bound, what more at their op bound, and what beyond that.
    """
    collective, limited = times.collectives, times.limited_by
    unbounded = times.unbounded & ~collective
    reached, light_s = _share(times.bound_s, taken_s), _share(times.fused_s, taken_s)
    light_s[collective] = reached[collective]
    far = REGIMES.index(Regime.KERNELS)
    short = far if times.on_cpu else REGIMES.index(Regime.LATENCY)
    near = reached >= NEAR.get(times.analysis.device.kind, NEAR["cuda"])
    slow = np.where(near, limited, np.where(taken_s < SHORT_S, np.int8(short), np.int8(far)))
    # in place: a step may have ten million calls
    light_s *= own_s
    reached *= own_s
    rest_s = own_s - reached
    reached -= light_s
    for seconds in (light_s, reached, rest_s):
        seconds[unbounded] = 0.0
    yield Pieces.of_calls(Cause.LIGHT, light_s, limited, seen)
    yield Pieces.of_calls(Cause.FUSION, reached, None, seen)
    yield Pieces.of_calls(Cause.SLOW_KERNELS, rest_s * ~collective, slow, seen)
    yield Pieces.of_calls(Cause.COMMUNICATION, rest_s * collective, None, seen)
    yield Pieces.of_calls(Cause.UNBOUNDED, own_s * unbounded, limited, seen)


def _share(part_s: Float64, taken_s: Float64) -> Float64:
    """Which share of the time that each call took its bound is, of 1 at most; 0 of no time."""
    found = np.zeros(len(taken_s))
    with np.errstate(over="ignore"):
        np.divide(part_s, taken_s, out=found, where=taken_s > 0)
    return np.minimum(found, 1.0, out=found)


def of_a_device(times: Times) -> Iterator[Pieces]:
    """A measured step on a GPU: its work, and why it was idle."""
    measurement, timeline = times.analysis.measurement, times.timeline
    assert measurement is not None
    seen = len(measurement.wall_samples_s)
    own_s = times.own_s
    yield from work(times, own_s, np.maximum(times.seconds, own_s), seen)
    if timeline is None and measurement.clock == NO_WORK:
        return
    if timeline is None:
        late_s = min(times.late_s, max(0.0, times.step_s - float(own_s.sum())))
        yield Pieces.waited(Cause.LAUNCHES, late_s, seen)
        return
    for each in timeline.waits:
        yield Pieces.waited(each.cause, each.seconds, each.seen, each.where)
    waited_s = sum(each.seconds for each in timeline.waits)
    yield Pieces.waited(Cause.NO_OP, times.step_s - waited_s - float(own_s.sum()), seen)


def of_a_prediction(times: Times) -> Iterator[Pieces]:
    """A predicted step: its work as the queue runs it, and the host for which the device waits."""
    own_s = times.seconds.copy()
    if times.exposed_s is not None and (sent_s := float(own_s[times.collectives].sum())):
        own_s[times.collectives] *= min(1.0, times.exposed_s / sent_s)
    yield Pieces.of_calls(Cause.COPIES, own_s * times.crosses, None, 1)
    yield from work(times, own_s * ~times.crosses, times.seconds, 1)
    idle_s = max(0.0, times.step_s - float(own_s.sum()))
    late_s, synced_s = min(idle_s, times.late_s), times.synced_s
    yield Pieces.waited(Cause.SYNC, min(late_s, synced_s), 1)
    yield Pieces.waited(Cause.LAUNCHES, max(0.0, late_s - synced_s), 1)
    yield Pieces.waited(Cause.PYTHON, idle_s - late_s, 1)  # ops on the host's tensors


# -- a thread that is host and device


def of_a_thread(times: Times) -> Iterator[Pieces]:
    """A measured step on a CPU: work above the dispatch floor, launches, and what the thread did between ops."""
    measurement = times.analysis.measurement
    assert measurement is not None
    seen, took_s, bound_s = len(measurement.wall_samples_s), times.own_s, times.bound_s
    # a call far above its bound is as small as its dispatch if that, or its work, is little
    little = (bound_s < _LITTLE_S) & ~times.unbounded
    small = ((took_s < _SMALL * times.floor_s) | little) & (bound_s < _FAR * took_s) & ~times.merged
    own_s = np.where(small, np.minimum(took_s, bound_s), np.maximum(took_s - times.floor_s * ~times.merged, 0.0))
    fetching_s = np.minimum(times.fetching_s, own_s)
    yield from work(times, own_s - fetching_s, np.where(small, own_s, took_s) - fetching_s, seen)
    freeing_s = np.minimum(times.freeing_s, times.host_s)
    yield Pieces.of_calls(Cause.ALLOCATOR, fetching_s, np.full(len(own_s), _MEMORY), seen)
    yield Pieces.of_calls(Cause.ALLOCATOR, freeing_s, None, seen)
    yield Pieces.of_calls(Cause.LAUNCHES, took_s - own_s + times.host_s - freeing_s, None, seen)
    yield from _between_ops(times, float(own_s[times.collectives].sum()), measurement.wall_samples_s)


def _before(between: Sequence[Between], seen: int) -> Iterator[Pieces]:
    """What lies before a script's step: by line where samples tell."""
    for each in between:
        lines = each.inside or each.lines
        if not lines:
            cause = _BETWEEN.get(each.name, Cause.UNKNOWN)
            yield Pieces.waited(Cause.UNKNOWN if cause is Cause.PYTHON else cause, each.seconds, seen)
        else:
            yield from of_lines(lines, each.seconds, seen, _BETWEEN.get(each.name, Cause.UNKNOWN))


def of_lines(lines: Sequence[HostLine], seconds: float, seen: int, own: Cause = Cause.PYTHON) -> Iterator[Pieces]:
    """So many seconds of the host's thread, by its sampled lines: what it slept, and what it did for its ``own`` cause
    or in a library.
    """
    sampled_s = sum(line.seconds for line in lines)
    for line in lines:
        mine_s = seconds * line.seconds / sampled_s
        cause = _CAUSE_OF.get(line.within, own) if own is Cause.PYTHON else own
        asleep_s = mine_s * line.asleep_s / line.seconds if cause in (Cause.PYTHON, Cause.NO_OP) else 0.0
        fetched_s = min(mine_s - asleep_s, mine_s * line.fetched_s / line.seconds) if cause is Cause.NO_OP else 0.0
        place = line.where
        yield Pieces.waited(Cause.ASLEEP, asleep_s, seen, place)
        yield Pieces.waited(Cause.ALLOCATOR, fetched_s, seen, place, Regime.MEMORY)
        cause = Cause.UNKNOWN if cause is Cause.PYTHON and place is None else cause
        yield Pieces.waited(cause, mine_s - asleep_s - fetched_s, seen, place)


def seen_in(walls: Float64, seconds: float) -> int:
    """In how many iterations a wait of so many seconds in the mean was: in the slow ones alone, if it is about what
    these take beyond the median.
    """
    over_s = walls - np.median(walls)
    slow = over_s > _SLOW * np.median(walls)
    excess_s = float(over_s[slow].sum()) / max(1, len(walls))
    return int(slow.sum()) if _LIKE * excess_s > seconds > excess_s / _LIKE else len(walls)


def _between_ops(times: Times, exchanged_s: float, walls: Float64) -> Iterator[Pieces]:
    """What the thread did in gaps between ops: waited in a library, slept, or ran the program's own lines."""
    waits = []

    def waited(cause: Cause, seconds: float, line: HostLine | None) -> Pieces:
        return Pieces.waited(cause, seconds, seen_in(walls, seconds), None if line is None else line.where)

    for cause, within in _OF_LIBRARY:
        seconds, asleep_s, line = times.in_library(*within)
        if cause is Cause.COMMUNICATION:
            seconds = max(0.0, seconds - exchanged_s)
        waits.append((cause, seconds, min(asleep_s, seconds), line))
    waited_s = sum(each[1] for each in waits)
    gaps_s = times.long_gaps_s if times.measured else waited_s
    share = min(1.0, gaps_s / waited_s) if waited_s else 1.0
    for cause, seconds, _, line in waits:
        yield waited(cause, seconds * share, line)
    rest_s = max(0.0, gaps_s - waited_s)
    own = [line for line in times.lines if line.within not in (within for _, each in _OF_LIBRARY for within in each)]
    asleep_s = min(rest_s, max(0.0, times.asleep_s - sum(each[2] for each in waits))) * _sleeping(own)
    sleeping = max(own, key=lambda each: each.asleep_s, default=None)
    exchanging = sleeping is not None and sleeping.within is Within.BACKWARD and bool(times.collectives.any())
    yield waited(Cause.COMMUNICATION if exchanging else Cause.ASLEEP, asleep_s, sleeping)
    named, busy_s = times.own_lines, rest_s - asleep_s
    if not named:  # Python of torch, between its ops
        yield waited(Cause.LAUNCHES if times.lines else Cause.PYTHON, busy_s, None)
    sampled_s = sum(line.seconds for line in named)
    for line in named:
        yield Pieces.waited(Cause.PYTHON, busy_s * line.seconds / sampled_s, seen_in(walls, busy_s), line.where)
    yield waited(Cause.OTHER_PROGRAMS, times.held_up_s, None)


def _sleeping(lines: Sequence[HostLine]) -> float:
    """The share of the sleep of sampled lines that is of those mostly asleep; others wait for threads of their ops."""
    asleep_s = sum(line.asleep_s for line in lines)
    mostly_s = sum(line.asleep_s for line in lines if line.asleep_s > _MOSTLY * line.seconds)
    return mostly_s / asleep_s if asleep_s else 1.0
