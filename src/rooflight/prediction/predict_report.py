"""An operator's predicted times."""

from __future__ import annotations

from collections.abc import Mapping

from rooflight.devices.spec import DeviceSpec
from rooflight.records.estimate import Estimate, Source
from rooflight.records.quantity import Quantity
from rooflight.records.report import Report, Table

SCHEMA = "rooflight.prediction/1"


def report_of(
    operator: str, shape: Mapping[str, int], dtype: str, device: DeviceSpec, estimates: Mapping[str, Estimate]
) -> Report:
    """Time, interval, bound and efficiency by direction, and what the estimate rests on."""
    sizes = " ".join(f"{name}={value}" for name, value in shape.items())
    notes = []
    if any(estimate.source is Source.TYPICAL for estimate in estimates.values()):
        notes.append("No model knows this kind of work: half the speed of light, within a factor of four. Sample it.")
    elif any(estimate.source is Source.SIMILAR for estimate in estimates.values()):
        notes.append("Nothing like this was measured: the estimate is that of other work as large. Sample it.")
    elif any(estimate.extrapolated for estimate in estimates.values()):
        notes.append("Outside what was sampled (shape or device): the interval is wider, and less sure than it says.")
    return Report(
        title=f"Predicted: {operator} {sizes} {dtype} on {device.name}",
        schema=SCHEMA,
        facts=(("roofs from", device.roofs_used),),
        tables=(
            Table(
                title="Time",
                columns=("direction", "time", "from", "to", "bound", "efficiency", "source"),
                rows=tuple(
                    (
                        direction,
                        Quantity(estimate.time_s, "s"),
                        Quantity(estimate.low_s, "s"),
                        Quantity(estimate.high_s, "s"),
                        Quantity(estimate.bound_s, "s"),
                        Quantity(estimate.bound_s / estimate.time_s, "%"),
                        estimate.source.value + (", extrapolated" if estimate.extrapolated else ""),
                    )
                    for direction, estimate in estimates.items()
                ),
                note="From, to: 90 % of such times lie between.",
            ),
        ),
        notes=tuple(notes),
        data={
            direction: {
                "time_s": estimate.time_s,
                "low_s": estimate.low_s,
                "high_s": estimate.high_s,
                "bound_s": estimate.bound_s,
                "source": estimate.source.value,
                "extrapolated": estimate.extrapolated,
            }
            for direction, estimate in estimates.items()
        },
    )
