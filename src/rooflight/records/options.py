"""How an options class declares what each of its fields is on a command line.

A dataclass of a room has its fields annotated: ``batch: Annotated[int | None, Option("Sequences per step.", "N")] =
None``. ``rooflight.cli`` makes the options of a verb from that, in a panel of the help that ``panel`` names. A field
without an Option is none. Nothing heavy is imported here: ``--help`` reads every options class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """What a user reads of an option. ``flags`` are its names, by default the field's; ``names`` says what completes
    its value (a function of ``cli.completion``), ``least`` is the smallest number that it takes.
    """

    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    names: str = ""
    least: int | None = None
