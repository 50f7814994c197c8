"""Graphs as torch prints them (``GraphModule.print_readable``), and lines of source code in its texts."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Final

from rooflight.studies.compiling.explain.result import OpCount, SourceLine

_LINE: Final = re.compile(r'^ {8}(\w+)(?:: "([^"]*)")? = (.+?)(?:;  .*)?$')
_INPUT: Final = re.compile(r'^ {8}(\w+): "([^"]*)",?(?:\s+# (.*))?$')
_RESULT: Final = re.compile(r"^ {12}(\w+),(?:\s+# (.*))?$")
_CALL: Final = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\(")
_OPERATOR: Final = re.compile(r"^[^\s(]+ (\*\*|//|<<|>>|[-+*/@%&|^<>]|[=<>!]=) |^-(?=\w)")
_ITEM: Final = re.compile(r"^(\w+)\[\d+\]$")
_MADE_AT: Final = re.compile(r"^\s*# File: (.+):(\d+) in (.+?), code: (.*)$")
_TYPE: Final = re.compile(r"^(\w+)\[([^\]]*)\]")
_FRAME: Final = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$')
_RESUMED: Final = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
_OPERATORS: Final = {"@": "matmul", "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "**": "pow",
                     "%": "mod", "&": "and", "|": "or", "^": "xor", "<": "lt", ">": "gt", "<=": "le", ">=": "ge",
                     "==": "eq", "!=": "ne", "<<": "lshift", ">>": "rshift"}  # fmt: skip
_ARITHMETIC: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_ITEM_BYTES: Final = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8": 1, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1,
                      "u16": 2, "u32": 4, "u64": 8, "b8": 1, "c32": 4, "c64": 8, "c128": 16}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a printed graph: the name it binds, the type of the value (``f32[4, 8][8, 1]cpu``), the op, the
    expression, and the line of the program that it comes from.
    """

    name: str
    type: str
    op: str
    expression: str
    place: SourceLine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A printed graph: inputs by name with type and what torch says they are, lines, and results likewise."""

    inputs: dict[str, tuple[str, str]]
    lines: tuple[Line, ...]
    results: tuple[tuple[str, str], ...]

    def counts(self) -> tuple[OpCount, ...]:
        """How often each op occurs, the most frequent first."""
        found = Counter(line.op for line in self.lines if line.op)
        return tuple(OpCount(op=op, count=count) for op, count in found.most_common())


def printed(text: str) -> Printed:
    """A graph from its text. Lines that bind nothing, or only a name to another, are left out."""
    inputs: dict[str, tuple[str, str]] = {}
    lines: list[Line] = []
    results: list[tuple[str, str]] = []
    place: SourceLine | None = None
    for row in text.splitlines():
        if (made := _MADE_AT.match(row)) is not None:
            place = SourceLine(file=made[1], line=int(made[2]), function=made[3], code=made[4])
        elif (line := _LINE.match(row)) is not None:
            op = _op(line[3])
            if op:
                lines.append(Line(name=line[1], type=line[2] or "", op=op, expression=line[3], place=place))
        elif (given := _INPUT.match(row)) is not None:
            inputs[given[1]] = (given[2], given[3] or "")
        elif (result := _RESULT.match(row)) is not None:
            results.append((result[1], result[2] or ""))
    return Printed(inputs=inputs, lines=tuple(lines), results=tuple(results))


def _op(expression: str) -> str:
    if expression.startswith(("fx_pytree.", "self.")):
        return expression.partition("(")[0] if expression.startswith("self.") and "(" in expression else ""
    if (call := _CALL.match(expression)) is not None:
        name = call[1]
        if name.startswith("torch.ops."):
            namespace, op = name.removeprefix("torch.ops.").split(".")[:2]
            return f"{namespace}::{op}"
        return name if name.startswith(("torch", "operator", "math")) else name.rpartition(".")[2]
    if _ITEM.match(expression):
        return "getitem"
    found = _OPERATOR.match(expression)
    return "" if found is None else _OPERATORS.get(found[1] or "", "neg")


def source_of(line: Line, lines: Mapping[str, Line]) -> Line:
    """The line that computes a value: for one of several results of an op, the op's."""
    item = _ITEM.match(line.expression)
    return lines.get(item[1], line) if item is not None else line


def sized(type_text: str, symbols: Mapping[str, int]) -> tuple[str, tuple[int | None, ...], int | None]:
    """Dtype, shape and bytes of ``f32[s77, 8][8, 1]cpu``; a symbol has its size at the first call, None if unknown."""
    found = _TYPE.match(type_text)
    if found is None:
        return "", (), 0
    dims = [part.strip() for part in found[2].split(",") if part.strip()]
    shape = tuple(_size(dim, symbols) for dim in dims)
    each = _ITEM_BYTES.get(found[1])
    known = [dim for dim in shape if dim is not None]
    return found[1], shape, None if each is None or len(known) < len(shape) else each * prod(known)


def _size(text: str, symbols: Mapping[str, int]) -> int | None:
    try:
        return _value(ast.parse(text, mode="eval").body, symbols)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr, symbols: Mapping[str, int]) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return symbols.get(node.id)
    if isinstance(node, ast.BinOp) and (work := _ARITHMETIC.get(type(node.op))) is not None:
        left, right = _value(node.left, symbols), _value(node.right, symbols)
        return None if left is None or right is None else work(left, right)
    return None


def frames(text: str) -> Iterator[SourceLine]:
    """The frames of a printed traceback, outermost first."""
    rows = text.splitlines()
    for row, after in zip_longest(rows, rows[1:], fillvalue=""):
        if (frame := _FRAME.match(row)) is not None:
            code = "" if _FRAME.match(after) else after.strip()
            yield SourceLine(file=frame[1], line=int(frame[2]), function=function_name(frame[3]), code=code)


def function_name(name: str) -> str:
    """The name of a function, also of the rest of one that Dynamo goes on with after a graph break."""
    found = _RESUMED.match(name)
    return name if found is None else found[1]


def resumed_at(name: str) -> int | None:
    """The line after which Dynamo goes on, of the name of the rest of a function; None for a whole one."""
    found = _RESUMED.match(name)
    return None if found is None else int(found[2])
