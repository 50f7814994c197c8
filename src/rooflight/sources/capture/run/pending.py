"""What a ``StepFinder`` remembers until it knows: a running call, an open phase, where a step may have begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from rooflight.sources.capture.run.callers import Caller


class Call(NamedTuple):
    """A call of a module that is running and may itself be the step."""

    module: nn.Module
    begin: int
    recorded: bool
    elements: int


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
    by: type | None = None  # the model in evaluation mode that was called with gradients on
    backward_end: tuple[int, int] = (0, 0)
    ended_by_backward: bool = False
    only_grads: bool = True  # no call of backward so far
