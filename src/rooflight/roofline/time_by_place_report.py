"""Seconds by place beside bounds, as tables and as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflight.records.quantity import Quantity
from rooflight.records.report import Column, Table
from rooflight.roofline.predicted_report import PredictedFields, row_data
from rooflight.roofline.time_by_place import PlaceTime, TimeByPlace, WholeTime

_TIMES = (Column("estimated", "s"), Column("measured", "s"), Column("efficiency", "%"), Column("bound"))
SEE = "a higher top shows them"
"""How to have the rows that a table leaves out, where there is no command line."""


class PlaceData(PredictedFields, frozen=True, kw_only=True):
    """A place of a step, by its own code alone. What its ops must do is None where no op was recorded there."""

    name: str
    calls: int
    matrix_flops: int | None
    vector_flops: int | None
    bytes_moved: int | None
    bytes_sent: int | None
    op_bound_s: float | None
    limiter: str | None
    measured_s: float | None
    efficiency: float | None
    share: float | None


def places_table(times: TimeByPlace, *, title: str, top: int) -> Table:
    """One row a place: work, bound ("estimated"), time, efficiency, limiter ("bound") and share of the whole."""
    return Table(
        id=f"by_{times.key}",
        title=title,
        columns=(
            Column(times.key),
            Column("calls"),
            Column("matrix", "FLOP"),
            Column("bytes", "B"),
            *_TIMES,
            Column("share", "%"),
        ),
        rows=tuple(
            (
                place.name,
                place.calls,
                place.group.matrix_flops if place.group else None,
                place.group.bytes_moved if place.group else None,
                *_times(place),
                place.share,
            )
            for place in times.places
        ),
        top=top,
        optional=("matrix", "bytes", "calls"),
        see=SEE,
    )


def modules_table(times: TimeByPlace, classes: Mapping[str, str], *, title: str, top: int) -> Table:
    """One row a module that ran ops, with its class by qualified name."""
    return Table(
        id=f"by_{times.key}",
        title=title,
        columns=(Column("layer"), Column("type"), *_TIMES),
        rows=tuple(
            (place.name, classes.get(place.name, ""), *_times(place))
            for place in times.places
            if place.group is not None
        ),
        top=top,
        see=SEE,
        note="Estimated is the op bound. Each module's own code; what it calls has rows of its own.",
    )


def places_data(times: TimeByPlace) -> tuple[PlaceData, ...]:
    """All places, the longest first."""
    return tuple(map(_place_data, times.places))


def contradictions(times: TimeByPlace) -> Iterable[str]:
    """A sentence for each place that took less than its bound."""
    for place in times.faster_than_bound:
        assert place.group is not None
        assert place.measured_s is not None
        measured, bound = Quantity(place.measured_s, "s"), Quantity(place.group.bound_s, "s")
        warm = Quantity(place.group.warm_bound_s, "s")
        cause = (
            f"its data can have come from a cache, where its bound is {warm}."
            if place.measured_s >= place.group.warm_bound_s
            else "a cost, a roof or a clock is wrong, or the step did other work than the one recorded."
        )
        yield f"{place.name} took {measured}, less than its bound of {bound}: {cause}"


def whole_contradiction(whole: WholeTime) -> str:
    """A sentence about a step that took less than its bound; empty for one that did not."""
    if whole.efficiency is None or whole.efficiency <= 1 or whole.measured_s is None:
        return ""
    measured, bound = Quantity(whole.measured_s, "s"), Quantity(whole.bound_s, "s")
    if whole.measured_s < whole.warm_bound_s:
        cause = "a cost, a roof or a clock is wrong, or the step did other work than the one recorded."
    elif whole.measured_s >= max(whole.program_bound_s, whole.compulsory_bound_s):
        cause = "its ops can have been merged or overlapped, or have found their data in a cache."
    else:
        cause = f"its data can have come from a cache, where its bound is {Quantity(whole.warm_bound_s, 's')}."
    return f"the step took {measured}, less than its bound of {bound}: {cause}"


def _times(place: PlaceTime) -> tuple[float | None, float | None, float | None, str | None]:
    return place.bound_s, place.measured_s, place.efficiency, place.limiter


def _place_data(place: PlaceTime) -> PlaceData:
    group = place.group
    return PlaceData(
        name=place.name,
        calls=place.calls,
        matrix_flops=group.matrix_flops if group else None,
        vector_flops=group.vector_flops if group else None,
        bytes_moved=group.bytes_moved if group else None,
        bytes_sent=group.bytes_sent if group else None,
        op_bound_s=place.bound_s,
        limiter=place.limiter,
        measured_s=place.measured_s,
        efficiency=place.efficiency,
        share=place.share,
        **row_data(group.predicted if group else None),
    )
