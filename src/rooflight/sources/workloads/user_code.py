"""The user's own file: imported as a module, and functions of it called."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from rooflight.sources.workloads.errors import TargetError, in_one_line, missing_package, need_torch

_module_numbers = itertools.count(1)


def made_by(path: Path, name: str, *, makes: str) -> Any:
    """What function ``name`` of the file returns, called without arguments, with the file's folder on sys.path.

    Raises TargetError when the file or the function is not usable; ``makes`` says what for.
    """
    path = path.resolve()
    with function_of(path, name, makes) as (_, make):
        return called(make, path, name, makes)


@contextmanager
def function_of(path: Path, name: str, makes: str) -> Iterator[tuple[ModuleType, Callable[..., Any]]]:
    """The file as a module, and a function of it, while the file's folder is on sys.path."""
    need_torch()
    _check_name(name, path, makes)
    with on_path(path.parent):
        module = imported(path)
        make = getattr(module, name, None)
        if not callable(make):
            nested = "not at the top level of the file: define there a function that calls it, and name that"
            raise TargetError(f"{path.name}: {name} is {'no function' if hasattr(module, name) else nested}")
        yield module, make


def called(make: Callable[..., Any], path: Path, name: str, makes: str) -> Any:
    """What a function of the file returns. Raises TargetError where it takes arguments or raises."""
    parameters = [
        each for each in parameters_of(make) or () if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if missing := [each.name for each in parameters if each.default is each.empty]:
        raise TargetError(
            f"{path.name}:{name} takes arguments ({', '.join(missing)}): name a function without arguments that "
            f"makes the {makes}"
        )
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path.name}:{name} raised {in_one_line(error, prefer=path)}") from error


def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    """The parameters of a function; None where they are not known, as of some that are written in C."""
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _check_name(name: str, path: Path, makes: str) -> None:
    """Refuse a name that the file cannot have, before running a file that may well be a whole training script."""
    tree = parsed(path)
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    there = f"it defines {', '.join(functions)}" if functions else "it defines no function"
    if not name:
        raise TargetError(f"{path.name}: say which function makes the {makes}, {path.name}:make_{makes}; {there}")
    bound = _bound_names(tree)
    if name in bound or "*" in bound:
        return
    if name.partition(".")[0] in bound:
        raise TargetError(
            f"{path.name}:{name}: name a function at the top level of the file: define one there that calls {name}"
        )
    close = get_close_matches(name, functions, n=1)
    raise TargetError(f"{path.name} has no function {name}: {f'did you mean {close[0]}?' if close else there}")


def parsed(path: Path) -> ast.Module:
    """The file's syntax tree. Raises TargetError for a file that cannot be read or parsed."""
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        line = "" if error.lineno is None else f":{error.lineno}"  # unknown in a file with null bytes
        raise TargetError(f"{path.name}{line}: syntax error: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise TargetError(f"cannot read {path}: {error}") from error


def _bound_names(tree: ast.Module) -> set[str]:
    """Every name that the file defines, assigns or imports, nested ones too: ``*`` where it imports everything."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Have the folder first on sys.path in the block, so that a file may import its neighbours."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:  # and nothing else: the step may still import from folders that the file added
            sys.path.remove(entry)


def imported(path: Path) -> ModuleType:
    """The file as a module. Raises TargetError for one that raises or needs a package that is not installed."""
    # a name of its own, so that a file called json.py or one opened twice shadows nothing
    name = f"_rooflight_target_{next(_module_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if missing := missing_package(error, prefer=path):
            raise TargetError(f"{path.name} {missing}") from error
        if isinstance(error, (Exception, SystemExit)):
            raise TargetError(f"importing {path.name} raised {in_one_line(error, prefer=path)}") from error
        raise
    return module


def refuse_async(function: Any, where: str) -> None:
    """Raise TargetError for an async function or generator; ``where`` names what was asked for."""
    if kind := _kind(function, inspect.isasyncgenfunction, inspect.iscoroutinefunction):
        raise TargetError(_runs_nothing(where, kind))


def refuse_generator(function: Any, where: str) -> None:
    """Raise TargetError for a generator function."""
    if kind := _kind(function, inspect.isgeneratorfunction):
        raise TargetError(_runs_nothing(where, kind))


def refuse_pending(result: Any, where: str) -> None:
    """Raise TargetError where what a step returned shows that it has not run yet."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "a coroutine" if inspect.iscoroutine(result) else "a generator"
        if inspect.iscoroutine(result):
            result.close()  # else Python warns, later, that it was never awaited
        raise TargetError(_runs_nothing(where, f"a function that returns {kind}"))


def _kind(function: Any, *kinds: Any) -> str:
    names = {
        inspect.isasyncgenfunction: "an async generator",
        inspect.iscoroutinefunction: "an async function",
        inspect.isgeneratorfunction: "a generator function",
    }
    called = getattr(function, "forward", function)
    for form in (called, getattr(called, "__call__", None)):  # noqa: B004 - an object may have an async __call__
        for is_it in kinds:
            if is_it(form):
                return names[is_it]
    return ""


def _runs_nothing(where: str, kind: str) -> str:
    return f"{where} is {kind}, and calling it runs nothing: name a function that runs it to its end"
