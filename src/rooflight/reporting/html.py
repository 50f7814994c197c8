"""A report as one HTML file that opens without a network.

Pictures are inline SVG and the style sheet and the script that sorts tables are written into the file: it needs no
library, and has 20 kB where one with Plotly has 5 MB. Names from the program are text, never markup: the document is
built as a tree, and its content security policy runs and applies nothing but our own script and style sheet.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from xml.etree.ElementTree import Element

from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Column, Report, Series, Table
from rooflight.reporting.cells import cell_text, heading, numeric, texts
from rooflight.reporting.chart import chart_of
from rooflight.reporting.markup import element, fragment_text, html_text

_MOST_ROWS = 1000
_LONG = 40  # characters of a name from which on it may take several lines


def render_html(report: Report) -> str:
    """The report as an HTML document: verdict, notes, facts, pictures, then tables that sort by any column."""
    style, script = (Path(__file__).with_name(name).read_text("utf-8") for name in ("report.css", "report.js"))
    parts = [element("h1", report.title)]
    if report.conclusion:
        parts.append(element("p", report.conclusion, class_="conclusion"))
    if report.notes:
        parts.append(element("ul", *(element("li", note) for note in report.notes), class_="notes"))
    if report.facts:
        pairs = [
            part for name, value in report.facts for part in (element("dt", name), element("dd", cell_text(value)))
        ]
        parts.append(element("dl", *pairs, class_="facts"))
    if report.series:
        parts.append(element("div", *map(_figure, report.series), class_="charts"))
    parts += map(_section, report.tables)
    first = report.data[0] if isinstance(report.data, tuple) else report.data
    parts.append(element("footer", f"Rooflight, {first.schema()}"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", report.title),
        element("style", style),
    )
    body = element("body", element("main", *parts), element("script", script))
    return html_text(element("html", head, body, lang="en"))


def html_fragment(report: Report) -> str:
    """The report as a piece of a page, for a notebook: the rows that people read, no picture, no style, no script.

    It needs none of them, so that it looks the same in a notebook that is not trusted and where others show it.
    """
    parts = [element("h3", report.title)]
    if report.conclusion:
        parts.append(element("p", element("strong", report.conclusion)))
    if report.facts:
        pairs = [element("tr", element("th", name), element("td", cell_text(value))) for name, value in report.facts]
        parts.append(element("table", element("tbody", *pairs)))
    for table in report.tables:
        headings = [element("th", heading(column)) for column in table.columns]
        rows = [element("tr", *(element("td", text) for text in row)) for row in texts(table)]
        parts.append(element("h4", table.title))
        parts.append(element("table", element("thead", element("tr", *headings)), element("tbody", *rows)))
        more = [f"… and {table.left_out:,} more ({table.see})"] if table.left_out else []
        parts += [element("p", text) for text in (*more, table.note) if text]
    if report.notes:
        parts.append(element("ul", *(element("li", note) for note in report.notes)))
    return fragment_text(element("div", *parts, class_="rooflight"))


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and only what has these digests is applied or run."""
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _figure(series: Series) -> Element:
    note = [element("p", series.note, class_="note")] if series.note else []
    return element("figure", element("figcaption", series.title), chart_of(series), *note, id=f"series-{series.id}")


def _section(table: Table) -> Element:
    right = ["number" if each else "text" for each in numeric(table)]
    headings = [
        element("th", element("button", heading(column), type="button"), class_=kind, scope="col")
        for column, kind in zip(table.columns, right, strict=True)
    ]
    rows = [
        element("tr", *(_cell(*each, table.unknown) for each in zip(row, table.columns, right, strict=True)))
        for row in table.rows[:_MOST_ROWS]
    ]
    parts = [
        element("h2", table.title),
        element(
            "div",
            element("table", element("thead", element("tr", *headings)), element("tbody", *rows)),
            class_="scroll",
            tabindex="0",
        ),
    ]
    if len(table.rows) > _MOST_ROWS:
        parts.append(element("p", f"… and {len(table.rows) - _MOST_ROWS:,} more (--csv has all)", class_="note"))
    if table.note:
        parts.append(element("p", table.note, class_="note"))
    return element("section", *parts, id=f"table-{table.id}")


def _cell(cell: Cell, column: Column, kind: str, unknown: str) -> Element:
    text = cell_text(cell, column, unknown)
    if cell is None:
        return element("td", text, class_=kind, data_unknown="")
    if isinstance(cell, str):
        return element("td", text, class_=f"{kind} long" if len(text) > _LONG else kind)
    return element("td", text, class_=kind, data_value=repr(cell.value if isinstance(cell, Quantity) else cell))
