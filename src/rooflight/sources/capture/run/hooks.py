"""Waits until the script imports torch, and then lets ``Listening`` hear of modules, backward passes, optimizers,
loaders and checkpoints. Children that are forked, or spawned by multiprocessing, are watched too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.capture.own_code import is_users, place_in
from rooflight.sources.capture.phases import subscribe
from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.workers import watch_workers

if TYPE_CHECKING:
    from rooflight.sources.capture.run.listening import Listening


class WhenImported(MetaPathFinder):
    """Calls ``then`` once, after the module ``name`` was imported for the first time."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then, self._looks = name, then, False

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        """As Python's own finders find it. A script may look for it, too, before it imports it."""
        if name != self._name or self._looks:
            return None
        self._looks = True
        try:
            spec = find_spec(name)
        finally:
            self._looks = False
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._then()

            loader.exec_module = exec_module
        return spec


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call ``then`` after a module was imported: at once where it is there."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, WhenImported(name, then))


_PROGRAMS: Final = dict[str, str]()  # scripts of the user's that were begun by subprocess, and at which line


def follow_programs() -> None:
    """Take note of other scripts that this process begins by subprocess: they are not watched."""

    def listen() -> None:
        process: Any = sys.modules["subprocess"].Popen
        begin = process.__init__

        @wraps(begin)
        def init(self: Any, args: Any, *rest: Any, **how: Any) -> None:
            words = args.split() if isinstance(args, str) else map(str, args) if isinstance(args, Iterable) else ()
            script = next(
                (word for word in words if word.endswith(".py") and is_users(str(Path(word).absolute()))), None
            )
            frame = sys._getframe(1)
            while frame.f_back is not None and not is_users(frame.f_code.co_filename):
                frame = frame.f_back
            if script is not None and is_users(frame.f_code.co_filename):
                _PROGRAMS.setdefault(script, place_in(frame.f_code, frame.f_lineno).at)
            begin(self, args, *rest, **how)

        process.__init__ = init

    when_imported("subprocess", listen)


def programs_begun() -> str:
    """Which scripts were begun so; empty if none was."""
    named = ", ".join(f"{script} ({at})" for script, at in _PROGRAMS.items())
    return named and f"begun by subprocess, and not watched: {named}"


def install(ear: Listening, folder: Path | None = None) -> None:
    """Set the hooks, for the rest of the process. What an error in one of them leaves is a script without hooks.
    Workers of loaders leave their lines in ``folder``.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    for name in ("called", "returned", "optimizer_begins", "optimizer_ended", "tell"):
        setattr(ear, name, _unharmed(ear, getattr(ear, name)))
    register_optimizer_step_pre_hook(ear.optimizer_begins)
    register_optimizer_step_post_hook(ear.optimizer_ended)
    _watch_backward(ear)
    _watch_loaders_and_checkpoints(ear)
    if folder is not None:
        watch_workers(folder)
    subscribe(partial(ear.tell, events.PhaseChanges))
    _hide_hook()
    ear.watch()


def _watch_backward(ear: Listening) -> None:
    import torch

    engine: Any = torch.autograd
    run_backward, in_backward = engine._engine_run_backward, torch._C._current_graph_task_id

    @wraps(run_backward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if in_backward() != -1 or not ear.finder.counts_backward(accumulates=bool(kwargs.get("accumulate_grad"))):
            return run_backward(*args, **kwargs)
        ear.tell(events.BackwardBegins)
        found = run_backward(*args, **kwargs)
        ear.tell(events.BackwardEnds)
        return found

    engine._engine_run_backward = watched


def _watch_loaders_and_checkpoints(ear: Listening) -> None:
    import torch
    import torch.utils.data.dataloader as loaders

    following, write = loaders._BaseDataLoaderIter.__next__, torch.serialization._save

    @wraps(following)
    def watched_next(self: Any) -> Any:
        data, first = getattr(self, "_dataset", None), not getattr(self, "_num_yielded", 1)
        begin = ear.tell(events.Fetches, id(data), getattr(self, "_num_workers", 0))
        try:
            batch = following(self)
        finally:
            ear.tell(events.Fetched, begin)
        if first:
            ear.finder.waits.begins_epoch(id(data), batch)
        return batch

    @wraps(write)
    def watched_save(*args: Any, **kwargs: Any) -> Any:
        begin = ear.tell(events.Saves)
        try:
            return write(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            ear.tell(events.Saved, begin)

    loaders._BaseDataLoaderIter.__next__ = watched_next  # type: ignore[method-assign]
    torch.serialization._save = watched_save


def _hide_hook() -> None:
    """Torch warns of hooks around compiled modules; the finder's is off inside calls."""
    from torch.nn.modules import module as modules

    from rooflight.sources.capture.run.listening import HOOK

    any_hook: Any = modules._has_any_global_hook

    @wraps(any_hook)
    def any_other_hook() -> bool:
        mine = modules._global_forward_pre_hooks.pop(HOOK, None)  # type: ignore[call-overload]
        found = bool(any_hook())
        if mine is not None:
            modules._global_forward_pre_hooks[HOOK] = mine  # type: ignore[index]
        return found

    modules._has_any_global_hook = any_other_hook


def _unharmed(ear: Listening, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method; an error in it ends the watching, not the script."""

    @wraps(method)
    def run(*args: Any) -> Any:
        finder = ear.finder
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
