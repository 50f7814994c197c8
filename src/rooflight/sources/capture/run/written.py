"""Which weights a script without an optimizer writes after a backward pass: it may run several before it does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from weakref import ref

from torch import nn


class Written:
    """A weight counts as written where it, or its gradient, is another one or was changed in place. What is written
    through ``.data`` does not show; a script of which nothing shows is as if it wrote after each backward pass.
    """

    def __init__(self) -> None:
        self.accumulates = self.began_to_accumulate = False
        self._sets: list[Collection[int]] = [()]  # by number: the places of the weights that were written together
        self._models: list[ref[nn.Module]] = []
        self._after: dict[int, tuple[int, int, int]] = {}
        self._kept_its_gradients = False

    def follow(self, model: nn.Module) -> None:
        """It is trained."""
        if not any(each() is model for each in self._models):
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
