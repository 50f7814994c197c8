"""Pictures: values land where the axes say, areas stack, bars of a waterfall begin where the last one ended."""

from __future__ import annotations

from itertools import pairwise
from xml.etree.ElementTree import Element

import pytest

from rooflight.records.report import Axis, Line, Mark, Series
from rooflight.reporting.chart import chart_of

SCREENS = ("wide", "narrow")


def chart(*lines: Line, screen: str = "wide", **axes: Axis) -> Element:
    """The picture for a screen, and the legend."""
    both = {"x": Axis(name="x"), "y": Axis(name="y", unit="s")} | axes
    found = chart_of(Series(id="it", title="It", lines=lines, **both))
    for picture in list(found.iter("svg")):
        if picture.get("class") != screen:
            found.remove(picture)
    return found


def corners(polygon: Element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in polygon.get("points", "").split()]


@pytest.mark.parametrize("screen", SCREENS)
def test_areas_stand_on_each_other(screen):
    picture = chart(
        Line(name="a", x=(0.0, 1.0), y=(2.0, 2.0), mark=Mark.AREA),
        Line(name="b", x=(0.0, 1.0), y=(1.0, 3.0), mark=Mark.AREA),
        screen=screen,
    )
    below, above = map(corners, picture.iter("polygon"))
    assert above[2:] == below[1::-1]  # the lower edge, from right to left, is the upper edge of the one below
    assert below[0][1] == below[1][1]
    assert above[1][1] < above[0][1]  # 5 is higher up than 3


@pytest.mark.parametrize("screen", SCREENS)
def test_bars_of_a_waterfall_begin_where_the_last_one_ended(screen):
    line = Line(name="t", x=("a", "b", "c"), y=(2.0, 3.0, -1.0), base=(0.0, 2.0, 5.0), mark=Mark.BARS)
    picture = chart(line, screen=screen)
    bars = [(float(bar.get("x", 0)), float(bar.get("width", 0))) for bar in picture.iter("rect")]
    (one, first), (two, second), (three, third) = bars
    assert two == pytest.approx(one + first, abs=0.01)
    assert second == pytest.approx(first * 3 / 2, rel=0.01)
    assert three + third == pytest.approx(two + second, abs=0.01)  # it goes back from 5 to 4
    assert {text.text for text in picture.iter("text")} >= {"a", "b", "c", "2.00 s", "-1.00 s"}


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show():
    points = Line(name="ops", x=(0.0, 1.0, 10.0), y=(1.0, 10.0, 0.0), mark=Mark.POINTS, labels=("no", "mm", "no"))
    axis = Axis(name="speed", unit="FLOP/s", logarithmic=True)
    (circle,) = chart(points, x=Axis(name="x", unit="FLOP/B", logarithmic=True), y=axis).iter("circle")
    (title,) = circle.iter("title")
    assert title.text == "mm: 1.00 FLOP/B, 10.0 FLOP/s"


def test_several_lines_have_a_legend_and_one_has_none():
    line = Line(name="only", x=(0.0, 1.0), y=(1.0, 2.0))
    assert not list(chart(line).iter("li"))
    assert [item[0].tail for item in chart(line, Line(name="other", x=(0.0,), y=(1.0,))).iter("li")] == [
        "only",
        "other",
    ]


def test_nothing_to_draw_is_no_mistake():
    assert list(chart().iter("svg"))
    assert list(chart(Line(name="empty", x=(), y=(), mark=Mark.BARS)).iter("svg"))


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("end", [0.0003, 0.29, 7.0, 290.0])
def test_texts_under_an_axis_do_not_touch(end, screen):
    line = Line(name="t", x=("a", "b"), y=(end / 7, end), base=(0.0, end / 7), mark=Mark.BARS)
    picture = chart(line, screen=screen)
    under = [text for text in picture.iter("text") if text.get("text-anchor") == "middle" and text.text != "x"]
    ticks = [text for text in under if text.text != "y"]
    assert len(ticks) >= 2
    for one, other in pairwise(ticks):
        apart = float(other.get("x", 0)) - float(one.get("x", 0))
        assert apart > 6.6 * (len(one.text or "") + len(other.text or "")) / 2


def test_a_unit_without_thousandths_is_named_once():
    points = Line(name="ops", x=(0.0005, 200.0), y=(1.0, 10.0), mark=Mark.POINTS)
    axis = Axis(name="speed", unit="FLOP/s", logarithmic=True)
    texts = {
        text.text for text in chart(points, x=Axis(name="x", unit="FLOP/B", logarithmic=True), y=axis).iter("text")
    }
    assert {"0.001", "0.01", "0.1", "1", "10", "100", "x, FLOP/B"} <= texts


@pytest.mark.parametrize("screen", SCREENS)
def test_names_of_bars_are_never_cut_and_stay_inside(screen):
    long = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
    picture = chart(Line(name="t", x=(long, "short"), y=(1.0, 2.0), mark=Mark.BARS), screen=screen)
    (svg,) = picture.iter("svg")
    _, _, width, height = map(float, svg.get("viewBox", "").split())
    rows = [text for text in svg.iter("text") if text.get("x") == "0"]
    assert "".join(text.text or "" for text in rows).replace(" ", "") == (long + "short").replace(" ", "")
    assert all(len(text.text or "") * 6.6 <= width for text in rows)
    assert all(float(text.get("y", 0)) < height for text in svg.iter("text"))
    tops = [float(text.get("y", 0)) for text in rows]
    assert tops == sorted(tops)
    bars = [(float(bar.get("y", 0)), float(bar.get("height", 0))) for bar in svg.iter("rect")]
    assert bars[0][0] + bars[0][1] < tops[-1] - 6  # the name of the second bar is under the first bar
