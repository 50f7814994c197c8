"""``rooflight.hot``: a function or module that compiles itself where that pays; ``enable_hot_path_detection``: all
that a program calls; ``rooflight.hot_report``: what became of them.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from rooflight.records.report import Report
from rooflight.studies.compiling.hot.detector import HotPath
from rooflight.studies.compiling.hot.functions import FunctionFinder
from rooflight.studies.compiling.hot.loop import HotLoop
from rooflight.studies.compiling.hot.plan import FunctionEntry, ModuleEntry, is_hot
from rooflight.studies.compiling.hot.result import report_of
from rooflight.studies.compiling.hot.state import HotOptions, Seen
from rooflight.studies.compiling.refusals import is_compiled

_Hot = TypeVar("_Hot", bound=Callable[..., Any])
_MOST_SEEN: Final = 1000

seen: deque[Seen] = deque(maxlen=_MOST_SEEN)
"""The loops of this process, the last ones."""


def hot(
    target: _Hot,
    *,
    expected_runs: int | None = None,
    hot_threshold: int = 10,
    on_hot: Callable[[HotPath], object] | None = None,
    check: bool = True,
    remember: bool = True,
    backend: Any = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    limit_s: float = 600.0,
) -> _Hot:
    """A function that calls ``target``, or the module ``target`` itself, compiled by torch as soon as that pays.

    The first ``hot_threshold`` calls of a kind (dtypes, ranks, devices, train or eval) run eagerly; some of them are
    recorded, to see whether they repeat. ``on_hot`` is called with the pattern when they do. With ``expected_runs``,
    the number of calls in all, a kind is compiled if it gains more in the calls left than compiling takes; without it,
    once it has run for as long as compiling takes. ``check``: the first compiled runs are compared with eager ones in
    results, gradients and written tensors. Then eager and compiled runs alternate, timed. Code that differs, is slower,
    does not compile or takes longer than ``limit_s`` to compile is given up, and calls are eager as before. Once all is
    decided, calls go straight to the code chosen. ``rooflight.hot_report()`` says what was decided and why.
    ``remember``: the outcome is kept beside the calibrations, for the next run of the same code on the same machine and
    versions.

    A module of which several parts are alike, such as transformer blocks, has these compiled, once for all of them; a
    function that runs a backward pass or an optimizer has the modules compiled that it calls. ``backend``, ``mode`` and
    ``dynamic`` are those of ``torch.compile``.

    Raises ValueError for what cannot be compiled by calling it (a class, a coroutine or generator function), and
    numbers below 1.
    """
    options = HotOptions(
        expected_runs=expected_runs,
        hot_threshold=hot_threshold,
        on_hot=on_hot,
        check=check,
        remember=remember,
        backend=backend,
        mode=mode,
        dynamic=dynamic,
        limit_s=limit_s,
    )
    loop = attached(target, options)
    found: Any = target if loop is None or loop.entry.module is not None else loop.entry.call
    return found  # type: ignore[no-any-return]


def attached(target: Any, options: HotOptions) -> HotLoop | None:
    """The loop of a function or module, which is observed from now on; None for one that is compiled already."""
    _check(target)
    if is_hot(target):
        return None
    if is_compiled(target):
        name = type(getattr(target, "_orig_mod", target)).__name__ if isinstance(target, nn.Module) else target.__name__
        seen.append(Seen(name, note="torch.compile was applied to it before"))
        return None
    loop = HotLoop(ModuleEntry(target) if isinstance(target, nn.Module) else FunctionEntry(target), options)
    seen.append(loop.seen)
    return loop


def _check(target: Any) -> None:
    if isinstance(target, type) or not callable(target):
        raise ValueError(f"{target!r}: this is a class: pass a function or a module object")
    what = inspect.unwrap(target) if inspect.isroutine(target) else target
    if inspect.iscoroutinefunction(what) or inspect.isasyncgenfunction(what):
        raise ValueError(f"{what.__qualname__} is async: pass the function or module whose work it awaits")
    if inspect.isgeneratorfunction(what):
        raise ValueError(f"{what.__qualname__} is a generator: pass the function or module that it calls for each item")


def hot_report() -> Report:
    """What was seen of the loops of this process, what was decided of them, and what that gained."""
    for detection in _enabled:
        detection.finder.describe()
    return report_of(tuple(seen), detecting=bool(_enabled))


ENOUGH: Final = 20_000
"""After so many calls of modules that are all known, no new ones are looked for: the hook costs each of them 1 µs."""
_WRAPPERS: Final = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")

_enabled: list[HotPathDetection] = []
_lock = Lock()


class HotPathDetection:
    """The detection while it is on. ``disable()``, or the end of a ``with`` block, leaves the program as it was."""

    def __init__(self, options: HotOptions) -> None:
        self._options = options
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._loops: list[weakref.ref[HotLoop]] = []
        self._functions: list[HotLoop] = []
        self._calls = 0
        self._handle: Any = register_module_forward_pre_hook(self._called)
        self.finder = FunctionFinder(self._found, seen.append)

    def _found(self, entry: FunctionEntry) -> Seen:
        loop = HotLoop(entry, self._options)
        seen.append(loop.seen)
        with _lock:
            self._functions.append(loop)
        return loop.seen

    def _called(self, module: nn.Module, _args: Any) -> None:
        if is_dynamo_compiling():
            return
        known = self._known.get(id(module))
        if known is not None and known() is module:
            self._calls += 1
            if self._calls > ENOUGH:
                self._look_no_more()
            return
        self._calls = 0
        self._meet(module)

    def _meet(self, module: nn.Module) -> None:
        with _lock:
            if any(loop is not None and loop.busy for loop in self._all()):
                return  # inside a call of a loop; of another thread's, it is met the next time
            if type(module).__name__ in _WRAPPERS or isinstance(module, torch.jit.ScriptModule):
                self._known[id(module)] = weakref.ref(module)
                return
            for each in module.modules():
                self._known[id(each)] = weakref.ref(each)
            loop = attached(module, self._options)
            if loop is not None:
                self._loops.append(weakref.ref(loop))

    def _all(self) -> list[HotLoop | None]:
        return [*(found() for found in self._loops), *self._functions]

    def _look_no_more(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def disable(self) -> None:
        """Take the detection off all modules; those that were compiled run eagerly again."""
        self._look_no_more()
        self.finder.stop()
        for loop in self._all():
            if loop is not None:
                loop.stop()
        self._loops.clear()
        self._functions.clear()
        self._known.clear()
        if self in _enabled:
            _enabled.remove(self)

    def __enter__(self) -> HotPathDetection:
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()


def enable_hot_path_detection(hot_threshold: int = 10, **options: Any) -> HotPathDetection:
    """Treat every outermost module that the program calls from now on as ``rooflight.hot(module, **options)`` does.
    Modules inside of these belong to them. So are functions without modules that a loop of this thread calls in each
    iteration; the report names loops whose body is no function, and why they are not compiled.

    Takes the place of an earlier call. Raises ValueError for numbers below 1.
    """
    detection = HotPathDetection(HotOptions(hot_threshold=hot_threshold, **options))
    for earlier in list(_enabled):
        earlier.disable()
    _enabled.append(detection)
    return detection
