"""Copies between host and device where times are predicted: from pageable memory, and in turn with computing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.remedies.waiting import PAGEABLE
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import PINS
from rooflight.records.signature import FROM_HOST
from rooflight.roofline.findings import Regime
from rooflight.roofline.host import crossing_s

COPY_OVERLAP: Final = Remedy(
    id="copy-overlap",
    title="copies between host and device take turns with computing",
    remedy="copy the next part on a stream of its own while this one is computed: pinned memory, non_blocking=True, "
    "results back on a third stream",
    verify="the step takes as long as its longest of copies in, work, and copies out",
    waste=False,
)

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
    pinned_s = sum(crossing_s(of.ops[call], device, pins=True) for call in calls.tolist())
    moved = sum(max(of.ops[call].input_bytes, of.ops[call].output_bytes) for call in calls.tolist())
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


RULES: Final = (transfers,)
