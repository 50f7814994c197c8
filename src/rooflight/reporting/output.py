"""Where a report goes: the terminal, and files that appear whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rooflight.records.files import write_whole
from rooflight.records.report import Report


def write_report(report: Report, *, json: str | None = None, markdown: str | None = None) -> None:
    """Write the files asked for and show the report; ``"-"`` prints that format alone, for the next in a pipe."""
    from rooflight.reporting.json import render_json
    from rooflight.reporting.markdown import render_markdown

    for target, render in ((markdown, render_markdown), (json, render_json)):
        if target is not None and target != "-":
            write_whole(Path(target), render(report))
    if "-" in (json, markdown):
        sys.stdout.write(render_json(report) if json == "-" else render_markdown(report))
        return
    from rooflight.reporting.console import print_report

    print_report(report)


def check_writable(target: str | Path | None) -> None:
    """Raise ValueError now rather than after minutes of measuring when a file cannot be written; "-" always can."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission")
