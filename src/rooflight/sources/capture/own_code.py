"""The user's own code, as distinguished from libraries: by the file that it is in."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import CodeType
from typing import Final

from rooflight.records.account import Place, shown_path

_LIBRARIES: Final = (
    "<", f"{Path(__file__).parents[2]}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")),
)  # fmt: skip


def _working_folder() -> str:
    try:
        return f"{Path.cwd()}/"
    except OSError:  # it is gone
        return "\0"


_HERE: Final = _working_folder()


def is_users(file: str) -> bool:
    """Whether a file is the user's own, and no library's."""
    return not (file.startswith(_LIBRARIES) or "/site-packages/" in file)


def shown(file: str) -> str:
    """A file as reports name it: relative to the folder that the program began in."""
    return shown_path(file.removeprefix(_HERE))


def place_in(code: CodeType, line: int) -> Place:
    """A line of a function."""
    return Place(file=shown(code.co_filename), line=line, function=code.co_qualname)


def forward_of(module_class: type) -> Place | None:
    """Where the forward pass of a user's own class of modules begins; None for a library's."""
    code = getattr(module_class.__dict__.get("forward"), "__code__", None)
    return place_in(code, code.co_firstlineno) if code is not None and is_users(code.co_filename) else None
