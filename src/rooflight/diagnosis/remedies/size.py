"""Size: work that is too small for the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.quantity import percent
from rooflight.roofline.findings import Regime

BATCH: Final = Remedy(
    id="bigger-batch",
    title="overhead that does not grow with the batch",
    remedy="a bigger batch, if the memory and the method allow it: about the same time for more samples",
    verify="the step of the doubled batch takes hardly longer",
    waste=False,
)


def batch(facts: Facts) -> Iterable[Draft]:
    """Steps of which most is overhead."""
    of = facts.of
    in_ops_s = float(np.minimum(of.seconds, of.floor_s).sum())
    overhead_s = of.gain(in_ops_s, of.host_total_s) if of.on_cpu else of.late_s
    if overhead_s < 0.5 * of.step_s:
        return
    text = f"dispatch and Python take {percent(overhead_s / of.step_s)} of the step, whatever the batch"
    yield from facts.waiting(BATCH, Regime.OVERHEAD, overhead_s, 0.45 * of.step_s, text, 0.5)


RULES: Final = (batch,)
