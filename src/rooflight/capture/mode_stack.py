"""Torch's stacks of modes: putting a mode on a stack, and taking it off at any place of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeStack:
    """One of torch's stacks of modes of the current thread. ``modes`` returns those on it, outermost first."""

    push: Callable[[Any], None]
    pop: Callable[[], Any]
    modes: Callable[[], Sequence[Any]]

    def take_off(self, mode: object) -> None:
        """Take the innermost ``mode`` off. Those above it stay, since a recording begun later may end later too."""
        above = []
        while (top := self.pop()) is not mode:
            above.append(top)
        for other in reversed(above):
            self.push(other)

    def clear_of(self, mode: object) -> None:
        """Take ``mode`` off as often as it is on the stack: an interrupt may have left it twice."""
        while any(other is mode for other in self.modes()):
            self.take_off(mode)
