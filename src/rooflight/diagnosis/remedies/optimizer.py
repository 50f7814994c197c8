"""The optimizer: in hundreds of small ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction

FUSED: Final = Remedy(
    id="fused-optimizer",
    title="the optimizer in many small ops",
    short="fused=True in the optimizer",
    rest="or foreach=True",
    verify="one or a few ops in the optimizer's step",
)
_MANY: Final = 24


def fused(facts: Facts) -> Iterable[Draft]:
    """Ops of the optimizer, one parameter after the other."""
    of = facts.of
    calls = np.flatnonzero((of.direction == Direction.OPTIMIZER) & of.works)
    if len(calls) < _MANY or any("_fused_" in op.name for op in of.ops(calls)):
        return
    written, size = of.writes.of(calls), of.session.storage_bytes
    touched = np.zeros(len(size), dtype=np.bool_)
    touched[of.reads.of(calls)] = touched[written] = True
    moved = int(size[touched].sum())
    bandwidth = of.analysis.device.dram_bytes_per_s or 1e10
    # all states are read and written once by one op
    needed_s = 1.5 * moved / bandwidth + 5 * (of.floor_s + float(of.host_s.mean()))
    needed_s += 1e-6 * len(written) * float(of.on_cpu)
    took_s = facts.spared(calls)
    each_alone = not any("_foreach_" in op.name for op in of.ops(calls))
    remedy = FUSED if each_alone else replace(FUSED, rest="")
    text = f"{count_of(len(calls), 'op')} take {Quantity(took_s, 's')}, one op about {Quantity(needed_s, 's')}"
    yield from facts.draft(remedy, calls, text, gain_s=took_s - needed_s)


RULES: Final = (fused,)
