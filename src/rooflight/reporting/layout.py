"""Which columns of a table fit a line, and how wide each is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rooflight.records.report import Table
from rooflight.reporting.cells import heading, numeric, texts

GAP: Final = 2
"""Blanks between two columns."""
_LINES: Final = 3  # of a name, on a terminal
_READABLE: Final = ((True, 34), (False, 28), (True, 24), (False, 12))
"""In a table that is too wide, texts take several lines: those that wrap down to this width, then others."""
_FIRST: Final = 28  # of the names in the first column, while others can be left out
_NARROW: Final = ((True, 12), (False, 6))
"""How narrow texts become where no column can be left out."""


@dataclass(slots=True, kw_only=True)
class Placed:
    """A column: its place in the table, the width of its longest cell, and the width that it gets."""

    index: int
    text: bool
    wraps: bool
    cells: int
    width: int


def layout(table: Table, width: int) -> list[list[Placed]]:
    """The columns that fit into ``width``, all with their cells in full: numbers on one line, headings and texts on
    several where they must. Optional columns are left out where that is not enough. Where the others are too many, they
    are in several parts, each of which begins with the first column.
    """
    left_out: set[int] = set()
    for name in (None, *table.optional):
        left_out |= set() if name is None else {table.names.index(name)}
        placed = [column for column in _natural(table) if column.index not in left_out]
        if _shrunk(placed, width, _READABLE) <= 0:
            return [placed]
    if _shrunk(placed, width, _NARROW) <= 0:
        return [placed]
    first, *others = placed
    parts = [[first]]
    for column in others:
        if sum(each.width + GAP for each in parts[-1]) + column.width > width and len(parts[-1]) > 1:
            parts.append([first])
        parts[-1].append(column)
    return parts


def _natural(table: Table) -> list[Placed]:
    from rich.cells import cell_len

    rows, right = texts(table), numeric(table)
    found = []
    for index, column in enumerate(table.columns):
        cells = max((cell_len(row[index]) for row in rows), default=0)
        title = max(map(cell_len, heading(column).split("\n")))
        found.append(
            Placed(index=index, text=not right[index], wraps=column.wraps, cells=cells, width=max(cells, title))
        )
    for each in found:
        words = heading(table.columns[each.index]).split()
        each.cells = max(each.cells, *map(cell_len, words)) if words else each.cells
    return found


def _shrunk(placed: Sequence[Placed], width: int, steps: Iterable[tuple[bool, int]]) -> int:
    """Narrow the columns as far as they must be, headings first; returns what is still too much."""
    excess = sum(column.width + GAP for column in placed) - GAP - width
    least = [(column, column.cells) for column in sorted(placed, key=lambda column: column.cells - column.width)]
    for wraps, most in steps:
        alike = [column for column in placed if column.text and column.wraps is wraps]
        least += [(column, max(most, _FIRST) if column.index == 0 and steps is _READABLE else most) for column in alike]
    for column, end in least:
        taken = max(0, min(excess, column.width - end))
        column.width -= taken
        excess -= taken
    return excess


def shortened(text: str, width: int) -> str:
    """A name in at most three lines of a width: the middle of a longer one is left out."""
    most = _LINES * width
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"
