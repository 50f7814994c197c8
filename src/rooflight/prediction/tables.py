"""An operator's predicted times."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.devices.what_if import without_effect
from rooflight.prediction.work.precisions import in_effect
from rooflight.records.document import Document, Fields
from rooflight.records.estimate import Estimate, Source
from rooflight.records.report import Report, share, table


class EstimateData(Fields, frozen=True, kw_only=True):
    """A predicted time with its interval (90 %) and bound, null where the work is unknown, and what it rests on."""

    time_s: float
    low_s: float
    high_s: float
    bound_s: float | None
    source: str
    extrapolated: bool


class PredictionDocument(Document, frozen=True, kw_only=True, tag="rooflight.prediction/1"):
    """An operator's predicted times by direction: those that it has; of what shape, where, and under which roofs.
    ``what_if_precision`` is null where it changes nothing; ``notes`` then says so.
    """

    operator: str
    shape: Mapping[str, int]
    dtype: str
    device: str
    what_if_precision: str | None
    what_if_clock_hz: float | None
    roofs_used: str
    notes: tuple[str, ...]
    threads: int | None = None
    fwd: EstimateData | UnsetType = UNSET
    bwd: EstimateData | UnsetType = UNSET
    step: EstimateData | UnsetType = UNSET


def report_of(
    operator: str, shape: Mapping[str, int], dtype: str, device: DeviceSpec, estimates: Mapping[str, Estimate]
) -> Report:
    """Time, interval, bound and efficiency by direction, and what the prediction rests on."""
    sizes = " ".join(f"{name}={value}" for name, value in shape.items())
    notes = []
    if any(estimate.source is Source.TYPICAL for estimate in estimates.values()):
        notes.append("No model learned this kind of work: the prediction is twice the bound, within a factor of 4.")
    elif any(estimate.source is Source.SIMILAR for estimate in estimates.values()):
        notes.append("This kind of work was not measured: the prediction is that of other work of this size.")
    elif any(estimate.extrapolated for estimate in estimates.values()):
        notes.append("Shape or device lie outside of the samples: the interval is wider, and less certain than 90 %.")
    if not all(estimate.bound_s for estimate in estimates.values()):
        notes.append("Its FLOPs and bytes are unknown: nothing bounds it, and it is predicted by its parameters alone.")
    supposed, device = device.what_if_precision, in_effect(operator, shape, dtype, device)
    if supposed is not None and device.what_if_precision is None:
        text = without_effect(supposed)
        notes.append(f"{text[0].upper()}{text[1:]}.")
    if device.name != device.part_name:
        notes.append(
            f"What if: models learned from {device.part_name} with its own precisions and clock. Work that another "
            "precision or clock changes is predicted as on a device that nobody measured."
        )
    return Report(
        title=f"Predicted: {operator} {sizes} {dtype} on {device.name}",
        data=PredictionDocument.view(
            device,
            operator=operator,
            shape=shape,
            dtype=dtype,
            device=device.name,
            notes=notes,
            **{
                way: EstimateData.view(each, bound_s=each.bound_s or None, source=each.source.value)
                for way, each in estimates.items()
            },
        ),
        facts=(("roofs from", device.roofs_used),) if any(each.bound_s for each in estimates.values()) else (),
        tables=(
            table(
                "times",
                "Time",
                estimates.items(),
                ("direction", "", lambda each: each[0]),
                ("time", "s", lambda each: each[1].time_s),
                ("from", "s", lambda each: each[1].low_s),
                ("to", "s", lambda each: each[1].high_s),
                ("op bound", "s", lambda each: each[1].bound_s or None),
                ("efficiency", "%", lambda each: share(each[1].bound_s or None, each[1].time_s)),
                ("source", "", lambda each: each[1].source.value + ", extrapolated" * each[1].extrapolated),
                note="90 % of such times lie between from and to. Efficiency: op bound / time.",
            ),
        ),
        notes=tuple(notes),
    )
