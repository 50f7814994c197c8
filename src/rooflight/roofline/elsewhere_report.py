"""Times that were measured on another device than the one an analysis is bounded for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflight.records.document import Fields
from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell
from rooflight.records.signature import OpSignature
from rooflight.roofline.analysis import Analysis


class MeasuredThereData(Fields, frozen=True, kw_only=True):
    """What was measured on ``device``, which is not the one of the bounds: the median step, the sum of the ops'
    medians, and whole steps. ``predicted_speedup``: what the ops with a prediction took there, over their predicted
    time on the device of the bounds.
    """

    device: str
    clock: str
    measured_s: float | None
    ops_measured_s: float | None
    wall_samples_s: tuple[float, ...]
    predicted_speedup: float | None


def measured_there_data(analysis: Analysis) -> MeasuredThereData | None:
    """None for a session that was measured on the device of its bounds, or not at all."""
    there = analysis.there
    if there is None or there.measurement is None:
        return None
    return MeasuredThereData(
        device=analysis.measured_on,
        clock=there.measurement.clock,
        measured_s=there.totals.measured_s,
        ops_measured_s=there.totals.ops_measured_s,
        wall_samples_s=tuple(there.measurement.wall_samples_s.tolist()),
        predicted_speedup=_speedup(analysis),
    )


def _speedup(analysis: Analysis) -> float | None:
    """Of the ops that have both times."""
    measured = operations_there(analysis)
    both = [(measured[each.signature], each.predicted) for each in analysis.operations if each.signature in measured]
    known = [(there_s, predicted.time_s) for there_s, predicted in both if there_s and predicted]
    here_s = sum(predicted_s for _, predicted_s in known)
    return sum(there_s for there_s, _ in known) / here_s if here_s else None


def there_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows of times on another device."""
    there = analysis.there
    if there is None:
        return
    if there.totals.measured_s is not None:
        yield "measured there", f"step of {Quantity(there.totals.measured_s, 's')} on {analysis.measured_on}"
    if there.totals.ops_measured_s is not None:
        yield "ops there", f"{Quantity(there.totals.ops_measured_s, 's')} in sum on {analysis.measured_on}"
    if speedup := _speedup(analysis):
        yield "predicted speed-up", f"{speedup:.2f} times as fast here, the ops that have both times"


def there_sentence(analysis: Analysis) -> str:
    """For the conclusion: how the step on the other device compares with the bound here; empty without such a step."""
    there, bound_s = analysis.there, analysis.totals.op_bound_s
    measured_s = there.totals.measured_s if there is not None else None
    if not measured_s or not bound_s:
        return ""
    return (
        f" On {analysis.measured_on}, where it was measured, the step took {Quantity(measured_s, 's')}: "
        f"{measured_s / bound_s:,.1f} times this bound."
    )


def there_explained(analysis: Analysis) -> str:
    """What the column of such times has; empty without one."""
    if analysis.there is None or analysis.there.totals.ops_measured_s is None:
        return ""
    return f"Measured there: on {analysis.measured_on}. The bounds are those of {analysis.device.name}."


def groups_there(analysis: Analysis, key: str) -> Mapping[str, float | None]:
    """The time of each group of a roll-up on the other device."""
    there = analysis.there
    return {} if there is None else {group.name: group.measured_s for group in there.by(key)}


def operations_there(analysis: Analysis) -> Mapping[OpSignature, float | None]:
    """The time of all calls of each signature on the other device."""
    there = analysis.there
    return {} if there is None else {each.signature: each.measured_s for each in there.operations}
