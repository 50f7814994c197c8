"""Waiting: for data, for worker processes, in the program's own lines, for a copy or another rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.records.account import Cause, Regime
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.timeline import HostLine, IdleCause, Within
from rooflight.roofline.account.times import WAITS

LOADER: Final = Remedy(
    id="loader",
    title="the step waits for data",
    remedy="DataLoader(..., num_workers=N), persistent_workers=True, cheaper transforms, or data prepared once",
    verify="the time in the data loader is gone from the step",
)
WORKERS: Final = Remedy(
    id="workers-anew",
    title="loader workers start anew in each step",
    remedy="DataLoader(..., persistent_workers=True), and one loader that is kept",
)
ASLEEP: Final = Remedy(
    id="asleep",
    title="the host sleeps or waits",
    remedy="read ahead, wait in another thread, or leave out the sleep or lock",
)
HOST: Final = Remedy(
    id="host-code",
    title="the program's own lines",
    remedy="do it once, in another process, or by tensor ops",
)
PAGEABLE: Final = Remedy(
    id="pageable-copy",
    title="copies from pageable memory block the host",
    remedy="DataLoader(..., pin_memory=True) and .to(device, non_blocking=True)",
)
RANK: Final = Remedy(
    id="rank-wait",
    title="the step waits for another rank",
    remedy="balance the ranks' work; fewer barriers and collectives of the host",
)
DRIVER: Final = Remedy(
    id="driver",
    title="the host is in the driver: it allocates memory or loads kernels",
    remedy="warm-up steps before the profile; memory that is kept (expandable_segments, no empty_cache())",
    waste=False,
)


_ASLEEP: Final = 0.7
_MANY: Final = 4


def _at(line: HostLine | None) -> str:
    return str(line.where) if line is not None and line.where else "a library"


def workers(facts: Facts) -> Iterable[Draft]:
    """Processes that start in the step, and the waits of those who start them."""
    started_s, _, line = facts.of.in_library(Within.STARTING)
    if line is None or started_s < 0.01 * facts.of.step_s:
        return
    waited_s, _, _ = facts.of.in_library(Within.PROCESS, Within.LOADER)
    lost_s = started_s + waited_s
    text = f"{Quantity(lost_s, 's')} a step to start workers and to wait for their first batch: {_at(line)}"
    yield from facts.waiting(WORKERS, (Cause.LOADER, Cause.SUBPROCESS), lost_s, lost_s, text)


def loader(facts: Facts) -> Iterable[Draft]:
    """The data loader, in the step or between steps."""
    of, run = facts.of, facts.of.session.run
    if facts.of.in_library(Within.STARTING)[0] > 0.01 * of.step_s:
        return
    lost_s, asleep_s, line = of.in_library(Within.LOADER)
    waits = asleep_s > 0.5 * lost_s
    text = f"{Quantity(lost_s, 's')} a step {'asleep' if waits else 'busy'} in the data loader: {_at(line)}"
    known, whole_s = True, of.step_s
    for each in run.between if run is not None else ():
        if each.name == "loader":
            lost_s, known, whole_s = each.seconds, False, of.whole_s
            text = f"{Quantity(lost_s, 's')} before each step, {percent(each.share)} of the time"
    if of.idle is not None and of.idle.data_loader_s:
        lost_s, waits = of.idle.data_loader_s, True
        text = f"the device is idle for {Quantity(lost_s, 's')} while the host fetches a batch"
        text += of.mostly_in(IdleCause.DATA_LOADER)
    rest_s = max(0.0, whole_s - lost_s)
    # workers share what sleeps; what computes needs cores that the step leaves free
    gain_s = lost_s - max(0.0, lost_s / (4 if waits else 2) - rest_s) if known else min(lost_s, rest_s)
    yield from facts.waiting(LOADER, (Cause.LOADER,), lost_s, gain_s, text, 0.6)


def own_lines(facts: Facts) -> Iterable[Draft]:
    """What the program's own lines wait for, or compute in Python, between ops and before steps."""
    of = facts.of
    slept_s, busy_s, line = _between_ops(of) if of.on_cpu and of.measured else (0.0, 0.0, None)
    before = of.before
    sleeping = [(slept_s, line), *((each.asleep_s, each) for each in before)]
    busy = [(busy_s, line), *((each.seconds - each.asleep_s, each) for each in before if each.where)]
    for remedy, cause, lines, share, what in (
        (ASLEEP, Cause.ASLEEP, sleeping, 1.0, "asleep, most of it in"),
        (HOST, Cause.PYTHON, busy, 0.9, "in which Python runs: mostly"),
    ):
        lost_s = sum(seconds for seconds, _ in lines)
        where = " between ops" if before == () and remedy is HOST else ""
        text = f"{Quantity(lost_s, 's')} {of.each}{where} {what} {_at(max(lines, key=lambda each: each[0])[1])}"
        yield from facts.waiting(remedy, (cause,), lost_s, share * lost_s, text, 0.6 if remedy is ASLEEP else 0.5)


def _between_ops(of: Evidence) -> tuple[float, float, HostLine | None]:
    """Seconds between ops asleep, or in which Python runs, and the line where most of them were."""
    known_s = of.in_library(*WAITS)[0]
    own = [line for line in of.lines if line.within not in WAITS]
    # to be sampled takes a thread a little time, too: a line that sleeps does hardly anything else
    ran = 1 - of.held_up_s / of.step_s  # the share of time that other programs left
    sleeping = [line for line in own if line.asleep_s > _ASLEEP * ran * line.seconds]
    all_asleep_s = sum(line.asleep_s for line in own)
    slept_s = of.asleep_s * sum(line.asleep_s for line in sleeping) / all_asleep_s if all_asleep_s else 0.0
    if slept_s > 0.5 * max(0.0, of.long_gaps_s - known_s):
        line = max(sleeping, key=lambda each: each.asleep_s)
        return slept_s, 0.0, line
    busy_s = of.gain(other_s=max(0.0, of.long_gaps_s - known_s - of.asleep_s))
    named = [line for line in own if not line.within]
    return (0.0, busy_s, named[0]) if named else (0.0, 0.0, None)


CHECKPOINT: Final = Remedy(
    id="checkpoint",
    title="the script writes checkpoints",
    remedy="write half as often, or in another thread (torch.distributed.checkpoint.async_save)",
    waste=False,
)


def checkpoints(facts: Facts) -> Iterable[Draft]:
    """Files that are written between steps, or in them."""
    lost_s = facts.of.analysis.account.seconds(Cause.CHECKPOINT)
    text = f"{Quantity(lost_s, 's')} an iteration, in the mean"
    yield from facts.waiting(CHECKPOINT, (Cause.CHECKPOINT,), lost_s, 0.5 * lost_s, text, 0.8)


def of_a_trace(facts: Facts) -> Iterable[Draft]:
    """Idle time of a device by the causes that its trace shows."""
    idle = facts.of.idle
    if idle is None:
        return
    for remedy, causes, lost_s, cause in (
        (PAGEABLE, (Cause.COPIES,), idle.pageable_copy_s, IdleCause.PAGEABLE_COPY),
        (RANK, (Cause.RANK,), idle.rank_s, IdleCause.RANK),
        (DRIVER, (Cause.ALLOCATOR,), idle.driver_s, IdleCause.DRIVER),
    ):
        text = f"the device is idle for {Quantity(lost_s, 's')}{facts.of.mostly_in(cause)}"
        yield from facts.waiting(remedy, causes, lost_s, 0.9 * lost_s, text, 0.4)


SYNC: Final = Remedy(
    id="sync",
    title="the host waits for results of the device",
    remedy="no .item(), .cpu(), nonzero() or if on a tensor in the step: log every N steps, keep it on the device",
    verify="fewer _local_scalar_dense in the step",
)


def syncs(facts: Facts) -> Iterable[Draft]:
    """Reads of the device's results by the host."""
    of = facts.of
    count = int(of.syncs.sum())
    if of.idle is not None:
        text = f"the device is idle for {Quantity(of.idle.sync_s, 's')} after the host had waited for it"
        text += of.mostly_in(IdleCause.SYNC)
        yield from facts.waiting(SYNC, (Cause.SYNC, Cause.LAUNCHES), of.idle.sync_s, 0.7 * of.idle.sync_s, text, 0.2)
    elif not of.on_cpu and count:
        gain_s = of.synced_s
        text = f"the host waits {count_of(count, 'time')} a step until the device has a result"
        yield from facts.waiting(SYNC, (Cause.SYNC, Cause.LAUNCHES), gain_s, gain_s, text, 0.3)
    elif count >= _MANY:
        calls = np.flatnonzero(facts.values.for_syncs)
        text = f"the host reads {count_of(count, 'result')} a step; {count_of(len(calls), 'op')} serve that alone"
        yield from facts.draft(SYNC, calls, text, gain_s=facts.spared(calls, 0.9), regime=Regime.OVERHEAD)


RULES: Final = (workers, loader, own_lines, checkpoints, of_a_trace, syncs)
