"""The option of verbs that read sessions and traces as measured data."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflight.cli import completion

SourceDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        autocompletion=completion.devices,
        help="Device of traces and sessions that name none that is known (see: rooflight devices).",
    ),
]
