"""Shows a report from Python: on the terminal, in a notebook, as text.

``reporting`` draws reports. It is above the rooms whose nouns and analyses are shown, so they cannot import it. The
package itself (``rooflight/__init__``), which is above all rooms, announces the functions that draw when it is
imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflight.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """``on_terminal`` prints a report to standard output, ``in_notebook`` returns it as a piece of HTML."""

    on_terminal: Callable[[Report], None]
    in_notebook: Callable[[Report], str]


_drawing: Drawing | None = None


def announce(drawing: Drawing) -> None:
    """Set the functions that draw reports. They can be set once."""
    global _drawing
    assert _drawing is None, "announced once, by rooflight/__init__"
    _drawing = drawing


def drawing() -> Drawing:
    """The functions that draw reports."""
    assert _drawing is not None, "rooflight/__init__ announces it before any of its modules can be imported"
    return _drawing


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
