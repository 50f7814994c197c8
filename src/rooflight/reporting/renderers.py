"""Which formats a report can have: Rooflight's own, those that packages announce, and functions of a user's file.

A renderer takes a Report and returns the text of a file. A package announces one under the entry point group
``rooflight.renderers``; the name of the entry is that of the format.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from rooflight.records.package import SUFFIX, announced, load_function
from rooflight.records.report import Report

Renderer = Callable[[Report], str]

ENTRY_POINT_GROUP = "rooflight.renderers"


def find(name: str) -> Renderer:
    """The renderer of a format, or the function that ``file.py:function`` names.

    Raises ValueError for a format that nobody announces or two packages announce, and for a file that cannot be run.
    """
    file, _, function = name.rpartition(":")
    if file.endswith(SUFFIX):
        return load_function(Path(file), function)
    own = _own()
    if name in own:
        return own[name]
    theirs: Renderer | None = announced(ENTRY_POINT_GROUP, name, f'announce a renderer "{name}"')
    if theirs is not None:
        return theirs
    known = ", ".join(sorted({*own, *entry_points(group=ENTRY_POINT_GROUP).names}))
    raise ValueError(f'unknown renderer "{name}": known are {known}; for a function of yours write file.py:function')


def _own() -> dict[str, Renderer]:
    from rooflight.reporting.csv import render_csv
    from rooflight.reporting.html import render_html
    from rooflight.reporting.json import render_json
    from rooflight.reporting.markdown import render_markdown

    return {"json": render_json, "markdown": render_markdown, "csv": render_csv, "html": render_html}
