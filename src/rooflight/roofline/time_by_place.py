"""Seconds beside bounds: of a step by place (phase, class of module, module, function), and of the step as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rooflight.roofline.analysis import Analysis
from rooflight.roofline.sums import Group

UNATTRIBUTED: Final = "(unattributed)"
"""The name of the row that holds the time of no place."""

_REST: Final = 1e-6  # of the whole: less is what adding up floats leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTime:
    """One place. ``group`` is what the recorded step must do there: None where time passed although no op was recorded
    there, as in the code of containers. ``measured_s`` is None where no time is known.
    """

    name: str
    group: Group | None
    measured_s: float | None
    efficiency: float | None
    share: float | None

    @property
    def bound_s(self) -> float | None:
        """The op bound of what runs here."""
        return self.group.bound_s if self.group else None

    @property
    def limiter(self) -> str | None:
        """What limits most of that bound."""
        return self.group.limiter if self.group else None

    @property
    def calls(self) -> int:
        """How many ops run here."""
        return self.group.calls if self.group else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeByPlace:
    """All places of a step by ``key`` (as of ``Analysis.by``), the longest first; bounds order those without times.

    ``whole_s`` is the step's time, None where unknown. Shares are of it. Time that no place has is a row of its own,
    named ``UNATTRIBUTED``, so that shares sum to 1; they sum to more only where places overlap in time.
    """

    key: str
    whole_s: float | None
    places: tuple[PlaceTime, ...]

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
    """A whole step beside its bounds. ``bound_s`` is the largest of them that holds for the ops run one by one: their
    op bound, or the time that all arithmetic and the compulsory bytes need at once (``ProgramBounds``), if a measured
    cache lets each op find data there that does not fit it together. ``limiter`` is what limits most of it. Nothing
    that does the same work takes less than ``warm_bound_s``, even if every cache is full of the right data before it.
    """

    measured_s: float | None
    program_bound_s: float
    fused_bound_s: float
    op_bound_s: float
    compulsory_bound_s: float
    compulsory_bytes: int
    warm_bound_s: float
    bound_s: float
    limiter: str

    @property
    def efficiency(self) -> float | None:
        """bound / measured: 1 is the speed of light. None where nothing was measured or is to be done."""
        return self.bound_s / self.measured_s if self.measured_s and self.bound_s else None


def whole_time(analysis: Analysis, measured_s: float | None = None) -> WholeTime:
    """A step beside its bounds; ``measured_s`` is the analysis's own time where it is not given."""
    program, totals = analysis.program, analysis.totals
    at_once = program.compulsory_bound_s > totals.op_bound_s
    return WholeTime(
        measured_s=totals.measured_s if measured_s is None else measured_s,
        program_bound_s=program.program_bound_s,
        fused_bound_s=program.fused_bound_s,
        op_bound_s=totals.op_bound_s,
        compulsory_bound_s=program.compulsory_bound_s,
        compulsory_bytes=program.compulsory_bytes,
        warm_bound_s=program.warm.compulsory_bound_s,
        bound_s=program.compulsory_bound_s if at_once else totals.op_bound_s,
        limiter=program.compulsory_limiter.value if at_once else totals.limiter,
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
    places = [
        PlaceTime(
            name=name,
            group=group,
            measured_s=measured_s,
            efficiency=efficiency,
            share=None if measured_s is None or not whole_s else measured_s / whole_s,
        )
        for name, group, measured_s, efficiency in rows
    ]
    places.sort(key=lambda place: -(place.measured_s or place.bound_s or 0.0))
    return TimeByPlace(key=key, whole_s=whole_s, places=tuple(places))


_Row = tuple[str, Group | None, float | None, float | None]
"""Name, group, seconds, efficiency."""


def _beside(groups: Iterable[Group], seconds: Mapping[str, float]) -> Iterable[_Row]:
    without_ops = dict(seconds)
    for group in groups:
        measured_s = without_ops.pop(group.name, None)
        yield group.name, group, measured_s, group.bound_s / measured_s if measured_s else None
    for name, measured_s in without_ops.items():
        yield name, None, measured_s, None
