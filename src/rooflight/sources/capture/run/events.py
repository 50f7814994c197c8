"""What a script did, as the step finder hears it: each at a moment of ``perf_counter_ns``, with how many autograd nodes
there were. A module, an optimizer or arguments are carried along, and not looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rooflight.records.account import NO_PLACE, Place


class Caller(NamedTuple):
    """The name in reports, and the line of the script that calls it."""

    name: str
    where: Place


class Weights(NamedTuple):
    """Elements of a module's parameters, and whether one of them is trained."""

    elements: int
    trained: bool


class Called(NamedTuple):
    """An outermost call of the module ``number``, with gradients on or not, begins. ``size``: elements of its first
    input. ``line``: of the script, and ``where`` the same at the first call, where they are wanted.
    """

    at: int
    nodes: int
    number: int
    kind: str
    weights: Weights
    grads: bool
    training: bool
    size: int = 0
    line: str = ""
    where: Place = NO_PLACE
    module: Any = None
    args: Any = ()


class Returned(NamedTuple):
    """The call that was waited for ended."""

    at: int
    nodes: int
    grads: bool


class BackwardBegins(NamedTuple):
    """A backward pass, not one inside another."""

    at: int
    nodes: int


class BackwardEnds(NamedTuple):
    """It returned; ``where`` at the first."""

    at: int
    nodes: int
    where: Place = NO_PLACE


class OptimizerBegins(NamedTuple):
    """``Optimizer.step`` of the object ``who``; ``runs_model``: it is given a closure."""

    at: int
    nodes: int
    who: int
    kind: str
    runs_model: bool


class OptimizerEnds(NamedTuple):
    """It returned; ``where`` at the first time."""

    at: int
    nodes: int
    who: int
    kind: str
    where: Place = NO_PLACE
    optimizer: Any = None


class Fetches(NamedTuple):
    """A loader with so many workers is asked for a batch of ``data``."""

    at: int
    nodes: int
    data: int
    workers: int


class Fetched(NamedTuple):
    """The loader has the batch that it was asked for when ``begun``."""

    at: int
    nodes: int
    begun: int


class Saves(NamedTuple):
    """A file is about to be saved."""

    at: int
    nodes: int


class Saved(NamedTuple):
    """The file that was begun when ``begun`` is written."""

    at: int
    nodes: int
    begun: int


class PhaseChanges(NamedTuple):
    """The script enters a phase, or leaves the outermost one: no name."""

    at: int
    nodes: int
    name: str
    where: Place = NO_PLACE


class FunctionBegins(NamedTuple):
    """The function that is the step is called."""

    at: int
    nodes: int
    where: Place = NO_PLACE


class FunctionEnds(NamedTuple):
    """It returned, or raised."""

    at: int
    nodes: int


Event = (
    Called | Returned | BackwardBegins | BackwardEnds | OptimizerBegins | OptimizerEnds | Fetches | Fetched | Saves
    | Saved | PhaseChanges | FunctionBegins | FunctionEnds
)  # fmt: skip


class Ear:
    """What a finder asks of those who hear for it, and tells them; of recorded events nobody has to do anything."""

    def watch(self) -> None:
        """Hear of calls of modules from here on."""

    def look_away(self) -> None:
        """Hear of none until ``watch``."""

    def await_return(self, module: Any) -> None:
        """Hear when the call of this module returns."""

    def forget(self, module: Any) -> None:
        """It is no longer waited for."""

    def hasten(self, model: Any, optimizer: Any) -> None:
        """The step is known and recorded: it is this model's and this optimizer's."""

    def slow_down(self) -> None:
        """It is not known any more."""

    def written(self) -> int:
        """The number of the set of weights that were written since the last backward pass; 0: none."""
        return 0

    def follow(self, model: Any) -> None:
        """The weights of this model are trained."""

    def sees_backward(self) -> None:
        """A backward pass ended: note how weights and gradients are."""

    accumulates = began_to_accumulate = False
    """Whether backward passes add up gradients before weights are written; and whether ``written`` just found that."""

    def moment(self) -> tuple[int, int] | None:
        """The time and the number of nodes now, after something that took long; None: as at the event."""
        return None
