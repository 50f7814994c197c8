"""Named phases of a program: ``with rooflight.phase("train/forward"):``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local


class _ThreadState(local):
    def __init__(self) -> None:
        self.names: list[str] = [""]
        self.listeners: list[Callable[[str], None]] = []


_state = _ThreadState()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Everything that runs inside belongs to the phase ``name``; of nested phases the innermost counts.

    Costs next to nothing while nothing is recorded. Phases belong to the thread that opens them. Raises ValueError
    for an empty name.
    """
    if not name:
        raise ValueError('a phase needs a name, such as phase("train/forward")')
    names = _state.names
    depth = len(names)
    try:
        names.append(name)
        _tell(name)
        yield
    finally:
        del names[depth:]
        _tell(names[-1])


def current_phase() -> str:
    """The innermost open phase of this thread, empty outside all."""
    return _state.names[-1]


def subscribe(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the new phase at every change on this thread, until ``unsubscribe``."""
    _state.listeners.append(listener)


def unsubscribe(listener: Callable[[str], None]) -> None:
    """Stop telling ``listener``, if it is told."""
    if listener in _state.listeners:
        _state.listeners.remove(listener)


def _tell(name: str) -> None:
    for listener in _state.listeners:
        listener(name)
