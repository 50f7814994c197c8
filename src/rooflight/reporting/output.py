"""Where a report goes: the terminal, and files that appear whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from rooflight.records.report import Report


def write_report(report: Report, *, json: str | None = None, markdown: Path | None = None) -> None:
    """Write the files asked for and show the report; ``json="-"`` prints JSON alone, for the next program in a pipe."""
    if markdown is not None:
        from rooflight.reporting.markdown import render_markdown

        write_whole(markdown, render_markdown(report))
    if json is not None:
        from rooflight.reporting.json import render_json

        text = render_json(report)
        if json == "-":
            sys.stdout.write(text)
            return
        write_whole(Path(json), text)
    from rooflight.reporting.console import print_report

    print_report(report)


def check_writable(path: Path | None) -> None:
    """Raise ValueError now rather than after minutes of measuring when ``path`` cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission")


def write_whole(path: Path, text: str) -> None:
    """Write a file by way of a temporary one beside it, so that no reader ever sees half of it."""
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
