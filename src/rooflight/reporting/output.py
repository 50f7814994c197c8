"""Where a report goes: the terminal, and files that appear whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rooflight.records.files import naming, write_all, write_whole
from rooflight.records.report import Report
from rooflight.reporting.encoding import degrading
from rooflight.reporting.json import ascii_json
from rooflight.reporting.renderers import Renderer, find


class _Target(NamedTuple):
    format: str
    file: str
    option: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The formats that a user asked for, each with a file, or ``"-"`` for standard output; ``csv`` is a folder, for a
    file a table. ``render`` has ``renderer=file`` for formats without an option of their own (``renderers.find``).
    ``others`` are the files that the command writes besides, by option: ``{"--save": path}``. ``reads`` are files that
    it reads, which are never written over (``spare``).

    Raises ValueError at once, rather than after minutes of measuring, for what cannot be written and for an unknown
    renderer.
    """

    json: str | None = None
    markdown: str | None = None
    csv: str | None = None
    html: str | None = None
    render: Sequence[str] | None = None
    others: Mapping[str, Path | None] = field(default_factory=dict)
    reads: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        targets = self._targets
        printed = [target.option for target in targets if target.file == "-"]
        if len(printed) > 1:
            raise ValueError(f"{' and '.join(printed)}: only one can have standard output")
        if printed and sys.stdout is None:
            raise ValueError(f"{printed[0]}: standard output is closed")
        for target in targets:
            if not target.file:
                raise ValueError(f"{target.option.strip()} has an empty name")
            if target.format == "csv":
                _check_folder(target.file)
            else:
                check_writable(target.file)
                find(target.format)
        for other in self.others.values():
            check_writable(other)
        self._check_distinct()
        self.spare()

    def spare(self, reads: Iterable[Path] = (), *, folder: Path | None = None) -> None:
        """Raise ValueError if a file that the command reads, ``reads`` too, would be written over: by its own name,
        through links, or as a file of ``folder``, into which the command writes files of names that nobody chose.
        """
        self.reads.extend(reads)
        for option, file in self._files:
            if same := _first_same(Path(file), self.reads):
                also = "" if str(same) == str(file) else f", which is {same}"
                raise ValueError(f"{option} {file}{also}: the command reads that file, so give the output another name")
        for each in self.reads:
            if folder is not None and _first_same(folder, [each.parent]):
                raise ValueError(f"{each} is in the folder that is written, {folder}: write to another folder")

    @property
    def to_stdout(self) -> bool:
        """Whether one format has standard output for itself: nothing else may be printed there."""
        return any(target.file == "-" for target in self._targets)

    def _check_distinct(self) -> None:
        """Raise ValueError where one format would take another's file; devices and FIFOs take both."""
        names: dict[Path, str] = {}
        for name, file in self._files:
            path = Path(os.path.realpath(file))
            if path.exists() and not path.is_file():
                continue
            if other := names.get(path):
                raise ValueError(f"{other} and {name} name the same file {file}: give each its own")
            names[path] = name

    @property
    def _files(self) -> list[tuple[str, str]]:
        """Option and name of each file or folder that is written, but for standard output."""
        given = [(option, str(file)) for option, file in self.others.items() if file is not None]
        for target in self._targets:
            name = "--render" if target.option.startswith("--render") else f"--{target.format}"
            given += [(name, target.file)] if target.file != "-" else []
        return given

    def write(self, report: Report, failed: Iterable[Exception] = ()) -> None:
        """Write the files, and show the report; a format for ``"-"`` is printed alone, for the next in a pipe.

        Raises what went wrong with a file, when the others are written and the report was shown, and one of ``failed``,
        which are files that the command could not write before: an ExceptionGroup of several.
        """
        failed = list(failed)
        for target in self._targets:
            try:
                self._write_file(target, report)
            except Exception as error:  # also of a user's renderer
                failed.append(error)
        printed = [target for target in self._targets if target.file == "-"]
        if printed:
            _print_alone(printed[0], report)
        else:
            from rooflight.reporting.console import print_report

            print_report(report)
        if len(failed) > 1:
            raise ExceptionGroup("files could not be written", failed)
        if failed:
            raise failed[0]

    def _write_file(self, target: _Target, report: Report) -> None:
        from rooflight.reporting.csv import table_csv

        if target.file == "-":
            return
        if target.format != "csv":
            write_whole(Path(target.file), _rendered(find(target.format), report, target.option))
            return
        folder = Path(os.path.realpath(target.file))  # a link that leads to no folder yet makes it there
        texts = {f"{table.id}.csv": table_csv(table) for table in report.tables}
        for name in texts:
            if _first_same(folder / name, self.reads):
                raise ValueError(f"--csv {target.file}: the command reads {name} there, so give it another folder")
        write_all(folder, texts)

    @property
    def _targets(self) -> list[_Target]:
        own = {"json": self.json, "markdown": self.markdown, "csv": self.csv, "html": self.html}
        found = [_Target(name, file, f"--{name} {file}") for name, file in own.items() if file is not None]
        for text in self.render or ():
            renderer, separator, file = text.partition("=")
            if not (renderer and separator):
                raise ValueError(f"--render {text}: write the renderer, =, and the file")
            if renderer == "csv":
                raise ValueError(f"--render {text}: --csv writes a folder of tables")
            found.append(_Target(renderer, file, f"--render {text}"))
        return found


def _first_same(path: Path, others: Iterable[Path]) -> Path | None:
    """The first of others that is the same file, by whatever name: links, hard links, capitals on some disks."""
    if not path.is_file() and not path.is_dir():
        return None  # not there yet, or a device
    return next((each for each in others if each.exists() and path.samefile(each)), None)


def _rendered(renderer: Renderer, report: Report, option: str) -> str:
    text: object = renderer(report)
    if not isinstance(text, str):
        raise ValueError(f"{option}: the renderer returned {type(text).__name__}, not str")
    return text


def _print_alone(target: _Target, report: Report) -> None:
    """Print a format in the encoding of standard output. JSON and HTML have escapes of their own for what it lacks."""
    text = _rendered(find(target.format), report, target.option)
    if not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf"):
        if target.format == "json":
            text = ascii_json(text)
        elif target.format == "html":  # it says that it is UTF-8, and must be so in any encoding
            text = text.encode("ascii", "xmlcharrefreplace").decode()
    with naming("standard output"), degrading(sys.stdout):
        sys.stdout.write(text)


def check_writable(target: str | Path | None) -> None:
    """Raise ValueError now rather than after minutes of measuring when a file cannot be written; "-" always can."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if path.is_symlink() and not path.exists():  # the file that a link leads to is what is written
        path = Path(os.path.realpath(path))
    _check_place(path, f"write {path.name} to")


def _check_folder(target: str) -> None:
    path = Path(target)
    if target == "-":
        return
    if path.exists() and not path.is_dir():
        raise ValueError(f"--csv {path} is no folder: name one, which gets a file a table")
    path = Path(os.path.realpath(path))
    _check_place(path, f"make {path.name} in")


def _check_place(path: Path, what: str) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to {what}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission")
