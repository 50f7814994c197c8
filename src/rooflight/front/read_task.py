"""A process that reads traces for another one: a line of JSON for each on its standard input, lines of JSON back.

Each trace becomes a saved session, which the other process loads: a process of its own per core, since reading is
Python's work and torch's imports take longer than small traces.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

_PERIOD_S: Final = 2.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A trace to read, and the file that its session is to be saved to."""

    path: str
    out: str
    model: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of the trace was read (of 1); ``done`` with its session saved, or with what is wrong with the trace."""

    share: float = 0.0
    done: bool = False
    error: str = ""


def main() -> None:
    """Answer until the input ends."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(2, 1)  # what else is printed is no answer
        for line in sys.stdin.buffer:
            asked = msgspec.json.decode(line, type=Asked)

            def tell(answer: Answer) -> None:
                answers.write(msgspec.json.encode(answer) + b"\n")

            tell(_answer(asked, tell))


def _answer(asked: Asked, tell: Callable[[Answer], None]) -> Answer:
    from rooflight.sources.traces.session import read_trace

    last_s = time.monotonic()

    def progress(done: int, size: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _PERIOD_S and size:
            last_s = time.monotonic()
            tell(Answer(share=min(done / size, 1.0)))

    try:
        read_trace(asked.path, model=asked.model, progress=progress).save(Path(asked.out))
    except (ValueError, OSError) as error:
        return Answer(done=True, error=str(error) or type(error).__name__)
    return Answer(done=True)


if __name__ == "__main__":
    main()
