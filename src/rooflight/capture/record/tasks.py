"""TaskSource: a recording that begins in an asyncio task, and has the ops of its context alone.

Torch's modes and hooks belong to a thread, in which tasks take turns. Such a recording therefore asks whether an op is
its own: of the task that it began in, or of one that this started meanwhile. All others ask nothing.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import count
from threading import get_ident
from typing import Any, Final

from rooflight.capture.phases import phases_open
from rooflight.capture.record.dispatch import DispatchSource

_open: ContextVar[tuple[int, ...]] = ContextVar("rooflight_recordings", default=())
_count: Final = count()


class TaskSource(DispatchSource):
    """A source that is asked whether it is ``here`` before anything is noted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._number = next(_count)
        _open.set((*_open.get(), self._number))
        self._open_phases = phases_open()
        self._phases: list[str] = []

    @property
    def here(self) -> bool:  # type: ignore[override]
        """Whether the code that runs now belongs to the context that the recording began in."""
        if get_ident() == self.thread:
            return self._number in _open.get()
        task: Any = asyncio.current_task(self._loop)  # it waits while a thread of autograd's runs its backward pass
        if hasattr(task, "get_context"):  # from Python 3.12 on
            return self._number in task.get_context().get(_open, ())
        return task is self._task

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.here:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def set_phase(self, name: str) -> None:
        """Begin or end a phase of this thread, which counts if it is of this context."""
        before, self._open_phases = self._open_phases, phases_open()
        if not self.here:
            return
        if not self._phases and any(isinstance(mode, TaskSource) and mode._task != self._task for mode in self.modes()):
            name = ""  # a phase that is open may be the other task's
        if self._open_phases <= before and self._phases:
            self._phases.pop()
        if self._open_phases >= before or not self._phases:
            self._phases.append(name)
        super().set_phase(self._phases[-1])

    def leave(self) -> None:
        """Take it off the stack, and out of the context."""
        super().leave()
        _open.set(tuple([number for number in _open.get() if number != self._number]))


def in_task() -> bool:
    """Whether an asyncio task runs in this thread."""
    return asyncio._get_running_loop() is not None and asyncio.current_task() is not None
