"""A report on a terminal."""

from __future__ import annotations

import os
import random
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any

from rooflight.records.files import naming
from rooflight.records.report import Report, Table
from rooflight.reporting.cells import cell_text, heading, numeric, texts
from rooflight.reporting.encoding import degrading

_PIPE_WIDTH = 132
_NAME_WIDTH = 28
_TEXT_WIDTH = 9
_WRAPPED_WIDTH = 50
_GAP = 2

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable


def print_report(report: Report, console: Console | None = None) -> None:
    """Write the report to the terminal (or the console given); what its encoding has not is written otherwise.

    It is as wide as the terminal, or ``COLUMNS``. A pipe has no edge: there nothing is cut off, and texts wrap at 132.
    Raises OSError, as of a closed pipe, where it cannot be written.
    """
    console = console or _console(force_jupyter=False)  # text: a notebook shows tables by _repr_html_
    wide = not console.is_terminal and "COLUMNS" not in os.environ
    text_width = max(console.width, _PIPE_WIDTH) if wide else console.width
    if wide:
        console.width = max(text_width, *map(_whole_width, report.tables), 0)
    with naming("standard output" if console.file is sys.stdout else "the report"), degrading(console.file):
        console.file.flush()
        with console.capture() as captured:  # rich itself would end the process where a pipe is closed
            _print(report, console, text_width, wide=wide)
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


def _print(report: Report, console: Console, text_width: int, *, wide: bool) -> None:
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    def indented(text: str, style: str) -> None:
        console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False), width=text_width)

    unicode = not console.options.ascii_only
    console.print()
    console.print(Text(report.title, style="bold"))
    if report.facts:
        facts = RichTable.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column()
        for name, value in report.facts:
            facts.add_row(Text(name), Text(cell_text(value)))
        console.print(Padding(facts, (1, 0, 0, 2), expand=False), width=text_width)
    for table in report.tables:
        console.print()
        console.print(Text(f"  {table.title}", style="bold"))
        drawn = _rich_table(table, console.width - 2, wide=wide, unicode=unicode)
        console.print(Padding(drawn, (0, 0, 0, 2), expand=False))
        if table.left_out:
            console.print(Text(f"  … and {table.left_out} more ({table.see})", style="dim"))
        if table.note:
            indented(table.note, "dim")
    if report.notes:
        console.print()
        for note in report.notes:
            indented(f"! {note}", "yellow")
    if report.conclusion:
        console.print()
        indented(report.conclusion, "bold green")
    console.print()


def _rich_table(table: Table, width: int, *, wide: bool, unicode: bool) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rows, right, headings = texts(table), numeric(table), [heading(column) for column in table.columns]
    lengths = _lengths(table)
    shown = list(range(len(lengths))) if wide else _columns_that_fit(table, lengths, width)
    first_width = width - sum(lengths[index] + _GAP for index in shown[1:])  # what the others leave of the line
    # rich would take a grid with bars in the place of lines that the encoding lacks
    lines = box.SIMPLE_HEAD if unicode else box.Box(str(box.SIMPLE_HEAD).replace("─", "-"), ascii=True)
    rich_table = RichTable(box=lines, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index in shown:
        wraps, first = table.columns[index].wraps, index == 0
        if wide:
            least = min(lengths[index], _WRAPPED_WIDTH) if wraps else lengths[index]
        else:
            least = lengths[index] if right[index] else min(lengths[index], _NAME_WIDTH if first else _TEXT_WIDTH)
        rich_table.add_column(
            Text(headings[index]),
            justify="right" if right[index] else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            min_width=least,
            max_width=max(_NAME_WIDTH, min(lengths[index], first_width)) if first and not wide else None,
        )
    for row in rows:
        rich_table.add_row(*(Text(row[index]) for index in shown))
    return rich_table


def _lengths(table: Table) -> list[int]:
    from rich.cells import cell_len

    rows, headings = texts(table), [heading(column) for column in table.columns]
    return [
        max(cell_len(text) for text in (*headings[index].split("\n"), *(row[index] for row in rows)))
        for index in range(len(headings))
    ]


def _whole_width(table: Table) -> int:
    found = zip(table.columns, _lengths(table), strict=True)
    return sum((min(length, _WRAPPED_WIDTH) if column.wraps else length) + _GAP for column, length in found) + _GAP


def _columns_that_fit(table: Table, lengths: list[int], width: int) -> list[int]:
    """Positions of the columns to show: all, or without as many optional ones as a narrow terminal asks for."""
    shown = list(range(len(table.columns)))
    for name in table.optional:
        least = [min(lengths[index], _NAME_WIDTH if index == 0 else lengths[index]) for index in shown]
        if sum(least) + _GAP * (len(shown) - 1) <= width:
            break
        shown.remove(table.names.index(name))
    return shown
