"""Who holds tensors: from the names of the program's own code down, through containers, attributes and closures."""

from __future__ import annotations

import ast
import gc
import linecache
import re
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from itertools import islice
from types import BuiltinFunctionType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflight.records.account import Place
from rooflight.sources.capture.own_code import is_users, shown
from rooflight.sources.capture.record.signatures import storage_of

_MOST: Final = 100_000  # objects that are looked at
_ADDING: Final = ("append", "appendleft", "extend", "add", "insert", "put", "put_nowait", "update", "setdefault")
_MANY: Final = 20_000  # of one container
_MOST_NODES: Final = 50_000  # of a graph
_PLAIN: Final = frozenset(
    (str, bytes, int, float, complex, bool, type(None), ModuleType, BuiltinFunctionType, torch.device, torch.dtype)
)
"""Types of what holds no tensor; modules of Python are looked at one by one."""


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the memory of a wrapper such as a DTensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:  # a DTensor lists its mesh too
        if isinstance(part := getattr(tensor, name), torch.Tensor):
            yield from plain_parts(part)


@dataclass(slots=True)
class Holders:
    """``storages`` that were found, their names by address, and bytes and pieces of each name. ``bounded``: names of
    containers that drop their oldest. ``graphs``: nodes of the graph that made a tensor of that name. ``whole``: not
    so where there are too many objects to look at. ``places``: the lines that made storages, by address, if known.
    """

    storages: list[torch.UntypedStorage] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    sizes: Counter[str] = field(default_factory=Counter)
    pieces: Counter[str] = field(default_factory=Counter)
    bounded: set[str] = field(default_factory=set)
    graphs: Counter[str] = field(default_factory=Counter)
    whole: bool = True
    places: dict[int, Place] = field(default_factory=dict)


def holders() -> Holders:
    """Who holds which storage of the device that is here. What only libraries or native code hold is not found."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found, seen = Holders(), set[int]()
    tasks = deque(_holding(_roots()))
    while tasks and len(seen) < _MOST:
        name, value = tasks.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind: type[object] = type(value)
        if issubclass(kind, torch.Tensor):
            _note(found, name, value, device)
        else:
            if kind is deque and value.maxlen is not None:
                found.bounded.add(name)
            with suppress(Exception):  # of an object of the program's own
                tasks.extend(_holding(_inside_of(kind)(name, value)))  # type: ignore[arg-type]
    found.whole = not tasks
    return found


def keeping_line(name: str) -> Place | None:
    """The one line of the program's own that puts something into what a name says: appends to it, sets an item, adds.
    None where there are several, or none.
    """
    for leaf in reversed(name.split(".")):
        found = _adding_lines(leaf)
        if len(found) == 1:
            ((file, line),) = found
            return Place(file=shown(file), line=line)
    return None


def lines_like(pattern: re.Pattern[str]) -> Iterator[Place]:
    """The lines of the program's own files in which a pattern is found."""
    for file, namespace in _own_files().items():
        for line, text in enumerate(linecache.getlines(file, namespace), 1):
            if pattern.search(text):
                yield Place(file=shown(file), line=line)


def _adding_lines(leaf: str) -> set[tuple[str, int]]:
    found = set()
    for file, namespace in _own_files().items():
        with suppress(SyntaxError):
            tree = ast.parse("".join(linecache.getlines(file, namespace)))
            found |= {(file, line) for node in ast.walk(tree) if (line := _adds(node, leaf))}
    return found


def _adds(node: ast.AST, leaf: str) -> int:
    """The line of a statement that puts something into what has a name; 0 of others."""
    adds = False
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        return node.decorator_list[0].lineno if node.name == leaf else 0
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        adds = node.func.attr in _ADDING and _names(node.func.value, leaf)
    elif isinstance(node, ast.AugAssign):
        adds = _names(node.target, leaf)
    elif isinstance(node, ast.Assign):
        into = [each for each in node.targets if _names(each, leaf)]
        items = any(isinstance(each, ast.Subscript) for each in into)
        adds = items or (bool(into) and any(_names(each, leaf) for each in ast.walk(node.value)))
    return int(getattr(node, "lineno", 0)) if adds else 0


def _names(node: ast.AST, leaf: str) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return (isinstance(node, ast.Name) and node.id == leaf) or (isinstance(node, ast.Attribute) and node.attr == leaf)


def _own_files() -> dict[str, dict[str, Any]]:
    modules = [vars(module) for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    files = {str(each.get("__file__")): each for each in modules if isinstance(each.get("__file__"), str)}
    return {file: namespace for file, namespace in files.items() if is_users(file)}


def _roots() -> Iterator[tuple[str, Any]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield from list(frame.f_locals.items())
        frame = frame.f_back
    for namespace in _own_files().values():
        yield from list(namespace.items())


def _note(found: Holders, name: str, tensor: torch.Tensor, device: str) -> None:
    for part in plain_parts(tensor):
        for each in (part, part.grad if part.is_leaf else None):
            storage = storage_of(each) if each is not None and each.device.type == device else None
            if storage is not None and storage._cdata not in found.names:
                found.storages.append(storage)
                found.names[storage._cdata] = name
                found.sizes[name] += storage.nbytes()
                found.pieces[name] += 1
    if tensor.grad_fn is not None:
        found.graphs[name] = max(found.graphs[name], _nodes(tensor.grad_fn))


def _holding(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Those that may lead to a tensor."""
    return (pair for pair in pairs if type(pair[1]) not in _PLAIN)


@cache
def _inside_of(kind: type) -> Callable[[str, Any], Iterable[tuple[str, Any]]]:
    """What tells what an object holds, each with its name: elements of containers have that of the container."""
    return next((inside for kinds, inside in _INSIDE if issubclass(kind, kinds)), _attributes)


def _of_module(name: str, module: nn.Module) -> Iterable[tuple[str, Any]]:
    """A module is the holder of all that is its own."""
    for key, each in list(vars(module).items()):
        if key in ("_modules", "_parameters", "_buffers"):
            yield from ((name, own) for own in each.values())
        elif each or type(each) not in (dict, OrderedDict, set):  # a module has twelve empty ones, for hooks
            yield f"{name}.{key}", each


def _of_function(name: str, function: FunctionType) -> Iterable[tuple[str, Any]]:
    yield from ((name, each) for each in (*(function.__defaults__ or ()), *vars(function).values()))
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield name, cell.cell_contents


def _of_class(name: str, kind: type) -> Iterable[tuple[str, Any]]:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if isinstance(file, str) and is_users(file):
        yield from ((f"{name}.{key}", each) for key, each in list(vars(kind).items()))


def _of_generator(name: str, generator: GeneratorType[Any, Any, Any]) -> Iterable[tuple[str, Any]]:
    frame = generator.gi_frame
    return [(name, each) for each in frame.f_locals.values()] if frame is not None else ()


def _of_traceback(name: str, trace: TracebackType | None) -> Iterable[tuple[str, Any]]:
    while trace is not None:
        yield from ((name, each) for each in list(trace.tb_frame.f_locals.values()))
        trace = trace.tb_next


def _attributes(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    slots = [each for base in type(value).__mro__ for each in getattr(base, "__slots__", ()) if isinstance(each, str)]
    held = {each: getattr(value, each) for each in slots if not each.startswith("__") and hasattr(value, each)}
    return [(f"{name}.{key}", each) for key, each in {**held, **getattr(value, "__dict__", {})}.items()]


_INSIDE: Final[tuple[tuple[Any, Callable[[str, Any], Iterable[tuple[str, Any]]]], ...]] = (
    (nn.Module, _of_module),
    (type, _of_class),
    (Optimizer, lambda name, value: [(name, value.state)]),
    (dict, lambda name, value: [(name, each) for each in islice(value.values(), _MANY)]),
    (type(lru_cache(str)), lambda name, value: [(name, each) for each in gc.get_referents(value)]),
    ((list, tuple, set, frozenset, deque), lambda name, value: [(name, each) for each in islice(value, _MANY)]),
    (FunctionType, _of_function),
    (MethodType, lambda name, value: [(name, value.__self__)]),
    (partial, lambda name, value: [(name, each) for each in (value.func, *value.args, *value.keywords.values())]),
    (GeneratorType, _of_generator),
    (BaseException, lambda name, value: _of_traceback(name, value.__traceback__)),
    (TracebackType, _of_traceback),
)


def _nodes(root: Any) -> int:
    """How many nodes of autograd's graph hang on one."""
    seen, tasks = {root}, [root]
    while tasks and len(seen) < _MOST_NODES:
        for node, _ in tasks.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                tasks.append(node)
    return len(seen)
