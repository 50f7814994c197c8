"""A report as Markdown."""

from __future__ import annotations

import re
from typing import Final

from rooflight.records.report import Report, Table
from rooflight.reporting.cells import cell_text, heading, numeric, texts

_ESCAPES: Final = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]#~$&"} | {"\n": " "})
_LEADS: Final = re.compile(r"(\d*)(?=(?<!\d)[-+=]|(?<=\d)[.)](?:\s|$))")
"""What makes a line a list, a heading or a rule if it begins with it."""


def render_markdown(report: Report) -> str:
    """The report as a Markdown document. Names from the program are escaped: they show as they are, and do nothing."""
    lines = [f"# {_escape(report.title)}", ""]
    if report.conclusion:
        lines += [f"**{_line(report.conclusion)}**", ""]
    lines += [f"- **{_escape(name)}**: {_escape(cell_text(value))}" for name, value in report.facts]
    for table in report.tables:
        lines += ["", f"## {_escape(table.title)}", "", *_table_lines(table)]
        if table.left_out:
            lines += ["", f"… and {table.left_out} more."]
        if table.note:
            lines += ["", _line(table.note)]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {_line(note)}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def _table_lines(table: Table) -> list[str]:
    rows = [tuple(heading(column) for column in table.columns), *texts(table)]
    body = ["| " + " | ".join(map(_escape, row)) + " |" for row in rows]
    body.insert(1, "|" + "|".join("---:" if right else "---" for right in numeric(table)) + "|")
    return body


def _escape(text: str) -> str:
    """Text, and nothing else: no link, HTML, code, formula or further cell. Only headings have a line end, ours."""
    return text.translate(_ESCAPES)


def _line(text: str) -> str:
    """The same at the start of a line, where four blanks would make it code."""
    if text.startswith(" "):
        return "&#32;" + _escape(text[1:])
    lead = _LEADS.match(text)
    return _escape(text) if lead is None else f"{lead[1]}\\{_escape(text[lead.end() :])}"
