"""Seconds beside bounds: of a step by place (phase, class of module, module, function), and of the step as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rooflight.records.quantity import Quantity
from rooflight.records.report import Table, share, table
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.groups import Group, shared
from rooflight.roofline.predicted import PredictedFields

UNATTRIBUTED: Final = "(unattributed)"
"""The name of the row that holds the time of no place."""

SEE: Final = "a higher top shows them"
"""How to have the rows that a table leaves out, where there is no command line."""

_REST: Final = 1e-6  # of the whole: less is what adding up floats leaves
_TIMES: Final = (
    ("op bound", "s", lambda place: place.op_bound_s),
    ("measured", "s", lambda place: place.measured_s),
    ("efficiency", "%", lambda place: place.efficiency),
    ("limiter", "", lambda place: place.limiter),
)


class PlaceFigures(PredictedFields, frozen=True, kw_only=True):
    """A place of a step, by its own code alone. What its ops must do is None where time passed although no op was
    recorded there, as in the code of containers. ``measured_s`` is None where no time is known.
    """

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


class PlaceTime(PlaceFigures, frozen=True, kw_only=True):
    """One place. ``group`` is what the recorded step must do there."""

    group: Group | None

    @property
    def bound_s(self) -> float | None:
        """The op bound of what runs here."""
        return self.op_bound_s

    @classmethod
    def of_group(
        cls, name: str, group: Group | None, measured_s: float | None, efficiency: float | None, whole_s: float | None
    ) -> PlaceTime:
        """A place of a step that took ``whole_s``."""
        figures = dict.fromkeys(cls.__struct_fields__) | {"calls": 0} if group is None else shared(cls, group)
        timed = {"measured_s": measured_s, "efficiency": efficiency, "share": share(measured_s, whole_s)}
        return cls(**(figures | timed | {"name": name, "group": group}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeByPlace:
    """All places of a step by ``key`` (as of ``Analysis.by``), the longest first; bounds order those without times.

    ``whole_s`` is the step's time, None where unknown. Shares are of it. Time that no place has is a row of its own,
    named ``UNATTRIBUTED``, so that shares sum to 1; they sum to more only where places overlap in time. Places of a
    ``compiled`` program may beat their op bounds.
    """

    key: str
    whole_s: float | None
    places: tuple[PlaceTime, ...]
    compiled: bool = False

    @property
    def unattributed_s(self) -> float | None:
        """The part of the whole that no place has: 0 where places overlap, None where the whole is not known."""
        if self.whole_s is None:
            return None
        return sum(place.measured_s or 0.0 for place in self.places if place.name == UNATTRIBUTED)

    @property
    def faster_than_bound(self) -> tuple[PlaceTime, ...]:
        """Places that took less than their bound, which cannot be: contradictions."""
        return tuple(place for place in self.places if place.efficiency is not None and place.efficiency > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTime:
    """A whole step beside its bounds. ``limiter`` is what limits most of the op bound. Nothing that does the same work
    takes less than ``warm_bound_s``, even if every cache is full of the right data before it.
    """

    measured_s: float | None
    program_bound_s: float
    fused_bound_s: float
    op_bound_s: float
    compulsory_bytes: int
    warm_bound_s: float
    limiter: str

    @property
    def bound_s(self) -> float:
        """The op bound."""
        return self.op_bound_s

    @property
    def efficiency(self) -> float | None:
        """op bound / measured: 1 is as fast as the bound. None where nothing was measured or is to be done."""
        return self.bound_s / self.measured_s if self.measured_s and self.bound_s else None


def whole_time(analysis: Analysis, measured_s: float | None = None) -> WholeTime:
    """A step beside its bounds; ``measured_s`` is the analysis's own time where it is not given."""
    program, totals = analysis.program, analysis.totals
    return WholeTime(
        measured_s=totals.measured_s if measured_s is None else measured_s,
        program_bound_s=program.program_bound_s,
        fused_bound_s=program.fused_bound_s,
        op_bound_s=totals.op_bound_s,
        compulsory_bytes=program.compulsory_bytes,
        warm_bound_s=program.warm.program_bound_s,
        limiter=totals.limiter,
    )


def time_by_place(
    analysis: Analysis, key: str, seconds: Mapping[str, float] | None = None, whole_s: float | None = None
) -> TimeByPlace:
    """The roll-up of an analysis by ``key`` beside measured ``seconds`` by name, of a step that took ``whole_s`` (None:
    their sum). Without ``seconds``, the times are those of the analysis's single ops, where it has them.

    Efficiency is op bound / measured; with times of single ops, of those that were timed. Raises ValueError for an
    unknown key.
    """
    groups = analysis.by(key)
    if seconds is None:
        whole_s = analysis.totals.ops_measured_s if whole_s is None else whole_s
        rows: list[_Row] = [(group.name, group, group.measured_s, group.efficiency) for group in groups]
    else:
        whole_s = sum(seconds.values()) if whole_s is None else whole_s
        rows = list(_beside(groups, seconds))
    if whole_s is not None:
        rest_s = whole_s - sum(measured_s or 0.0 for _, _, measured_s, _ in rows)
        rows += [(UNATTRIBUTED, None, rest_s, None)] if rest_s > _REST * whole_s else []
    places = [PlaceTime.of_group(*row, whole_s) for row in rows]
    places.sort(key=lambda place: -(place.measured_s or place.bound_s or 0.0))
    return TimeByPlace(key=key, whole_s=whole_s, places=tuple(places), compiled=analysis.session.compiled)


_Row = tuple[str, Group | None, float | None, float | None]
"""Name, group, seconds, efficiency."""


def _beside(groups: Iterable[Group], seconds: Mapping[str, float]) -> Iterable[_Row]:
    without_ops = dict(seconds)
    for group in groups:
        measured_s = without_ops.pop(group.name, None)
        yield group.name, group, measured_s, group.bound_s / measured_s if measured_s else None
    for name, measured_s in without_ops.items():
        yield name, None, measured_s, None


def places_table(times: TimeByPlace, *, title: str, top: int) -> Table:
    """One row a place: work, op bound, time, efficiency, limiter and share of the whole."""
    return table(
        f"by_{times.key}",
        title,
        times.places,
        (times.key, "", lambda place: place.name),
        ("calls", "", lambda place: place.calls),
        ("matrix", "FLOP", lambda place: place.matrix_flops),
        ("bytes", "B", lambda place: place.bytes_moved),
        ("intensity", "FLOP/B", lambda place: None if place.group is None else place.group.arithmetic_intensity),
        *_TIMES,
        ("share", "%", lambda place: place.share),
        top=top,
        optional=("matrix", "bytes", "calls", "intensity"),
        see=SEE,
    )


def modules_table(times: TimeByPlace, classes: Mapping[str, str], *, title: str, top: int) -> Table:
    """One row a module that ran ops, with its class by qualified name."""
    return table(
        f"by_{times.key}",
        title,
        (place for place in times.places if place.group is not None),
        ("layer", "", lambda place: place.name),
        ("type", "", lambda place: classes.get(place.name, "")),
        *_TIMES,
        top=top,
        see=SEE,
        note="Efficiency: op bound / measured. Each module's own code; what it calls has rows of its own.",
    )


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
            else "its ops can have been merged, since the program is compiled."
            if times.compiled
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
    elif whole.measured_s >= whole.program_bound_s:
        cause = "its ops can have been merged or overlapped, or have found their data in a cache."
    else:
        cause = f"its data can have come from a cache, where its bound is {Quantity(whole.warm_bound_s, 's')}."
    return f"the step took {measured}, less than its bound of {bound}: {cause}"
