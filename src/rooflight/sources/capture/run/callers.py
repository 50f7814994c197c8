"""Who may end a step: modules, optimizers, phases and functions, with the lines of the script that call them."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from rooflight.records.account import Place
from rooflight.sources.capture.own_code import is_users, place_in

_FRAMES_OF_A_HOOK: Final = 8


def calling_place() -> Place:
    """The innermost line of the user's own code that is running; an empty place where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return place_in(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return Place()


def calling_line() -> str:
    """The same as text, ``train.py:112``."""
    return calling_place().at


def elements_of(args: tuple[Any, ...]) -> int:
    """Of the first tensor with which torch calls a module, from within a hook before that; 0 where there is none."""
    found = _first_tensor(args)
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_OF_A_HOOK if found is None else 0):
        if frame is not None and "kwargs" in frame.f_code.co_freevars:  # torch's call of the module
            found = _first_tensor(tuple(frame.f_locals["kwargs"].values()))
            break
        frame = frame and frame.f_back
    return found.numel() if found is not None else 0


def _first_tensor(values: Iterable[Any]) -> torch.Tensor | None:
    for each in values:
        inside = each.values() if isinstance(each, Mapping) else each if isinstance(each, list | tuple) else ()
        found = each if isinstance(each, torch.Tensor) else _first_tensor(inside)
        if found is not None:
            return found
    return None


def imported_by_user() -> bool:
    """Whether the import that is running is of the user's own code, and not of a library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and ("importlib" in frame.f_code.co_filename or _is_own(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


def while_loop() -> FrameType | None:
    """The frame of the innermost loop that is running, Rooflight's own left out, if that is a ``while`` loop."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, line = frame.f_code, frame.f_lineno
        around = () if _is_own(code.co_filename) else _loops_of(code.co_filename)
        inside = [loop for loop in around if code.co_firstlineno <= loop[0] <= line <= loop[1]]
        if inside:
            return frame if max(inside)[2] else None
        frame = frame.f_back
    return None


@lru_cache
def _loops_of(file: str) -> tuple[tuple[int, int, bool], ...]:
    """First and last line of the loops of a file, and whether they are ``while`` loops."""
    try:
        nodes = ast.walk(ast.parse("".join(linecache.getlines(file))))
    except SyntaxError:
        return ()
    found = (each for each in nodes if isinstance(each, (ast.For, ast.While)))
    return tuple((each.lineno, each.end_lineno or 0, isinstance(each, ast.While)) for each in found)


def _is_own(file: str) -> bool:
    return file.startswith(_OWN)


_OWN: Final = str(Path(__file__).parents[3]) + "/"
