"""Run: how a script ran, as ``rooflight run`` watched it: what a step was, how long steps took, what lay between."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StepKind(StrEnum):
    """What ends a step: a call of ``Optimizer.step``, of ``backward``, of a module, or of a function that was named."""

    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    MODULE = "module"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """The step of a script: ``count`` of ``name`` ran, called at ``where`` (``train.py:112``), each from what
    ``begins`` says. ``calls``: how often each of several optimizers stepped. ``recorded`` is the number of the recorded
    step, from 1; None where none could be.
    """

    kind: StepKind
    name: str
    where: str
    count: int
    begins: str
    recorded: int | None
    calls: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What lay between steps: seconds in the mean of a step, and their ``share`` of the time from the first step's end
    to the last's.
    """

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SameSteps:
    """Steps that did the same: ``count`` of ``backwards`` calls of backward and ``nodes`` autograd nodes each, and the
    median of those that were timed. ``recorded``: the recorded step is one of them.
    """

    count: int
    backwards: int
    nodes: int
    median_s: float | None
    recorded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of ``script``. ``step`` is None where none was found; ``seen`` then says what was. ``alike`` has the sizes
    of steps, the most frequent first. ``exit_code`` is the script's, None if it is not known.
    """

    script: str
    exit_code: int | None
    step: RunStep | None = None
    between: tuple[Between, ...] = ()
    alike: tuple[SameSteps, ...] = ()
    seen: str = ""
