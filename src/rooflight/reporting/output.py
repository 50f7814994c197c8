"""Where a report goes: the terminal, and files that appear whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from rooflight.records.files import write_whole
from rooflight.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The formats that a user asked for, each with a file, or ``"-"`` for standard output; ``csv`` is a folder, for a
    file a table. Raises ValueError at once, rather than after minutes of measuring, for what cannot be written.
    """

    json: str | None = None
    markdown: str | None = None
    csv: str | None = None
    html: str | None = None

    def __post_init__(self) -> None:
        printed = [name for name, target in self._targets if target == "-"]
        if len(printed) > 1:
            names = " and ".join(f"--{name} -" for name in printed)
            raise ValueError(f"{names}: only one can have standard output")
        if printed and sys.stdout is None:
            raise ValueError(f"--{printed[0]} -: standard output is closed")
        for name, target in self._targets:
            if not target:
                raise ValueError(f"--{name} has an empty name")
            if name == "csv":
                _check_folder(target)
            else:
                check_writable(target)
        self._check_distinct()

    @property
    def to_stdout(self) -> bool:
        """Whether one format has standard output for itself: nothing else may be printed there."""
        return any(target == "-" for _, target in self._targets)

    def _check_distinct(self) -> None:
        """Raise ValueError where one format would take another's file; devices and FIFOs take both."""
        names: dict[Path, str] = {}
        for name, target in self._targets:
            path = Path(os.path.realpath(target))
            if target == "-" or (path.exists() and not path.is_file()):
                continue
            if other := names.get(path):
                raise ValueError(f"--{other} and --{name} name the same file {target}: give each its own")
            names[path] = name

    def write(self, report: Report) -> None:
        """Write the files, and show the report; a format for ``"-"`` is printed alone, for the next in a pipe."""
        from rooflight.reporting.csv import table_csv

        for name, target in self._targets:
            if target == "-":
                continue
            if name == "csv":
                Path(target).mkdir(exist_ok=True)
                for table in report.tables:
                    write_whole(Path(target) / f"{table.id}.csv", table_csv(table))
            else:
                write_whole(Path(target), _renderer(name)(report))
        for name, target in self._targets:
            if target == "-":
                sys.stdout.write(_renderer(name)(report))
                return
        from rooflight.reporting.console import print_report

        print_report(report)

    @property
    def _targets(self) -> list[tuple[str, str]]:
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [(name, target) for name, target in found if target is not None]


def _renderer(name: str) -> Callable[[Report], str]:
    from rooflight.reporting.csv import render_csv
    from rooflight.reporting.html import render_html
    from rooflight.reporting.json import render_json
    from rooflight.reporting.markdown import render_markdown

    return {"json": render_json, "markdown": render_markdown, "csv": render_csv, "html": render_html}[name]


def check_writable(target: str | Path | None) -> None:
    """Raise ValueError now rather than after minutes of measuring when a file cannot be written; "-" always can."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if path.is_symlink() and not path.exists():  # the file that a link leads to is what is written
        path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission")


def _check_folder(target: str) -> None:
    path = Path(target)
    if target == "-":
        return
    if path.exists() and not path.is_dir():
        raise ValueError(f"--csv {path} is a file: name a folder, which gets a file a table")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to make {path.name} in")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission")
