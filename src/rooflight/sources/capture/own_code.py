"""The user's own code, as distinguished from libraries: by the file that it is in."""

from __future__ import annotations

import ast
import linecache
import sysconfig
from dis import opname
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
_MAKES_TEXT: Final = ("FORMAT_", "BUILD_STRING", "CONVERT_VALUE")
_HERE: Final = _working_folder()


def is_users(file: str) -> bool:
    """Whether a file is the user's own, and no library's."""
    return not (file.startswith(_LIBRARIES) or "/site-packages/" in file)


def shown(file: str) -> str:
    """A file as reports name it: relative to the folder that the program began in."""
    return shown_path(file.removeprefix(_HERE))


def place_in(code: CodeType, line: int | None) -> Place:
    """A line of a function; its first where the line is not known."""
    return Place(file=shown(code.co_filename), line=line or code.co_firstlineno, function=function_of(code))


def function_of(code: CodeType) -> str:
    """The function that code is of; a generator or lambda is of the function that it stands in."""
    return code.co_qualname.partition(".<locals>.<")[0]


def place_at(code: CodeType, instruction: int, caller: CodeType | None = None, called_at: int = 0) -> Place:
    """The line of an instruction that runs, by its place in the code, what it calls, if it calls something, and the
    line of that which called the function.
    """
    instruction = max(0, instruction)  # of a frame that has not begun it is -1
    found = next(islice(code.co_positions(), instruction // _INSTRUCTION, None), (None,) * 4)
    makes_text = any(part in opname[code.co_code[instruction]] for part in _MAKES_TEXT)
    calls = "f-string" if makes_text else _called(code.co_filename, *found)
    outer = "" if caller is None else place_at(caller, called_at).at
    return structs.replace(place_in(code, found[0]), calls=calls, caller=outer)


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
