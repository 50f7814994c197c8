"""A series as an inline SVG picture: no script, no library, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, floor, log10
from textwrap import wrap
from typing import Final
from xml.etree.ElementTree import Element

from rooflight.records.quantity import Quantity
from rooflight.records.report import Axis, Line, Mark, Series
from rooflight.reporting.markup import element

_MOST_TICKS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Maps values from ``low`` to ``high`` to pixels from ``start`` to ``end`` (which may be the smaller one)."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high = (log10(self.low), log10(self.high)) if self.logarithmic else (self.low, self.high)
        place = log10(value) if self.logarithmic else value
        return self.start + (place - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round values within the scale: powers of ten, or multiples of 1, 2 or 5 times one."""
        if self.logarithmic:
            first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
            step = max(1, ceil((last - first + 1) / _MOST_TICKS))
            return tuple(10.0**power for power in range(first, last + 1, step))
        unit = 10.0 ** floor(log10((self.high - self.low) / _MOST_TICKS))
        step_size = next(
            factor * unit for factor in (1, 2, 5, 10) if (self.high - self.low) / (factor * unit) <= _MOST_TICKS
        )
        return tuple(
            number * step_size for number in range(ceil(self.low / step_size), floor(self.high / step_size) + 1)
        )


def scale_of(values: Iterable[float], start: float, end: float, *, logarithmic: bool = False) -> AxisScale:
    """The scale that shows all values: of decades, or from 0. Any scale will do for no values."""
    shown = [value for value in values if not logarithmic or value > 0]
    if logarithmic:
        low, high = min(shown, default=1.0), max(shown, default=10.0)
        low, high = (low, high) if low < high else (low / 10, high * 10)
    else:
        low, high = min(0.0, *shown, 0.0), max(0.0, *shown, 0.0)
        high = high if low < high else low + 1.0
    return AxisScale(low=low, high=high, start=start, end=end, logarithmic=logarithmic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Sizes of a picture in pixels: with its margins, and the width for names of categories (0: above their bars)."""

    name: str
    width: int
    height: int
    left: int
    right: int
    top: int
    labels: int


_WIDE: Final = Frame(name="wide", width=640, height=380, left=104, right=36, top=14, labels=270)
_NARROW: Final = Frame(name="narrow", width=320, height=300, left=88, right=16, top=26, labels=0)
"""For a phone: as wide as its screen less the margins, so that letters have their size."""

_BOTTOM: Final = 50
_BAR_HEIGHT: Final = 30
_LINE: Final = 15
_COLOURS: Final = 8  # classes c0 to c7 of the style sheet
_LETTER: Final = 6.6  # width of a letter in pixels, about


def chart_of(series: Series) -> Element:
    """The picture, for a wide and for a narrow screen, and under it the names of its lines where there are several."""
    bars = [line for line in series.lines if line.mark is Mark.BARS]
    pictures = [_bars(series, bars, frame) if bars else _plot(series, frame) for frame in (_WIDE, _NARROW)]
    if len(series.lines) < 2:
        return element("div", *pictures, class_="chart")
    entries = [
        element("li", element("span", class_=f"swatch c{number % _COLOURS}"), line.name)
        for number, line in enumerate(series.lines)
    ]
    return element("div", *pictures, element("ul", *entries, class_="legend"), class_="chart")


def _svg(frame: Frame, height: float, title: str, parts: Iterable[Element]) -> Element:
    box = f"0 0 {frame.width} {height:g}"
    return element("svg", element("title", title), *parts, viewBox=box, role="img", class_=frame.name)


def _plot(series: Series, frame: Frame) -> Element:
    bottom = frame.height - _BOTTOM
    tops = _stacked(series.lines)
    x = scale_of(_numbers(series.lines), frame.left, frame.width - frame.right, logarithmic=series.x.logarithmic)
    y = scale_of((top for line in tops for top in line), bottom, frame.top, logarithmic=series.y.logarithmic)
    parts = [*_axis_y(series.y, y, frame), *_axis_x(series.x, x, bottom, frame)]
    floor: Sequence[float] = (0.0,) * max((len(line.x) for line in series.lines), default=0)
    for number, (line, top) in enumerate(zip(series.lines, tops, strict=True)):
        parts += _marks(line, top, floor, series=series, scales=(x, y), colour=f"c{number % _COLOURS}")
        floor = top if line.mark is Mark.AREA else floor
    parts += _sections(series.x, x, bottom, frame)
    return _svg(frame, frame.height, series.title, parts)


def _marks(
    line: Line,
    top: Sequence[float],
    floor: Sequence[float],
    *,
    series: Series,
    scales: tuple[AxisScale, AxisScale],
    colour: str,
) -> Iterable[Element]:
    x, y = scales
    shown = [
        (place, x.at(across), y.at(up))
        for place, (across, up) in enumerate(zip(_numbers([line]), top, strict=True))
        if (not x.logarithmic or across > 0) and (not y.logarithmic or up > 0)
    ]
    corners = [(across, up) for _, across, up in shown]
    if line.mark is Mark.POINTS:
        for place, across, up in shown:
            title = element("title", _point_text(line, place, series))
            yield element("circle", title, cx=across, cy=up, r=4, class_=f"point {colour}")
    elif line.mark is Mark.AREA:
        corners += [(across, y.at(floor[place])) for place, across, _ in reversed(shown)]
        yield element("polygon", element("title", line.name), points=_path(corners), class_=f"area {colour}")
    else:
        yield element("polyline", element("title", line.name), points=_path(corners), class_=f"line {colour}")


def _stacked(lines: Sequence[Line]) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    below: tuple[float, ...] = ()
    for line in lines:
        top = line.y
        if line.mark is Mark.AREA:
            top = below = tuple(one + other for one, other in zip(line.y, below, strict=True)) if below else line.y
        found.append(top)
    return found


def _numbers(lines: Iterable[Line]) -> list[float]:
    return [float(value) for line in lines for value in line.x]


def _point_text(line: Line, place: int, series: Series) -> str:
    figures = f"{Quantity(float(line.x[place]), series.x.unit)}, {Quantity(line.y[place], series.y.unit)}"
    return f"{line.labels[place]}: {figures}" if line.labels else figures


def _axis_y(axis: Axis, scale: AxisScale, frame: Frame) -> Iterable[Element]:
    for value in scale.ticks:
        up = scale.at(value)
        yield element("line", x1=frame.left, x2=frame.width - frame.right, y1=up, y2=up, class_="grid")
        yield element("text", _tick(value, axis), x=frame.left - 8, y=up + 4, text_anchor="end")
    if not frame.labels:
        yield element("text", axis.name, x=0, y=12)
        return
    middle = (frame.height - _BOTTOM + frame.top) / 2
    yield element("text", axis.name, x=14, y=middle, text_anchor="middle", transform=f"rotate(-90 14 {middle:g})")


def _axis_x(axis: Axis, scale: AxisScale, bottom: float, frame: Frame) -> Iterable[Element]:
    for value in scale.ticks:
        across = scale.at(value)
        yield element("line", x1=across, x2=across, y1=frame.top, y2=bottom, class_="grid")
    # units such as FLOP/B have no thousandths: named once, they leave room for every tick
    named_once = scale.logarithmic and not axis.unit.endswith("/s") and "/" in axis.unit
    texts = [_tick(value, Axis(name="") if named_once else axis) for value in scale.ticks]
    for value, text in _apart(scale, texts):
        yield element("text", text, x=scale.at(value), y=bottom + 18, text_anchor="middle")
    name = f"{axis.name}, {axis.unit}" if named_once else axis.name
    yield element("text", name, x=(frame.left + frame.width - frame.right) / 2, y=bottom + 40, text_anchor="middle")


def _sections(axis: Axis, scale: AxisScale, bottom: float, frame: Frame) -> Iterable[Element]:
    for number, (begin, name) in enumerate(axis.sections):
        across = scale.at(begin)
        yield element("line", x1=across, x2=across, y1=frame.top, y2=bottom, class_="step")
        high = frame.top + _LINE * (number % 2 + 1)  # neighbours at two heights
        yield element("text", name, x=across + 4, y=high, class_="figure")


def _apart(scale: AxisScale, texts: Sequence[str]) -> list[tuple[float, str]]:
    """Ticks with their texts: every one, every second or every third and so on, so that no two texts touch."""
    ticks = list(zip(scale.ticks, texts, strict=True))
    for step in range(1, len(ticks)):
        shown = ticks[::step]
        if all(
            scale.at(after) - scale.at(before) > _LETTER * ((len(one) + len(other)) / 2 + 1)
            for (before, one), (after, other) in pairwise(shown)
        ):
            return shown
    return ticks[:1]


def _tick(value: float, axis: Axis) -> str:
    if not axis.unit or (0 < value < 1 and axis.unit not in ("s", "%")):  # such units have no names for a thousandth
        return f"{value:,.6g} {axis.unit}".rstrip()
    return str(Quantity(value, axis.unit)).replace(".00 ", " ").replace(".0 ", " ")


def _bars(series: Series, lines: Sequence[Line], frame: Frame) -> Element:
    """Horizontal bars, since the names of categories are long; of several lines, side by side. Names that the margin
    has no room for stand above their bars, on as many lines as they take.
    """
    categories = list(dict.fromkeys(str(name) for line in lines for name in line.x))
    above = max(map(len, categories), default=0) * _LETTER > frame.labels - 20
    left, height = 14 if above else frame.labels, max(_BAR_HEIGHT, 8 + _LINE * len(lines))
    names = [wrap(name, int(frame.width / _LETTER) - 4) if above else [name] for name in categories]
    ends = [end for line in lines for base, length in _spans(line) for end in (base, base + length)]
    x = scale_of(ends, left, frame.width - frame.right - 60)  # the last figure stands beyond its bar
    tops = list(accumulate((height + _LINE * len(name) * above for name in names), initial=float(_WIDE.top)))
    parts = [*_axis_x(series.y, x, tops[-1], frame), *_names_of_bars(names, tops, 0 if above else left - 10)]
    bar_tops = dict(zip(categories, (end - height for end in tops[1:]), strict=True))
    thickness = (height - 8) / len(lines)
    for number, line in enumerate(lines):
        for place, span in enumerate(_spans(line)):
            top = bar_tops[str(line.x[place])] + 4 + number * thickness
            colour = f"c{(place if len(lines) == 1 else number) % _COLOURS}"
            ends = sorted((x.at(span[0]), x.at(sum(span))))
            parts += _bar(line, place, series.y, ends=ends, top=top, height=thickness, colour=colour)
    if len(lines) == 1 and lines[0].base:
        parts += _steps(lines[0], x, [bar_tops[str(name)] for name in lines[0].x])
    return _svg(frame, tops[-1] + _BOTTOM, series.title, parts)


def _names_of_bars(names: Sequence[Sequence[str]], tops: Sequence[float], at: float) -> Iterable[Element]:
    """The lines of each name: before its bar, where they end ``at`` a pixel, or above it from the left edge (0)."""
    for name, top, end in zip(names, tops, tops[1:], strict=False):
        first = (top + end) / 2 + 4 if at else top + 12
        for row, text in enumerate(name):
            yield element("text", text, x=at, y=first + _LINE * row, text_anchor="end" if at else "start")


def _bar(
    line: Line, place: int, axis: Axis, *, ends: Sequence[float], top: float, height: float, colour: str
) -> Iterable[Element]:
    left, right = ends
    figure = str(Quantity(line.y[place], axis.unit))
    explained = f" ({line.labels[place]})" if line.labels and line.labels[place] else ""
    title = element("title", f"{line.x[place]}: {figure}{explained}")
    size = {"x": left, "y": top, "width": max(1.0, right - left), "height": height - 1}
    yield element("rect", title, class_=f"bar {colour}", **size)
    yield element("text", figure, x=right + 6, y=top + height / 2 + 4, class_="figure")


def _steps(line: Line, x: AxisScale, tops: Sequence[float]) -> Iterable[Element]:
    for (base, _), above, below in zip(_spans(line)[1:], tops, tops[1:], strict=False):
        at, half = x.at(base), _BAR_HEIGHT / 2
        yield element("line", x1=at, x2=at, y1=above + half, y2=below + half, class_="step")


def _spans(line: Line) -> list[tuple[float, float]]:
    return list(zip(line.base or (0.0,) * len(line.y), line.y, strict=True))


def _path(corners: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{across:.1f},{up:.1f}" for across, up in corners)
