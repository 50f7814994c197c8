"""The user's own code, as distinguished from libraries: by the file that it is in."""

from __future__ import annotations

import ast
import linecache
import sysconfig
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Final

from msgspec import structs

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


_INSTRUCTION: Final = 2  # bytes
_HERE: Final = _working_folder()


def is_users(file: str) -> bool:
    """Whether a file is the user's own, and no library's."""
    return not (file.startswith(_LIBRARIES) or "/site-packages/" in file)


def shown(file: str) -> str:
    """A file as reports name it: relative to the folder that the program began in."""
    return shown_path(file.removeprefix(_HERE))


def place_in(code: CodeType, line: int | None) -> Place:
    """A line of a function; its first where the line is not known."""
    return Place(file=shown(code.co_filename), line=line or code.co_firstlineno, function=code.co_qualname)


def place_at(code: CodeType, instruction: int) -> Place:
    """The line of an instruction that runs, by its place in the code, and what it calls, if it calls something."""
    found = next(islice(code.co_positions(), instruction // _INSTRUCTION, None), (None,) * 4)
    return structs.replace(place_in(code, found[0]), calls=_called(code.co_filename, *found))


def _called(file: str, line: int | None, last: int | None, begin: int | None, end: int | None) -> str:
    """The function of a call that has this place in a file, as it is written there."""
    if None in (line, last, begin, end):
        return ""
    lines = [each.encode() for each in linecache.getlines(file)[line - 1 : last]]  # type: ignore[operator]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        node = ast.parse(b" ".join(each.strip() for each in lines).decode(errors="replace"), mode="eval").body
    except (SyntaxError, ValueError):  # the file has changed
        return ""
    names: list[str] = []
    called: ast.expr | None = node.func if isinstance(node, ast.Call) else None
    while isinstance(called, ast.Attribute):
        names.append(called.attr)
        called = called.value
    names += [called.id] if isinstance(called, ast.Name) else []
    return ".".join(reversed(names))
