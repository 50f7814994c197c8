"""Report: the results of a study, before a renderer gives them a form: facts, tables and series (the data of pictures).

Every text passes through ``visible`` when the report is made, so that no renderer has to escape what a program called
its modules. Only ``Report.data``, which programs read, has names unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from rooflight.records.document import Document
from rooflight.records.package import drawing
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.visible import make_visible


class Shown:
    """Base of classes that make a report: ``show()`` prints it, ``print(it)`` prints its main part, and a notebook
    shows it as the result of a cell.
    """

    def report(self, *, top: int = 10) -> Report:
        """The report; ``top`` limits the rows of its long tables. Raises ValueError for ``top`` < 1."""
        raise NotImplementedError

    def show(self, *, top: int = 10) -> None:
        """Print the report, as the command does; ``top`` limits the rows of its long tables.

        Raises ValueError for ``top`` < 1.
        """
        self.report(top=top).show()

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()


class Mark(StrEnum):
    """How the values of a line are drawn."""

    LINE = "line"
    AREA = "area"  # the areas of a series are stacked in their order
    BARS = "bars"
    POINTS = "points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis and its SI unit (as of a ``Quantity``); a ``logarithmic`` one leaves out values of 0 and less.
    ``sections``: where parts of it begin, and their names.
    """

    name: str
    unit: str = ""
    logarithmic: bool = False
    sections: tuple[tuple[float, str], ...] = ()

    def __post_init__(self) -> None:
        make_visible(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values of ``y`` over ``x``: numbers, or names of categories in a series of bars.

    ``base`` is where each bar begins, 0 if empty; ``labels`` name the points.
    """

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    mark: Mark = Mark.LINE
    base: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y)
        assert len(self.base) in (0, len(self.x))
        assert len(self.labels) in (0, len(self.x))
        make_visible(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A picture: lines over common axes. ``id`` names it for programs, in snake_case; ``note`` explains it."""

    id: str
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    note: str = ""

    def __post_init__(self) -> None:
        make_visible(self)


Cell = str | int | float | Quantity | None
"""A table cell or fact; a number has the unit of its column, None is unknown or does not apply."""

_SUFFIXES: Final = {
    "": "",
    "%": "",
    "s": "s",
    "B": "bytes",
    "B/s": "bytes_per_s",
    "FLOP": "flops",
    "FLOP/s": "flops_per_s",
    "FLOP/B": "flops_per_byte",
}
_ID: Final = re.compile(r"[a-z][a-z0-9_]*")
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its name, and the SI unit of its numbers: ``"s"``, ``"B"``, ``"B/s"``, ``"FLOP"``,
    ``"FLOP/s"``, ``"%"`` for a share of 1, or none.

    ``shown_in`` fixes the unit that people read, such as ``"GiB"``: it is in the heading, not in each cell. ``wraps``:
    on a terminal, a long text continues on the next line; in other columns it is cut.
    """

    name: str
    unit: str = ""
    shown_in: str = ""
    wraps: bool = False

    def __post_init__(self) -> None:
        make_visible(self)

    @property
    def key(self) -> str:
        """The name that programs read, with the unit in it: ``measured_s``, ``matrix_flops``."""
        words = "_".join(re.findall(r"[a-z0-9]+", self.name.lower()))
        suffix = _SUFFIXES[self.unit]
        return words if suffix in words.split("_") or not suffix else f"{words}_{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns. ``id`` names the table for programs, in snake_case, and does not depend on its title.

    ``rows`` are all rows; for people, renderers show the first ``top`` (None: all) and the number of the others, and
    ``see`` names the options that show those. ``note`` explains the columns; ``optional`` names the columns that a
    narrow terminal leaves out, least important first; ``unknown`` is the text of a cell that is None.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    top: int | None = None
    optional: tuple[str, ...] = ()
    see: str = "--top, or --json for all"
    note: str = ""
    unknown: str = "–"

    def __post_init__(self) -> None:
        assert _ID.fullmatch(self.id), self.id
        assert all(len(row) == len(self.columns) for row in self.rows)
        assert set(self.optional) <= {column.name for column in self.columns}, self.optional
        assert len({column.key for column in self.columns}) == len(self.columns), self.columns
        make_visible(self)

    @property
    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that renderers show to people."""
        return self.rows[: self.top]

    @property
    def left_out(self) -> int:
        """How many rows ``shown`` does not have."""
        return len(self.rows) - len(self.shown)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def values(self, name: str) -> tuple[Cell, ...]:
        """The cells of the column called ``name``, of all rows. Raises ValueError if there is no such column."""
        index = self.names.index(name)
        return tuple(row[index] for row in self.rows)


def table(
    table_id: str,
    title: str,
    rows: Iterable[_Row],
    *columns: tuple[str, str, Callable[[_Row], Cell]],
    wraps: tuple[str, ...] = (),
    **options: Any,
) -> Table:
    """A table with a row for each of ``rows``: a column is its name, the SI unit of its numbers, or that and the one
    that people read (``"B GiB"``), and what its cell is of a row. ``wraps`` names columns whose long texts continue on
    the next line; ``options`` are those of ``Table``.
    """
    heads = tuple(
        Column(name, unit.partition(" ")[0], unit.partition(" ")[2], name in wraps) for name, unit, _ in columns
    )
    cells = tuple(tuple(cell(row) for _, _, cell in columns) for row in rows)
    return Table(id=table_id, title=title, columns=heads, rows=cells, **options)


def share(part: float | None, whole: float | None) -> float | None:
    """A part of a whole, None where there is no whole or one is not known."""
    return part / whole if part is not None and whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A title, facts (name to value), tables, series (pictures), notes (caveats, one sentence each) and a concluding
    sentence, which renderers show first. ``data`` is the whole report in machine-readable form: a document, or one for
    each of several results. ``brief`` is what a terminal shows in its place.

    ``show()`` prints the report, ``print(report)`` all of it but the tables; a notebook shows a report that is the
    result of a cell.
    """

    title: str
    data: Document | tuple[Document, ...]
    facts: tuple[tuple[str, Cell], ...] = ()
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    conclusion: str = ""
    brief: Report | None = None

    def __post_init__(self) -> None:
        for parts in (self.tables, self.series):
            assert len({part.id for part in parts}) == len(parts), "ids are unique within a report"
        make_visible(self)

    def __repr__(self) -> str:
        tables, pictures = count_of(len(self.tables), "table"), count_of(len(self.series), "picture")
        return f"Report({self.title!r}, {tables}, {pictures})"

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.facts), default=0)
        parts = [
            self.title,
            self.conclusion,
            "\n".join(f"  {name:<{width}}  {'–' if value is None else value}" for name, value in self.facts),
            "\n".join(f"  ! {note}" for note in self.notes),
        ]
        return "\n\n".join(part for part in parts if part)

    def show(self) -> None:
        """Print the report to standard output, as the command does."""
        drawing().on_terminal(self)

    def _repr_html_(self) -> str:
        return drawing().in_notebook(self)

    def table(self, table_id: str) -> Table | None:
        """The table with an id, None where the report has none."""
        return next((table for table in self.tables if table.id == table_id), None)
