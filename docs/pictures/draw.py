"""Draw the README's picture, roofline and memory of its first step: python docs/pictures/draw.py gpt2 OUT.svg."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import rooflight.reporting
from rooflight.front.targets import RunOptions, analyze_target
from rooflight.records.report import Series
from rooflight.reporting.chart import chart_of
from rooflight.reporting.markup import element, fragment_text
from rooflight.roofline.tables.report import report_of

WIDTH, HEIGHT, TOP = 640, 440, 30
DEVICE = "H100-SXM5-80GB"


def main(target: str, out: str) -> None:
    """Analyze a training step of ``target`` on the device and draw what its HTML report has."""
    analysis, _ = analyze_target(target, RunOptions(step="train", batch=8, seq=1024), device=DEVICE)
    series = {each.id: each for each in report_of(analysis).series}
    parts = [part for number, name in enumerate(("roofline", "memory")) for part in drawn(series[name], number * WIDTH)]
    style = (Path(rooflight.reporting.__file__).with_name("report.css")).read_text("utf-8").partition("@media print")[0]
    style = style.replace("svg.narrow { display: none; }", "").replace(
        "svg { display: block; width: 100%; max-width: 720px; height: auto; }", ""
    )
    picture = element(
        "svg",
        element(
            "style", f"{style} text {{ font-family: sans-serif; }} .heading {{ font-weight: 600; font-size: 15px; }}"
        ),
        element("rect", width="100%", height="100%", style="fill: var(--paper)"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {2 * WIDTH} {HEIGHT}",
        role="img",
    )
    Path(out).write_text(fragment_text(picture), encoding="utf-8")


def drawn(series: Series, left: int) -> Iterator[Element]:
    """A picture of the report with its heading, and under it the names of its lines."""
    wide = next(chart_of(series).iter("svg"))
    wide.set("x", str(left))
    wide.set("y", str(TOP))
    wide.set("width", str(WIDTH))
    wide.set("height", "380")
    yield element("text", series.title, x=left + 104, y=22, class_="heading")
    yield wide
    at = float(left + 30)
    for number, line in enumerate(series.lines):
        yield element("rect", x=at, y=421, width=10, height=10, class_=f"c{number % 8}")
        yield element("text", line.name, x=at + 14, y=430, font_size=12)
        at += 26 + 6.6 * len(line.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
