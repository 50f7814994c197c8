"""How a package offers names without importing their modules: each is imported when it is first used.

``rooflight`` and the packages of its studies (``rooflight.tracking``, ...) export in this way, so that a saved session
is analysed without torch and ``rooflight --help`` imports none of what it names. A package's ``__init__`` is::

    if TYPE_CHECKING:  # for type checkers and editors
        from rooflight.study.loop import run as run

    __all__ = ["run"]
    __getattr__, __dir__ = lazy_exports(__name__, {"run": "rooflight.study.loop"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str], namespaces: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: ``homes`` has the module of each name, ``namespaces`` the names of
    subpackages that are attributes of it without being imported first.
    """
    own_namespaces = frozenset(namespaces)

    def find(name: str) -> Any:
        if name in own_namespaces:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)  # the next use does not come here
        return found

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *own_namespaces})

    return find, listed
