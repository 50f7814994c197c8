"""A report on a terminal."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.files import naming
from rooflight.records.report import Report, Table
from rooflight.reporting.cells import cell_text, heading, texts
from rooflight.reporting.encoding import degrading
from rooflight.reporting.layout import Placed, layout, shortened

_PIPE_WIDTH: Final = 160
_TEXT_WIDTH: Final = 132  # of sentences in a pipe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable


def print_report(report: Report, console: Console | None = None) -> None:
    """Write the report to the terminal (or the console given); what its encoding has not is written otherwise.

    It is as wide as the terminal, or ``COLUMNS``; 160 columns in a pipe, where sentences wrap at 132. Nothing is wider,
    and numbers, remedies and sentences are never cut: texts take several lines instead.
    Raises OSError, as of a closed pipe, where it cannot be written.
    """
    console = console or _console(force_jupyter=False)  # text: a notebook shows tables by _repr_html_
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    if piped:
        console.width = _PIPE_WIDTH
    with naming("standard output" if console.file is sys.stdout else "the report"), degrading(console.file):
        console.file.flush()
        with console.capture() as captured:  # rich itself would end the process where a pipe is closed
            _print(report.brief or report, console, piped=piped)
        text = captured.get()
        if not console.is_terminal:
            text = "\n".join(line.rstrip() for line in text.split("\n"))  # what rich pads is of no use in a file
        console.file.write(text)
        console.file.flush()


def plain_text(report: Report) -> str:
    """What ``print_report`` writes to a file."""
    text = StringIO()
    print_report(report, _console(file=text, force_terminal=False, color_system=None))
    return text.getvalue()


def _console(**options: Any) -> Console:
    state = random.getstate()  # rich draws a number when it is imported: a training loop's must stay as they are
    from rich.console import Console

    random.setstate(state)
    return Console(**options)


def _print(report: Report, console: Console, *, piped: bool) -> None:
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    text_width, unicode = min(console.width, _TEXT_WIDTH) if piped else console.width, not console.options.ascii_only

    def indented(text: str, style: str) -> None:
        console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False), width=text_width)

    console.print(Text(report.title, style="bold"), width=text_width)
    if report.conclusion:
        console.print()
        indented(report.conclusion, "bold green")
    if report.facts:
        facts = RichTable.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column()
        for name, value in report.facts:
            facts.add_row(Text(name), Text(cell_text(value)))
        console.print(Padding(facts, (1, 0, 0, 2), expand=False), width=text_width)
    for table in report.tables:
        console.print()
        indented(table.title, "bold")
        for number, columns in enumerate(layout(table, console.width - 2)):
            drawn = _rich_table(table, columns, whole=piped, unicode=unicode)
            console.print(Padding(drawn, (min(number, 1), 0, 0, 2), expand=False))
        if table.left_out:
            indented(f"… and {table.left_out} more ({table.see})", "dim")
        if table.note:
            indented(table.note, "dim")
    if report.notes:
        console.print()
        for note in report.notes:
            indented(f"! {note}", "yellow")
    console.print()


def _rich_table(table: Table, columns: Sequence[Placed], *, whole: bool, unicode: bool) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    # rich would take a grid with bars in the place of lines that the encoding lacks
    lines = box.SIMPLE_HEAD if unicode else box.Box(str(box.SIMPLE_HEAD).replace("─", "-"), ascii=True)
    rich_table = RichTable(box=lines, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        rich_table.add_column(
            Text(heading(table.columns[column.index])),
            justify="left" if column.text else "right",
            overflow="fold",
            width=column.width,
        )
    for row in texts(table):
        cells = ((row[column.index], column) for column in columns)
        rich_table.add_row(
            *(Text(text if whole or column.wraps else shortened(text, column.width)) for text, column in cells)
        )
    return rich_table
