"""A user's Python file, run once as a module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

SUFFIX = ".py"


def load_module(path: Path) -> ModuleType:
    """Run a user's file, once, as ``python file.py`` would: it can import the files beside it.

    Raises ValueError for a file that does not exist or cannot be run.
    """
    name = f"_rooflight_user_{path.resolve()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"cannot read {path}: no such file")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that no file beside it hides a library
    try:
        spec.loader.exec_module(made)
    except (Exception, SystemExit) as error:  # sys.exit in a user's file ends the file, not the command
        del sys.modules[name]
        raise ValueError(f"{path} raised {type(error).__name__}: {error}") from error
    return made


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """A function of a user's file. Raises ValueError for a file that cannot be run and for a missing function."""
    found = getattr(load_module(path), name, None)
    if not callable(found):
        raise ValueError(f"{path} has no function {name}")
    function: Callable[..., Any] = found
    return function
