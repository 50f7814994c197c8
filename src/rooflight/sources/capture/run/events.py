"""What a script did, as the step finder hears it: each at a moment of ``perf_counter_ns``, with how many autograd nodes
there were. A module, an optimizer or arguments are carried along, and not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple
from weakref import ref

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


class Writes:
    """A weight counts as written where it, or its gradient, is another one or was changed in place. What is written
    through ``.data`` does not show; a script of which nothing shows is as if it wrote after each backward pass.
    """

    def __init__(self) -> None:
        self.accumulates = self.began_to_accumulate = False
        self._sets: list[Collection[int]] = [()]  # by number: the places of the weights that were written together
        self._models: list[ref[Any]] = []
        self._after: dict[int, tuple[int, int, int]] = {}
        self._kept_its_gradients = False

    def follow(self, model: Any) -> None:
        """It is trained."""
        if model is not None and not any(each() is model for each in self._models):
            self._models.append(ref(model))

    def backward_ended(self) -> None:
        """See how the weights and gradients are."""
        self._after = dict(self._states())

    def since_backward(self) -> int:
        """The number of the set of weights that were written since then; 0: none. Of a script that writes them after
        some backward passes only, the passes before were parts of a step.
        """
        now, self.began_to_accumulate = dict(self._states()), False
        found = frozenset(place for place, state in self._after.items() if now.get(place) != state)
        if not found:
            self._kept_its_gradients |= bool(self._after)
            return 0
        if self._kept_its_gradients and not self.accumulates:
            self.accumulates = self.began_to_accumulate = True
        if found not in self._sets:
            self._sets.append(found)
        return self._sets.index(found)

    def _states(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        weights = (each for model in self._models if (it := model()) is not None for each in it.parameters())
        for place, weight in enumerate(weights):
            if (gradient := weight.grad) is not None and not weight.is_inference():
                yield place, (id(gradient), gradient._version, weight._version)


class Ear:
    """What a finder asks of those who hear for it, and tells them; of recorded events nobody has to do anything."""

    def __init__(self) -> None:
        self.writes = Writes()

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

    def moment(self) -> tuple[int, int] | None:
        """The time and the number of nodes now, after something that took long; None: as at the event."""
        return None
