"""A report as Markdown."""

from __future__ import annotations

from rooflight.records.report import Report, Table
from rooflight.reporting.cells import cell_text, heading, numeric, texts

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
    rows = [tuple(heading(column) for column in table.columns), *texts(table)]
    body = ["| " + " | ".join(map(_escape, row)) + " |" for row in rows]
    body.insert(1, "|" + "|".join("---:" if right else "---" for right in numeric(table)) + "|")
    return body


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
