"""Runs a script or a module as ``python`` itself does, in this process: names, paths, errors and exit codes."""

from __future__ import annotations

import ast
import builtins
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final

from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.errors import of_script


def start(target: str, arguments: Sequence[str], *, as_module: bool) -> None:
    """Run the file ``target``, or with ``as_module`` the module of that name, as ``__main__``. Whatever it raises is
    raised; its traceback, as it will be printed, begins in the script.
    """
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    given = ["-m", target] if as_module else [target]
    sys.orig_argv[:] = [sys.executable, *given, *arguments]
    sys.argv[:] = [target, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = first_path(target, as_module=as_module)
    try:
        if as_module:
            vars(runpy)["_run_module_as_main"](target)  # what python -m calls
        else:
            path = os.path.abspath(target)  # noqa: PTH100 - as python does: links are kept
            loader = _Script("__main__", path)
            main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
            loader.exec_module(main)
    except SystemExit:
        raise
    except BaseException:
        _hide_launcher()
        raise


def first_path(target: str, *, as_module: bool) -> str:
    """Where a script's own modules are."""
    return str(Path.cwd()) if as_module else os.path.realpath(Path(target).parent)


class _Script(SourceFileLoader):
    """The loader of a main script, which is compiled anew each time and leaves no file."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - its base's parameter
        return _compiled(self)


_marked: tuple[str, list[str]] | None = None


def mark_function(file: str, name: str, ear_of: Callable[[], Any]) -> None:
    """Let each call of the function ``name`` (``Class.method`` too) of ``file``, once that is loaded, be a step of the
    ``Listening`` that is there by then. Lines stay where they are.
    """
    global _marked

    def as_step(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            ear = ear_of()
            if ear is None:
                return function(*args, **kwargs)
            ear.tell(events.FunctionBegins)
            try:
                return function(*args, **kwargs)
            finally:
                ear.tell(events.FunctionEnds)

        return run

    setattr(builtins, _MARK, as_step)
    path, load = os.path.realpath(file), SourceFileLoader.get_code
    _marked = path, name.split(".")

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return _compiled(self) if os.path.realpath(self.path) == path else load(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def _compiled(loader: SourceFileLoader) -> CodeType:
    source = loader.get_data(loader.path)
    if _marked is None or os.path.realpath(loader.path) != _marked[0]:
        code: CodeType = loader.source_to_code(source, loader.path)
        return code
    tree = ast.parse(source, loader.path)
    _decorate(tree, _marked[1])
    return compile(tree, loader.path, "exec", dont_inherit=True)


_MARK: Final = "__rooflight_step__"


def _decorate(tree: ast.AST, names: list[str]) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            if getattr(each, "name", None) != names[0]:
                continue
            if len(names) > 1 and isinstance(each, ast.ClassDef):
                _decorate(each, names[1:])
            elif len(names) == 1 and isinstance(each, ast.FunctionDef):
                each.decorator_list.append(ast.copy_location(ast.Name(_MARK, ast.Load()), each))


def _hide_launcher() -> None:
    """Print the error that is on its way out as the script's own, by the hook it has now."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook
        error.__traceback__ = of_script(error, start.__code__)
        hook(kind, error, error.__traceback__)

    sys.excepthook = show
