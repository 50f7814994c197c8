"""The user's own step: import their file, call their function, check what it returns."""

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

from rooflight.workloads.calls import Calls, inputs_of, takes_arguments
from rooflight.workloads.errors import TargetError, missing_package, told_in_one_line
from rooflight.workloads.extras import need_torch
from rooflight.workloads.steps import Step, guarded

_module_numbers = itertools.count(1)

_WANTED = "return a zero-argument callable, or (callable, model)"


def load_step(path: Path, name: str, inputs: str | None = None) -> Step:
    """The step that function ``name`` of the file makes, called without arguments: it returns a zero-argument
    callable, or that and the model. A function (or module) that takes arguments is the step itself, called with what
    the function ``inputs`` of the file returns, by default ``get_inputs``.

    The file's folder is on sys.path while the file is imported and its functions make things. Raises TargetError when
    the file, a function or what it returns is not usable.
    """
    path = path.resolve()
    where = f"{path.name}:{name}"
    with _function_of(path, name, "step") as (module, make):
        if not inspect.isclass(make) and takes_arguments(make):
            run, model = _calls(make, inputs_of(module, where, inputs))
        elif inputs is not None:
            raise TargetError(f"--inputs {inputs}: {where} takes no arguments")
        else:
            run, model = _checked(_called(make, path, name, "step"), where)
    parameter = next(model.parameters(), None) if model is not None else None
    return Step(
        run=guarded(run, prefer=path),
        model=model,
        description=where,
        dtype=None if parameter is None else str(parameter.dtype).removeprefix("torch."),
        device=None if parameter is None else str(parameter.device),
    )


def _calls(function: Any, inputs: list[tuple[Any, ...]]) -> tuple[Callable[[], Any], Any]:
    """The step that calls a function or module, and the model, which is the module."""
    return Calls(function, inputs), function if isinstance(function, need_torch().nn.Module) else None


def made_by(path: Path, name: str, *, makes: str) -> Any:
    """What function ``name`` of the file returns, called without arguments, with the file's folder on sys.path.

    Raises TargetError when the file or the function is not usable; ``makes`` says what for.
    """
    path = path.resolve()
    with _function_of(path, name, makes) as (_, make):
        return _called(make, path, name, makes)


@contextmanager
def _function_of(path: Path, name: str, makes: str) -> Iterator[tuple[ModuleType, Callable[..., Any]]]:
    """The file as a module, and a function of it, while the file's folder is on sys.path."""
    need_torch()
    _check_name(name, path, makes)
    with on_path(path.parent):
        module = imported(path)
        make = getattr(module, name, None)
        if not callable(make):
            raise TargetError(f"{path.name}: {name} is no function")
        yield module, make


def _called(make: Callable[..., Any], path: Path, name: str, makes: str) -> Any:
    if missing := _needed(make):
        raise TargetError(
            f"{path.name}:{name} takes arguments ({', '.join(missing)}): name a function without arguments that "
            f"makes the {makes}"
        )
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path.name}:{name} raised {told_in_one_line(error, prefer=path)}") from error


def _needed(make: Callable[..., Any]) -> list[str]:
    """The arguments that a function cannot be called without; none where its signature is unknown."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variable]


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
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
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
            told = told_in_one_line(error, prefer=path)
            raise TargetError(f"importing {path.name} raised {told}") from error
        raise
    return module


def _checked(made: Any, where: str) -> tuple[Callable[[], Any], Any]:
    nn = need_torch().nn
    run, model = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if isinstance(run, nn.Module):
        raise TargetError(f"{where} returned a model, which needs its inputs: {_WANTED}")
    if not callable(run):
        raise TargetError(f"{where} returned {type(run).__name__}: {_WANTED}")
    if model is not None and not isinstance(model, nn.Module):
        raise TargetError(f"{where} returned {type(model).__name__} as the model: {_WANTED}")
    needed = _required_arguments(run)
    if needed:
        raise TargetError(f"{where} returned a callable that needs {', '.join(needed)}: {_WANTED}")
    return run, model


def _required_arguments(run: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(run).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature: a call shows what they need
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variable]
