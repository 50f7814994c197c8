"""Series: the data of a picture, before a renderer draws it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rooflight.records.visible import make_visible


class Mark(StrEnum):
    """How the values of a line are drawn."""

    LINE = "line"
    AREA = "area"  # the areas of a series are stacked in their order
    BARS = "bars"
    POINTS = "points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis and its SI unit (as of a ``Quantity``); a ``logarithmic`` one leaves out values of 0 and less."""

    name: str
    unit: str = ""
    logarithmic: bool = False

    def __post_init__(self) -> None:
        make_visible(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values of ``y`` over ``x``: numbers, or names of categories in a series of bars.

    ``base`` is where each bar begins, 0 if empty; ``labels`` name the points.
    """

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    mark: Mark = Mark.LINE
    base: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y)
        assert len(self.base) in (0, len(self.x))
        assert len(self.labels) in (0, len(self.x))
        make_visible(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A picture: lines over common axes. ``id`` names it for programs, in snake_case; ``note`` explains it."""

    id: str
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    note: str = ""

    def __post_init__(self) -> None:
        make_visible(self)
