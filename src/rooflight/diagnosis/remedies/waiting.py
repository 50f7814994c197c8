"""Waiting: in the program's own lines, for a copy, a result or another rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.account import Cause, Regime
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.timeline import Between, IdleCause

PAGEABLE: Final = Remedy(
    id="pageable-copy",
    title="copies from pageable memory block the host",
    short="pin_memory=True, non_blocking=True",
    rest="in the DataLoader, and in .to(device)",
)
RANK: Final = Remedy(
    id="rank-wait",
    title="the step waits for another rank",
    short="balance the ranks' work",
    rest="fewer barriers and collectives of the host",
)
DRIVER: Final = Remedy(
    id="driver",
    title="the host is in the driver: it allocates memory or loads kernels",
    short="keep memory, no empty_cache()",
    rest="expandable_segments; warm-up steps before the profile",
    waste=False,
)


_MANY: Final = 4


EVALUATION: Final = Remedy(
    id="evaluation",
    title="the script evaluates between steps",
    short="evaluate less often, or on less data",
    rest="half as often gains what is predicted; under torch.inference_mode(), in larger batches, metrics by sorting",
    waste=False,
)
CHECKPOINT: Final = Remedy(
    id="checkpoint",
    title="the script writes checkpoints",
    short="write checkpoints less often",
    rest="half as often gains what is predicted; in another thread: torch.distributed.checkpoint.async_save",
    waste=False,
)


def checkpoints(facts: Facts) -> Iterable[Draft]:
    """Files that are written between steps, or in them."""
    lost_s = facts.of.analysis.account.seconds(Cause.CHECKPOINT)
    text = next((_often(each) for each in facts.of.between if each.name == "checkpoint"), "")
    text = f"{Quantity(lost_s, 's')} an iteration, in the mean{text}"
    yield from facts.waiting(CHECKPOINT, (Cause.CHECKPOINT,), lost_s, 0.5 * lost_s, text, 0.8)


def _often(part: Between) -> str:
    """How often a part lay between steps, and how long each was, in words."""
    count, of = part.seen
    return f": {count_of(count, 'time')} in {of:,} steps, {Quantity(part.each_s, 's')} each" if count else ""


def evaluations(facts: Facts) -> Iterable[Draft]:
    """Evaluations between steps."""
    for each in facts.of.between:
        if each.name == "evaluation":
            text = f"{Quantity(each.seconds, 's')} an iteration in the mean, {percent(each.share)} of the time"
            text += _often(each)
            yield from facts.waiting(EVALUATION, (Cause.UNKNOWN,), each.seconds, 0.5 * each.seconds, text, 0.8)


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
    short="no .item(), .cpu() or if on a tensor",
    rest="nor nonzero() in the step: log every N steps, keep it on the device; validate_args=False for distributions",
    verify="fewer _local_scalar_dense in the step",
)
_WITHOUT_DEVICE: Final[Mapping[str, Any]] = {
    "title": "results are read into Python one by one",
    "short": "tensor ops, or one tolist() for all of them",
    "rest": "no .item() or if on a tensor in the loop; log every N steps; validate_args=False for distributions",
}


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
        remedy = replace(SYNC, **_WITHOUT_DEVICE)
        yield from facts.draft(remedy, calls, text, gain_s=facts.spared(calls, 0.9), regime=Regime.OVERHEAD)


RULES: Final = (checkpoints, evaluations, of_a_trace, syncs)
