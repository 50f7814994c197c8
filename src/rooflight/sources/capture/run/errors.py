"""The error that ends a script: its traceback as it would be without Rooflight, and in one sentence what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final

from rooflight.sources.capture.own_code import is_users

_OWN: Final = f"{Path(__file__).parents[3]}/"
_FAULTS: Final = (AssertionError, AttributeError, KeyError, NameError, TypeError)
"""Raised by Rooflight's own code, these are its faults, and their place is shown."""
_NETWORK: Final = {"ConnectError", "ConnectionError", "gaierror"}  # urllib's, requests', httpx's
_NO_GPU: Final = (
    "not compiled with CUDA",
    "no NVIDIA driver",
    "No CUDA GPUs",
    "no NVIDIA GPU",
    "CUDA is not available",
)
_LONG: Final = 300  # characters of a message


def of_script(error: BaseException, start: CodeType) -> TracebackType | None:
    """The traceback of an error that came through ``start``, from the script on: without frames of Rooflight's and
    what these called, up to the script's own code again. What led to the error loses the same frames.
    """
    frames = list(_frames(error.__traceback__))
    begin = max((place + 1 for place, each in enumerate(frames) if each.tb_frame.f_code is start), default=0)
    while begin < len(frames) and _file_of(frames[begin]).startswith((start.co_filename, "<frozen importlib")):
        begin += 1
    before = error.__cause__ or error.__context__
    while before is not None:
        before.__traceback__ = _joined(_without_own(list(_frames(before.__traceback__))))
        before = before.__cause__ or before.__context__
    rest = frames[begin:]
    raised_here = bool(rest) and _file_of(rest[-1]).startswith(_OWN)
    is_fault = raised_here and isinstance(error, _FAULTS) and not str(error).startswith(_line(rest))
    return _joined(rest if is_fault else _without_own(rest))


def reason_of(error: BaseException) -> str:
    """``train.py:12 raised ValueError: too short``; where it is known, what to do instead."""
    where = _line(list(_frames(error.__traceback__)))
    text, names, cause = _short(" ".join(str(error).split())), set[str](), error
    while cause is not None:
        names |= {kind.__name__ for kind in type(cause).__mro__}
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    if names & _NETWORK:
        return f"{where} needs a network, which is not here: download it elsewhere, or start from random weights"
    if "MemoryError" in names or "can't allocate memory" in text:
        return f"{where} needs more memory than this machine has: tensors of the host are real, make them smaller"
    if any(word in text for word in _NO_GPU):
        return f"{where} needs a GPU, which is not here: rooflight run --on H100-SXM5-80GB ... runs it without one"
    if text.startswith(where):  # it says its line
        return text
    return f"{where} exits: {text}" if "SystemExit" in names else f"{where} raised {type(error).__name__}: {text}"


def _short(text: str) -> str:
    """No more than ``_LONG`` of it, whole words."""
    return text.rstrip(".!") if len(text) <= _LONG else f"{text[:_LONG].rpartition(' ')[0]} ..."


def _line(frames: list[TracebackType]) -> str:
    """The innermost of the script's own."""
    lines = [f"{Path(_file_of(each)).name}:{each.tb_lineno}" for each in frames if is_users(_file_of(each))]
    return lines[-1] if lines else "it"


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _file_of(trace: TracebackType) -> str:
    return trace.tb_frame.f_code.co_filename


def _without_own(frames: list[TracebackType]) -> list[TracebackType]:
    kept, inside = [], False
    for each in frames:
        inside = _file_of(each).startswith(_OWN) or (inside and not is_users(_file_of(each)))
        if not inside:
            kept.append(each)
    return kept or frames


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    for each, following in zip(frames, [*frames[1:], None], strict=False):
        each.tb_next = following
    return frames[0] if frames else None
