"""The options of what-if roofs, which every verb that bounds for a device takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rooflight.cli import completion

if TYPE_CHECKING:
    from rooflight.devices.what_if import WhatIf

Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.precisions,
        help="What if products may use fewer bits: tf32, bf16, fp8, ... [default: as the program says]",
    ),
]
Clock = Annotated[
    str | None,
    typer.Option(metavar="CLOCK", help="What if the clock is locked: 1.5GHz, 1410MHz. [default: the device's highest]"),
]


def what_if(precision: str | None, clock: str | None) -> WhatIf:
    """The roofs that the options suppose. Raises ValueError, naming the option, for anything else."""
    from rooflight.devices.what_if import WhatIf, parse_clock

    for option, text, check in (
        ("--precision", precision, lambda text: WhatIf(precision=text)),
        ("--clock", clock, parse_clock),
    ):
        if text is not None:
            try:
                check(text)
            except ValueError as error:
                raise ValueError(f"{option}: {error}") from None
    return WhatIf(precision=precision, clock_hz=None if clock is None else parse_clock(clock))
