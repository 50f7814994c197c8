"""Operators in a user's Python file, which registers them when it is run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from rooflight.operators import registry
from rooflight.operators.operator import Operator

_SUFFIX = ".py"

_registered: dict[Path, tuple[Operator, ...]] = {}
"""What running each file added: a file is run once, however often it is named."""


def operators_of(text: str) -> tuple[Operator, ...]:
    """The operators that a word of the command line names: one of ours, ``file.py:name``, or all of ``file.py``.

    Raises ValueError for an unknown operator, and for a file that cannot be run or registers none.
    """
    head, separator, name = text.rpartition(":")
    file = head if separator and head.endswith(_SUFFIX) else text
    if not file.endswith(_SUFFIX):
        return (registry.find(text),)
    registered = _operators_in(Path(file))
    if not registered:
        raise ValueError(f"{file} registers no operator: call rooflight.operators.registry.register in it")
    if file == text:
        return registered
    found = [operator for operator in registered if operator.name == name]
    if not found:
        raise ValueError(f"{file} registers {', '.join(operator.name for operator in registered)}, not {name}")
    return tuple(found)


def load_module(path: Path) -> ModuleType:
    """Run a user's file, once, as ``python file.py`` would: what lies beside it can be imported.

    Raises ValueError for a file that is not there or cannot be run.
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
        sys.path.append(folder)  # last: a file beside it takes no library's place
    try:
        spec.loader.exec_module(made)
    except (Exception, SystemExit) as error:  # sys.exit in a user's file ends the file, not the sweep
        del sys.modules[name]
        raise ValueError(f"{path} raised {type(error).__name__}: {error}") from error
    return made


def _operators_in(path: Path) -> tuple[Operator, ...]:
    key = path.resolve()
    if key not in _registered:
        before = set(registry.names())
        load_module(path)
        _registered[key] = tuple(operator for operator in registry.every() if operator.name not in before)
    return _registered[key]
