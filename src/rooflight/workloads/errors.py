"""The two errors of a workload: the user asked for something impossible, or the step raised an error."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final


class TargetError(ValueError):
    """A target, mode or size that is impossible; the text is one line with what to do. Exit code 2."""


class RunFailed(RuntimeError):  # noqa: N818 - named for what happened; the step's own error is chained
    """The step itself raised an error, which is chained; the text is one line with what and where. Exit code 1."""


STEP_FAILED: Final = "the step failed: "
"""The text of a RunFailed begins so if the step raised an error of its own."""

_LONGEST: Final = 300  # transformers lists all its models in some errors


def first_words(text: str) -> str:
    """A text in one line, cut where it is longer than a few lines of a terminal."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rsplit(' ', 1)[0]} ..."


def told_in_one_line(error: BaseException, *, prefer: Path | None = None) -> str:
    """``TypeError: bad operand (train.py:12 in make_step)``: type, first line of the text, and where it was raised."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text + place_of(error, prefer=prefer)


def place_of(error: BaseException, *, prefer: Path | None = None) -> str:
    """`` (train.py:12 in make_step)``: where an error was raised; empty if that is unknown.

    The innermost line of the preferred file if the traceback passes through it, otherwise the innermost of all.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    preferred = [f for f in frames if prefer is not None and Path(f.filename) == prefer]
    frame = (preferred or frames)[-1]
    return f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


def missing_package(error: BaseException, *, prefer: Path | None = None) -> str | None:
    """The message for an import that found no package; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    return f"needs the package {error.name}, which is not installed{place_of(error, prefer=prefer)}"
