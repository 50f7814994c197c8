"""Report: what a study has to say, before anything decides how it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rooflight.records.quantity import Quantity

Cell = str | int | Quantity | None
"""A table cell or fact; None is unknown or does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns. ``left_out`` counts rows that were cut, ``see`` says how to have them; ``note``
    explains the columns; ``optional`` names the columns that a narrow terminal can do without, least important first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    optional: tuple[str, ...] = ()
    left_out: int = 0
    see: str = "--top, or --json for all"
    note: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A title, facts (name to value), tables, notes (caveats, one sentence each) and a closing sentence.

    ``data`` is the machine-readable whole, under the name and version ``schema``.
    """

    title: str
    schema: str
    facts: tuple[tuple[str, Cell], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    conclusion: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
