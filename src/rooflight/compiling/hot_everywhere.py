"""``enable_hot_path_detection``: every module that a program calls is a hot loop, without a change of the program."""

from __future__ import annotations

import weakref
from threading import Lock
from typing import Any, Final

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from rooflight.compiling.hot_calls import attached
from rooflight.compiling.hot_loop import HotLoop
from rooflight.compiling.hot_seen import HotOptions

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
        self._calls = 0
        self._handle: Any = register_module_forward_pre_hook(self._called)

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
        """An outermost module that was not called before: those inside of it are its own business."""
        with _lock:
            if any(loop is not None and loop.busy for loop in (found() for found in self._loops)):
                return  # inside a call of a loop; of another thread's, it is met the next time
            if type(module).__name__ in _WRAPPERS or isinstance(module, torch.jit.ScriptModule):
                self._known[id(module)] = weakref.ref(module)
                return
            for each in module.modules():
                self._known[id(each)] = weakref.ref(each)
            loop = attached(module, self._options)
            if loop is not None:
                self._loops.append(weakref.ref(loop))

    def _look_no_more(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def disable(self) -> None:
        """Take the detection off all modules; those that were compiled run eagerly again."""
        self._look_no_more()
        for found in self._loops:
            if (loop := found()) is not None:
                loop.stop()
        self._loops.clear()
        self._known.clear()
        if self in _enabled:
            _enabled.remove(self)

    def __enter__(self) -> HotPathDetection:
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()


def enable_hot_path_detection(hot_threshold: int = 10, **options: Any) -> HotPathDetection:
    """Treat every outermost module that the program calls from now on as ``rooflight.hot(module, **options)`` does.
    Modules inside of these belong to them.

    Takes the place of an earlier call. Raises ValueError for numbers below 1.
    """
    detection = HotPathDetection(HotOptions(hot_threshold=hot_threshold, **options))
    for earlier in list(_enabled):
        earlier.disable()
    _enabled.append(detection)
    return detection
