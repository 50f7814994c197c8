"""The two ways a workload goes wrong: the user asked for something that is not there, or what they asked for broke."""

from __future__ import annotations

import traceback
from pathlib import Path


class TargetError(ValueError):
    """A target, mode or size that cannot be: one line that says what to do. Exit code 2."""


class RunFailed(RuntimeError):  # noqa: N818 - named for what happened; the step's own error is chained
    """The step itself raised: one line with what and where, the original chained. Exit code 1."""


def told_in_one_line(error: BaseException, *, prefer: Path | None = None) -> str:
    """``TypeError: bad operand (train.py:12 in make_step)``: type, first line of the text, and the place it came from.

    The place is the innermost line of the file preferred, where the traceback passes through it, else the innermost.
    """
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    preferred = [f for f in frames if prefer is not None and Path(f.filename) == prefer]
    frame = (preferred or frames)[-1]
    return f"{text} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"
