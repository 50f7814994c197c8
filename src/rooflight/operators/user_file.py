"""Operators in a user's Python file, which registers them when it is run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from rooflight.operators import registry
from rooflight.operators.operator import Operator

_SUFFIX = ".py"


def operators_of(text: str) -> tuple[Operator, ...]:
    """The operators that a word of the command line names: one of ours, ``file.py:name``, or all of ``file.py``.

    Raises ValueError for an unknown operator, and for a file that cannot be run or registers none.
    """
    head, separator, name = text.rpartition(":")
    file = head if separator and head.endswith(_SUFFIX) else text
    if not file.endswith(_SUFFIX):
        return (registry.find(text),)
    registered = _registered(Path(file))
    if not registered:
        raise ValueError(f"{file} registers no operator: call rooflight.operators.registry.register in it")
    if file == text:
        return registered
    found = [operator for operator in registered if operator.name == name]
    if not found:
        raise ValueError(f"{file} registers {', '.join(operator.name for operator in registered)}, not {name}")
    return tuple(found)


def _registered(path: Path) -> tuple[Operator, ...]:
    """What running the file adds. A file is run once, however often it is named."""
    module = f"_rooflight_operators_{path.resolve()}"
    before = set(registry.names())
    if module in sys.modules:
        return tuple(vars(sys.modules[module])["_rooflight_registered"])
    spec = importlib.util.spec_from_file_location(module, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"cannot read {path}: no such file")
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        del sys.modules[module]
        raise ValueError(f"{path} raised {type(error).__name__}: {error}") from error
    added = tuple(registry.find(name) for name in registry.names() if name not in before)
    vars(made)["_rooflight_registered"] = added
    return added
