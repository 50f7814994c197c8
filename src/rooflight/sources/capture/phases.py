"""Named phases of a program: ``with rooflight.phase("train/forward"):``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from threading import local
from typing import Any, Final, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class _ThreadState(local):
    def __init__(self) -> None:
        self.names: list[str] = [""]
        self.listeners: list[Callable[[str], object]] = []
        self.ranges: list[int] = []  # for each open NVTX range: how many names there were, its own included


_state = _ThreadState()


class phase:  # noqa: N801 - used like a function: with phase("train/forward")
    """All ops of the block belong to the phase ``name``; of nested phases the innermost counts.

    Also a decorator. On CUDA it is an NVTX range too, so that Nsight shows it. It costs almost nothing while no
    recording and no timer is active. Phases belong to the thread that opens them. Raises ValueError for an empty name.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'a phase is named by a text, such as phase("train/forward"), not {type(name).__name__}')
        if not name:
            raise ValueError('a phase needs a name, such as phase("train/forward")')
        self._name = name

    def __enter__(self) -> phase:
        state = _state
        state.names.append(self._name)
        if _nvtx is not _NONE:
            self._push()
        if state.listeners:
            self._tell(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        state, name = _state, self._name
        if state.names[-1] is name:
            state.names.pop()
        else:
            _close(state.names, name)
        while state.ranges and state.ranges[-1] > len(state.names):
            state.ranges.pop()
            _nvtx.range_pop()
        if state.listeners:
            self._tell(state.names[-1])

    def __call__(self, function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        """Run each call of ``function`` as this phase."""

        @wraps(function)
        def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return run

    def _push(self) -> None:
        if _nvtx is not None or _find_nvtx():
            _nvtx.range_push(self._name)
            _state.ranges.append(len(_state.names))

    def _tell(self, name: str) -> None:
        for listener in tuple(_state.listeners):
            listener(name)


sol_nvtx_range: Final = phase
"""The name of ``phase`` in training loops of Megatron-RL."""

_NONE: Final = object()
_nvtx: Any = None  # torch.cuda.nvtx once the program uses CUDA; _NONE where it never can


def _find_nvtx() -> bool:
    global _nvtx
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is None or version is None:  # not imported yet, or not completely
        return False
    if version.cuda is None:
        _nvtx = _NONE
        return False
    if torch.cuda.is_initialized():
        _nvtx = torch.cuda.nvtx
    return _nvtx is not None


def _close(names: list[str], name: str) -> None:
    """End a phase that is not the innermost: those above it are other tasks', or an interrupt left them open."""
    found = next((place for place in range(len(names) - 1, 0, -1) if names[place] is name), None)
    if found is not None:
        asyncio = sys.modules.get("asyncio")
        in_loop = asyncio is not None and asyncio._get_running_loop() is not None
        del names[found : found + 1 if in_loop else None]


def phases_open() -> int:
    """How many phases are open in this thread."""
    return len(_state.names)


def current_phase() -> str:
    """The innermost open phase of this thread, empty outside all."""
    return _state.names[-1]


def subscribe(listener: Callable[[str], object]) -> None:
    """Call ``listener`` with the new phase at every change on this thread, until ``unsubscribe``."""
    _state.listeners.append(listener)


def unsubscribe(listener: Callable[[str], object]) -> None:
    """Stop calling ``listener``, if it is subscribed."""
    if listener in _state.listeners:
        _state.listeners.remove(listener)


def with_closure_inside(
    args: tuple[Any, ...], kwargs: dict[str, Any], context: Callable[[], AbstractContextManager[Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``Optimizer.step`` (the optimizer first), with a closure that runs inside ``context()``. A hook
    before the step can return them. None if there is no closure.
    """
    closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    if not callable(closure):
        return None

    @wraps(closure)
    def run(*inner_args: Any, **inner_kwargs: Any) -> Any:
        with context():
            return closure(*inner_args, **inner_kwargs)

    return (args, {**kwargs, "closure": run}) if "closure" in kwargs else ((args[0], run, *args[2:]), kwargs)
