"""The user's own code, as distinguished from libraries: by the file that it is in."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Final

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
    """A file as reports name it: relative to the folder that the program began in, by its name if it is elsewhere."""
    return file.removeprefix(_HERE) if file.startswith(_HERE) else file.rpartition("/")[2]


def line_of(module_class: type) -> str:
    """``train.py:52``, where the forward pass of a user's own class of modules begins; empty for a library's."""
    code = getattr(module_class.__dict__.get("forward"), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"
