"""Which operators there are, by name. Their files are imported when first needed."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from rooflight.operators.operator import Operator

ENTRY_POINT_GROUP = "rooflight.operators"

_operators: dict[str, Operator] = {}
_loaded = False


def register(operator: Operator) -> Operator:
    """Make an operator known under its name. Raises ValueError for a name that is taken."""
    if operator.name in _operators:
        raise ValueError(f'operator "{operator.name}" is registered already: give it another name')
    _operators[operator.name] = operator
    return operator


def find(name: str) -> Operator:
    """The operator of a name. Raises ValueError, naming those spelled similarly, for an unknown one."""
    _load()
    if name in _operators:
        return _operators[name]
    close = get_close_matches(name, _operators, n=3)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise ValueError(f'unknown operator "{name}": {hint}see rooflight sample --list')


def names() -> tuple[str, ...]:
    """All names, in alphabetical order, capitals last as in a dictionary."""
    _load()
    return tuple(sorted(_operators, key=lambda name: (name.lower(), name)))


def every() -> tuple[Operator, ...]:
    """All operators, in the order of their names."""
    return tuple(_operators[name] for name in names())


def _load() -> None:
    """Import every file beside the operators, then the packages that announce operators."""
    global _loaded
    if _loaded:
        return
    package = import_module("rooflight.operators.library")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        entry.load()
    _loaded = True  # only now: a file that failed to load must fail again, not be missed in silence
