"""Why a predicted gain may say nothing of a step: what the measured programs that it learned from did not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rooflight.costs.cost import Uncosted
from rooflight.prediction.compiled_work import CompiledWork
from rooflight.records.quantity import count_of, percent
from rooflight.records.record import Direction
from rooflight.roofline.analysis import Analysis

_MOST_TYPICAL: Final = 0.5


def doubts_of(analysis: Analysis, work: CompiledWork, mode: str) -> Iterator[str]:
    """Sentences without a full stop; none where the step is like those that were measured."""
    session, device = analysis.session, analysis.device
    costs = zip(session.signatures, analysis.costs, strict=True)
    uncosted = [op.name for op, cost in costs if isinstance(cost, Uncosted)]
    if uncosted:
        named = ", ".join(sorted(set(uncosted))[:3])
        yield f"the time of {count_of(len(uncosted), 'op')} is left out, because no cost is known ({named})"
    if not work.launches:
        yield "nothing of the step is compiled"
    if device.kind == "cpu":
        if mode != "default":
            yield f"on a CPU, compiled programs were measured in the mode default alone, not in {mode}"
        return
    if device.vendor != "NVIDIA":
        yield f"compiled programs were measured on NVIDIA's GPUs alone, not on {device.vendor}'s"
    if (session.columns.direction[session.counted] != Direction.FORWARD).any():
        yield "compiled programs were measured in forward passes alone, not in training"
    predicted = analysis.totals.predicted
    if predicted is not None and predicted.time_s and predicted.typical_s > _MOST_TYPICAL * predicted.time_s:
        share = percent(predicted.typical_s / predicted.time_s)
        yield f"no measured op is like those of {share} of the device time"
    if any(tensor.dtype in ("bfloat16", "float16") for op in session.signatures for tensor in op.outputs):
        yield "compiled programs were measured in float32 alone"
