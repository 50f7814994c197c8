"""Copies between host and device where times are predicted: from pageable memory, and in turn with computing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.costs.registry import cost_of
from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.remedies.loading import LOADER
from rooflight.diagnosis.remedies.waiting import PAGEABLE
from rooflight.records.account import Regime
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction
from rooflight.records.session import PINS
from rooflight.records.signature import FROM_HOST
from rooflight.roofline.host import crossing_s

COPY_OVERLAP: Final = Remedy(
    id="copy-overlap",
    title="copies between host and device take turns with computing",
    short="copy the next part on a stream of its own",
    rest="while this one is computed: pinned memory, non_blocking=True, results back on a third stream",
    verify="the step takes as long as its longest of copies in, work, and copies out",
    waste=False,
)

_WORKERS: Final = 4  # of a loader
_BOTH_WAYS: Final = 1.6
"""Pinned copies in both directions at once carry 1.4 to 1.9 times the bytes of one direction."""


def transfers(facts: Facts) -> Iterable[Draft]:
    """Copies from memory that is not pinned, and copies in which the device computes nothing."""
    of, device = facts.of, facts.of.analysis.device
    if of.on_cpu or of.source != "predicted":
        return
    calls = np.flatnonzero(of.crosses)
    if not len(calls):
        return
    took_s = float(of.seconds[calls].sum())
    pinned_s = of.total(lambda op: crossing_s(op, device, pins=True), calls)
    moved = of.total(lambda op: max(op.input_bytes, op.output_bytes), calls)
    text = f"{count_of(len(calls), 'copy', 'copies')} of {Quantity(moved, 'B')} take {Quantity(took_s, 's')}"
    if of.session.environment.get(PINS) == "no":
        pinned = f"{text}, from pinned memory about {Quantity(pinned_s, 's')}"
        gain_s = of.gain(took_s - pinned_s)
        yield from facts.draft(PAGEABLE, calls, pinned, gain_s=gain_s, regime=Regime.IDLE, low=0.6, high=1.25)
    inward = of.where_op(FROM_HOST in op.attributes for op in of.session.signatures)
    in_s, out_s = float(of.seconds[inward].sum()), float(of.seconds[of.crosses & ~inward].sum())
    link_s = max(in_s, out_s, took_s / _BOTH_WAYS) * min(1.0, pinned_s / max(took_s, 1e-12))
    compute_s = of.device_total_s - took_s
    pieces = max(2, int(inward.sum()), len(calls) - int(inward.sum()))
    # the longer of the two goes on; of the other the first or last piece stands alone
    then_s = max(link_s, compute_s) + min(link_s, compute_s) / pieces
    gain_s = of.step_s - max(then_s, of.host_total_s)
    yield from facts.draft(COPY_OVERLAP, calls, text, gain_s=gain_s, regime=Regime.IDLE, low=0.5, high=1.3)


def preparing(facts: Facts) -> Iterable[Draft]:
    """Batches that the host computes, op by op, before it copies them to a GPU: workers do that meanwhile."""
    of = facts.of
    if of.on_cpu or of.source != "predicted" or not of.crosses.any():
        return
    last = int(np.flatnonzero(of.crosses)[-1])
    calls = np.flatnonzero(of.on_host & (of.direction == Direction.FORWARD))
    calls = calls[calls < last]
    lost_s = float(of.host_s[calls].sum())
    moves = of.where_op(not getattr(cost_of(op), "vector_flops", 1) for op in of.session.signatures)
    moving_s = float(of.host_s[calls[moves[calls]]].sum())  # which workers do no faster: they share the host's memory
    apart = np.ones(len(of.records), dtype=np.bool_)
    apart[calls] = False
    gain_s = of.step_s - max(of.wall_s(apart), moving_s + (lost_s - moving_s) / _WORKERS)
    text = f"{count_of(len(calls), 'op')} of the host take {Quantity(lost_s, 's')} before their results are copied"
    yield from facts.draft(LOADER, calls, text, gain_s=gain_s, regime=Regime.IDLE)


RULES: Final = (transfers, preparing)
