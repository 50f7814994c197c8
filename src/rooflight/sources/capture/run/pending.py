"""What a ``StepFinder`` remembers: modules, a running call, an open phase, where a step may have begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rooflight.sources.capture.run.events import Called, Caller, Weights
from rooflight.sources.capture.run.steps import Steps


class Modules:
    """The modules that were called from outside others, by number; ``heaviest`` is that with the most parameters."""

    def __init__(self) -> None:
        self.calls: dict[int, Steps] = {}
        self.called: dict[int, tuple[Caller, Weights]] = {}
        self.heaviest = -1

    def note(self, event: Called) -> bool:
        """A module is called. Returns whether it is a new one, and has the most parameters so far."""
        if event.number in self.calls:
            return False
        self.calls[event.number] = Steps()
        self.called[event.number] = Caller(event.kind, event.where), event.weights
        heavier = self.heaviest < 0 or event.weights.elements > self.called[self.heaviest][1].elements
        self.heaviest = event.number if heavier else self.heaviest
        return heavier


class Call(NamedTuple):
    """A call of a module that is running and may itself be the step."""

    event: Called
    recorded: bool


class Block(NamedTuple):
    """An open outermost phase: what had ``ended`` and was recorded before it, and whether it began within a step."""

    caller: Caller
    begin: int
    nodes: int
    known: tuple[int, int, int]
    ended: tuple[int, int]
    recordings: int
    inside: bool


@dataclass(slots=True)
class Undecided:
    """What shows only when a step ends: where it may have begun, and whether a backward pass ended it."""

    first: tuple[int, int, tuple[int, int, int]] | None = None  # where the first step may have begun
    with_gradients_since: int = 0
    by: str = ""  # the model in evaluation mode that was called with gradients on
    backward_end: tuple[int, int] = (0, 0)
    ended_by_backward: bool = False
    only_grads: bool = True  # no call of backward so far
