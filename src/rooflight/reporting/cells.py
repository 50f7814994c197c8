"""A table's cells as people read them, the same on a terminal, in Markdown and in HTML."""

from __future__ import annotations

from rooflight.records.quantity import Quantity, in_unit, three_digits
from rooflight.records.report import Cell, Column, Table


def cell_text(cell: Cell, column: Column | None = None, unknown: str = "–") -> str:
    """A cell or fact as text; unknown is a dash, never a zero."""
    if cell is None:
        return unknown
    if isinstance(cell, str | Quantity):
        return str(cell)
    if column is not None and column.shown_in:
        return in_unit(cell, column.shown_in, digits=5)
    if column is not None and column.unit:
        return str(Quantity(cell, column.unit))
    return f"{cell:,}" if isinstance(cell, int) else three_digits(cell)


def heading(column: Column) -> str:
    """A column's name, with the unit that its cells leave out on a line of its own."""
    return f"{column.name}\n{column.shown_in}" if column.shown_in else column.name


def texts(table: Table) -> list[tuple[str, ...]]:
    """The rows that people read, as text."""
    return [
        tuple(cell_text(cell, column, table.unknown) for cell, column in zip(row, table.columns, strict=True))
        for row in table.shown
    ]


def numeric(table: Table) -> tuple[bool, ...]:
    """Which columns hold numbers or nothing: they are aligned to the right."""
    return tuple(
        bool(column.unit) or not any(isinstance(row[index], str) for row in table.rows)
        for index, column in enumerate(table.columns)
    )
