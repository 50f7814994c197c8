"""Waits until the script imports torch, and then lets a ``StepFinder`` hear of modules, backward passes, optimizers,
loaders and checkpoints. Children that are forked, or spawned by multiprocessing, are watched too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflight.capture.run.finder import StepFinder


class WhenImported(MetaPathFinder, Loader):
    """Calls ``then`` once, after the module ``name`` was imported for the first time."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._loader: Any = None

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        """As Python's own finders find it."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run it under its own loader."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()


def install(finder: StepFinder) -> None:
    """Set the hooks, for the rest of the process. What an error in one of them leaves is a script without hooks."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    for name in ("called", "returned", "optimizer_begins", "optimizer_ended", "backward_begins", "backward_ended",
                 "loader_begins", "loader_ended", "checkpoint_begins", "checkpoint_ended",
                 "function_begins", "function_ended"):  # fmt: skip
        setattr(finder, name, _unharmed(finder, getattr(finder, name)))
    register_optimizer_step_pre_hook(finder.optimizer_begins)
    register_optimizer_step_post_hook(finder.optimizer_ended)
    _watch_backward(finder)
    _watch_loaders_and_checkpoints(finder)
    _hide_hook()
    finder.watch()


def _watch_backward(finder: StepFinder) -> None:
    import torch

    engine: Any = torch.autograd
    run_backward, in_backward = engine._engine_run_backward, torch._C._current_graph_task_id

    @wraps(run_backward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if in_backward() != -1 or not finder.counts_backward(accumulates=bool(kwargs.get("accumulate_grad"))):
            return run_backward(*args, **kwargs)
        if finder.in_known_step:
            finder.backwards += 1
            return run_backward(*args, **kwargs)
        finder.backward_begins()
        found = run_backward(*args, **kwargs)
        finder.backward_ended()
        return found

    engine._engine_run_backward = watched


def _watch_loaders_and_checkpoints(finder: StepFinder) -> None:
    import torch
    import torch.utils.data.dataloader as loaders

    following, write = loaders._BaseDataLoaderIter.__next__, torch.serialization._save

    @wraps(following)
    def watched_next(self: Any) -> Any:
        begin = finder.loader_begins(getattr(self, "_dataset", None))
        try:
            return following(self)
        finally:
            finder.loader_ended(begin)

    @wraps(write)
    def watched_save(*args: Any, **kwargs: Any) -> Any:
        begin = finder.checkpoint_begins()
        try:
            return write(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            finder.checkpoint_ended(begin)

    loaders._BaseDataLoaderIter.__next__ = watched_next  # type: ignore[method-assign]
    torch.serialization._save = watched_save


def _hide_hook() -> None:
    """Torch warns of hooks around compiled modules; the finder's is off inside calls."""
    from torch.nn.modules import module as modules

    from rooflight.capture.run.finder import HOOK

    any_hook: Any = modules._has_any_global_hook

    @wraps(any_hook)
    def any_other_hook() -> bool:
        mine = modules._global_forward_pre_hooks.pop(HOOK, None)  # type: ignore[call-overload]
        found = bool(any_hook())
        if mine is not None:
            modules._global_forward_pre_hooks[HOOK] = mine  # type: ignore[index]
        return found

    modules._has_any_global_hook = any_other_hook


def _unharmed(finder: StepFinder, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method; an error in it ends the watching, not the script."""

    @wraps(method)
    def run(*args: Any) -> Any:
        if finder.broken:
            return None
        try:
            return method(*args)
        except Exception as error:
            finder.broken = f"{type(error).__name__}: {error}"
            finder.leave()
            return None

    return run


def before_terminated(then: Callable[[int], None]) -> Callable[[], None]:
    """Call ``then`` with -15 before SIGTERM ends the process, unless the script handles it; what the script sees of the
    signal is as ever. Returns what a child that was forked calls, to have no handler.
    """
    number, default, set_handler, get_handler = signal.SIGTERM, signal.SIG_DFL, signal.signal, signal.getsignal

    def ends(*_: object) -> None:
        set_handler(number, default)
        then(-number)
        os.kill(os.getpid(), number)

    def shown(handler: Any) -> Any:
        return default if handler is ends else handler

    @wraps(set_handler)
    def watched_signal(signalnum: int, handler: Any) -> Any:
        return shown(set_handler(signalnum, ends if signalnum == number and handler == default else handler))

    if get_handler(number) == default:
        set_handler(number, ends)
        vars(signal).update(signal=watched_signal, getsignal=wraps(get_handler)(lambda each: shown(get_handler(each))))

    def undo() -> None:
        if get_handler(number) is ends:
            set_handler(number, default)
        signal.signal, signal.getsignal = set_handler, get_handler

    return undo


def before_exit(then: Callable[[int], None]) -> None:
    """Call ``then`` with the exit code before ``os._exit``, which runs no handler."""
    leave = os._exit

    @wraps(leave)
    def watched_exit(code: int) -> Any:
        then(code)
        leave(code)

    os._exit = watched_exit  # type: ignore[assignment]
