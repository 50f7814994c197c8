"""Size: work that is too small for the device, or misses its tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.quantity import count_of, percent
from rooflight.roofline.findings import Regime

BATCH: Final = Remedy(
    id="bigger-batch",
    title="overhead that does not grow with the batch",
    remedy="a bigger batch, if the memory and the method allow it: about the same time for more samples",
    verify="the step of the doubled batch takes hardly longer",
    waste=False,
)
TILES: Final = Remedy(
    id="tile-padding",
    title="products of sizes that miss the tile",
    remedy="pad vocabulary and hidden sizes to a multiple of 64 (at least 8)",
    verify="the padded product is faster though it computes more",
)
_TILE: Final = 8


def batch(facts: Facts) -> Iterable[Draft]:
    """Steps of which most is overhead."""
    of = facts.of
    overhead_s = of.gain(float(np.minimum(of.seconds, of.floor_s).sum()), of.host_total_s) if of.on_cpu else (
        max(0.0, of.host_total_s - of.device_total_s)
    )  # fmt: skip
    if overhead_s < 0.5 * of.step_s:
        return
    text = f"dispatch and Python take {percent(overhead_s / of.step_s)} of the step, whatever the batch"
    yield from facts.waiting(BATCH, Regime.OVERHEAD, overhead_s, 0.45 * of.step_s, text, 0.5)


def tiles(facts: Facts) -> Iterable[Draft]:
    """16-bit products on a GPU with a size that is no multiple of 8."""
    of = facts.of
    if of.on_cpu:
        return
    odd = of.where_op(
        any(
            tensor.dtype in ("float16", "bfloat16") and tensor.shape and tensor.shape[-1] % _TILE
            for tensor in op.inputs
        )
        for op in of.session.signatures
    )
    calls = np.flatnonzero(odd & of.products)
    slow = calls[of.seconds[calls] > 2 * of.bound_s[calls]] if len(calls) else calls
    gain_s = of.gain(float((of.seconds[slow] - 1.6 * of.bound_s[slow]).sum())) if len(slow) else 0.0
    text = f"{count_of(len(slow), 'product')} with a size that is no multiple of {_TILE}"
    yield from facts.draft(TILES, slow, text, gain_s=gain_s, regime=Regime.COMPUTE, low=0.4, high=1.3)


RULES: Final = (batch, tiles)
