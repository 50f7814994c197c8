"""The errors of a workload: an impossible request, a missing library, or a step that raised an error."""

from __future__ import annotations

import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from rooflight.records.package import install_line, is_missing


class TargetError(ValueError):
    """A target, mode or size that is impossible; the text is one line with what to do. Exit code 2."""


class RunFailed(RuntimeError):  # noqa: N818 - named for what happened; the step's own error is chained
    """The step itself raised an error, which is chained; the text is one line with what and where. Exit code 1."""


def no_inputs_for(name: str, why: str = "") -> TargetError:
    """The refusal of a class of models for which no inputs can be made."""
    return TargetError(f"no inputs are known for {name}{why}: write your own step and pass path/to/train.py:make_step")


STEP_FAILED: Final = "the step failed: "
"""The text of a RunFailed begins so if the step raised an error of its own."""

_LONGEST: Final = 300  # transformers lists all its models in some errors


def first_words(text: str) -> str:
    """A text in one line, cut where it is longer than a few lines of a terminal."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rsplit(' ', 1)[0]} ..."


def in_one_line(error: BaseException, *, prefer: Path | None = None) -> str:
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


_OLDEST_TRANSFORMERS: Final = 5


def need_torch() -> ModuleType:
    """The torch package. Raises TargetError with the line to install it."""
    return _need("torch", purpose="recording a PyTorch program")


def need_transformers() -> ModuleType:
    """The transformers package, with torch, without which it has no models.

    Raises TargetError with the line to install what is missing or too old.
    """
    transformers = _need("torch", "transformers", purpose="building presets and config.json models")
    if int(transformers.__version__.partition(".")[0]) < _OLDEST_TRANSFORMERS:
        raise TargetError(
            f"transformers {transformers.__version__} is too old: {install_line(['transformers'])} --upgrade"
        )
    return transformers


def _need(*libraries: str, purpose: str) -> ModuleType:
    missing = [library for library in libraries if is_missing(library)]
    if missing:
        raise TargetError(f"{purpose} needs {' and '.join(missing)}: {install_line(missing)}")
    return import_module(libraries[-1])
