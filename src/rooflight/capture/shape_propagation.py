"""Keeps ops out of recordings that DTensor runs on fake tensors: for each new call, to find the shape of its result.

These ops are no part of the program, and torch does not repeat them. While a recording is open, the context that
DTensor enters for them (``ShardingPropagator._fake_mode_lock``, which torch has for its own tests) also pauses the
recordings of that thread.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from threading import Lock, local
from types import TracebackType
from typing import Any, Final

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from rooflight.capture.dispatch import DispatchSource

_MODULE: Final = "torch.distributed.tensor._sharding_prop"


class _LookingAway(local):
    """The context. It also enters the one that it replaces."""

    def __init__(self, replaced: AbstractContextManager[Any]) -> None:
        self.replaced = replaced
        self._sources: list[list[DispatchSource]] = []

    def __enter__(self) -> None:
        self.replaced.__enter__()
        sources = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, DispatchSource)]
        for source in sources:
            source.blind += 1
        self._sources.append(sources)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for source in self._sources.pop():
            source.blind -= 1
        self.replaced.__exit__(kind, error, trace)


_lock = Lock()
_open: set[DispatchSource] = set()


def look_away(source: DispatchSource) -> None:
    """Install the context where DTensor is loaded; a program that loads it later inside the recording is recorded with
    these ops.
    """
    with _lock:
        _open.add(source)
        propagator = _propagator()
        if propagator is not None and not isinstance(propagator._fake_mode_lock, _LookingAway):
            propagator._fake_mode_lock = _LookingAway(propagator._fake_mode_lock)


def stop_looking_away(source: DispatchSource) -> None:
    """Undo ``look_away``; the last recording to do so puts the replaced context back."""
    with _lock:
        _open.discard(source)
        propagator = _propagator()
        if propagator is not None and not _open and isinstance(propagator._fake_mode_lock, _LookingAway):
            propagator._fake_mode_lock = propagator._fake_mode_lock.replaced


def _propagator() -> Any:
    found = getattr(sys.modules.get(_MODULE), "ShardingPropagator", None)
    return found if hasattr(found, "_fake_mode_lock") else None
