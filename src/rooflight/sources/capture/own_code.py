"""The user's own code, as distinguished from libraries: by the file that it is in."""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
from dis import opname
from itertools import islice
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
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
_CONVERTS: Final = ("tensor", "as_tensor", "FloatTensor", "LongTensor", "tolist", "numpy", "item")
"""Between tensors and what Python has: number by number, whatever is converted."""
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
    line = next(islice(code.co_positions(), instruction // _INSTRUCTION, None), (None,))[0]
    calls = "f-string" if _makes_text(code, instruction) else _called(_expression(code, instruction))
    outer = "" if caller is None else place_at(caller, called_at).at
    return structs.replace(place_in(code, line), calls=calls, caller=outer)


def _makes_text(code: CodeType, instruction: int) -> bool:
    return any(part in opname[code.co_code[instruction]] for part in _MAKES_TEXT)


def is_of_tensors(frame: FrameType, instruction: int) -> bool:
    """Whether a tensor, a module of torch or a function of it is in the expression that an instruction computes."""
    torch, node = sys.modules.get("torch"), _expression(frame.f_code, instruction)
    converts = _called(node).rpartition(".")[2] in _CONVERTS
    if torch is None or node is None or converts or _makes_text(frame.f_code, instruction):
        return False
    names, known = {**frame.f_globals, **frame.f_locals}, (torch.Tensor, torch.nn.Module)

    def value_of(each: ast.AST) -> object:
        if isinstance(each, ast.Name):
            return names.get(each.id)
        of_name = isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
        return _held(names.get(each.value.id), each.attr) if of_name else None  # type: ignore[attr-defined]

    for each in ast.walk(node):
        value = value_of(each)
        of_torch = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
        if isinstance(value, FunctionType | BuiltinFunctionType):
            of_torch = str(value.__module__)
        own = isinstance(each, ast.Name) and each.id == "self"
        if not own and (issubclass(type(value), known) or of_torch.partition(".")[0] == "torch"):
            return True
    return False


def _held(owner: object, name: str) -> object:
    """An attribute of an object, or of a module a child or tensor, where that runs no code of the program's."""
    try:
        held = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    inside = (held, *(held.get(part) for part in ("_parameters", "_buffers", "_modules")))
    return next((each[name] for each in inside if isinstance(each, dict) and name in each), None)


def _expression(code: CodeType, instruction: int) -> ast.expr | None:
    """What an instruction computes; None where that is not known."""
    instruction = max(0, instruction)  # of a frame that has not begun it is -1
    line, last, begin, end = next(islice(code.co_positions(), instruction // _INSTRUCTION, None), (None,) * 4)
    lines = [each.encode() for each in linecache.getlines(code.co_filename)[(line or 0) - 1 : last]] if line else []
    if not lines or begin is None or end is None:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        return ast.parse(b" ".join(each.strip() for each in lines).decode(errors="replace"), mode="eval").body
    except (SyntaxError, ValueError):  # the file has changed
        return None


def _called(node: ast.expr | None) -> str:
    """The function of a call, as it is written."""
    names: list[str] = []
    called: ast.expr | None = node.func if isinstance(node, ast.Call) else None
    while isinstance(called, ast.Attribute):
        names.append(called.attr)
        called = called.value
    names += [called.id] if isinstance(called, ast.Name) else []
    return ".".join(reversed(names))


of_a_sample: Final = (is_users, function_of, is_of_tensors, _makes_text, _held, _called, _expression)
