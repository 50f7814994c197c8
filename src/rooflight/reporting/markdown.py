"""A report as Markdown."""

from __future__ import annotations

from rooflight.records.quantity import Quantity
from rooflight.records.report import Report, Table
from rooflight.reporting.console import cell_text

_ESCAPES = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]"} | {"\n": " ", "\r": " "})


def render_markdown(report: Report) -> str:
    """The report as a Markdown document. Names from the program are escaped: they show as they are, and do nothing."""
    lines = [f"# {_escape(report.title)}", ""]
    lines += [f"- **{_escape(name)}**: {_escape(cell_text(value))}" for name, value in report.facts]
    for table in report.tables:
        lines += ["", f"## {_escape(table.title)}", "", *_table_lines(table)]
        if table.left_out:
            lines += ["", f"… and {table.left_out} more."]
        if table.note:
            lines += ["", _escape(table.note)]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {_escape(note)}" for note in report.notes)]
    if report.conclusion:
        lines += ["", f"**{_escape(report.conclusion)}**"]
    return "\n".join(lines) + "\n"


def _table_lines(table: Table) -> list[str]:
    numeric = [
        all(isinstance(row[index], int | Quantity | None) for row in table.rows) for index in range(len(table.columns))
    ]
    rows = [table.columns, *table.rows]
    body = ["| " + " | ".join(_escape(cell_text(cell)) for cell in row) + " |" for row in rows]
    body.insert(1, "|" + "|".join("---:" if right else "---" for right in numeric) + "|")
    return body


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
