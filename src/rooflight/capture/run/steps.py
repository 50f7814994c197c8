"""Steps: when each step of a script began and ended, what it did, and what lay before it."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from rooflight.records.timeline import Between, SameSteps

_MOST: Final = 1 << 20  # calls that are kept: 64 MB
_LONGEST_CYCLE: Final = 64
_SIZES: Final = 6  # of steps that a report tells apart
KNOWN: Final = ("loader", "evaluation", "checkpoint")  # of the time between steps; the rest is "other"
_WIDTH: Final = 5 + len(KNOWN)


class Steps:
    """The calls of one kind. Where several optimizers step in turn, a step is a cycle of their calls."""

    def __init__(self) -> None:
        self.count = self.backwards = self.last_end = self.total = 0
        self._numbers = array("q")
        self._newest: deque[int] = deque(maxlen=2 * _LONGEST_CYCLE)  # callers

    def add(self, begin: int, end: int, caller: int, backwards: int, nodes: int, known: tuple[int, int, int]) -> None:
        """One more, from ``begin`` to ``end`` (ns), by the optimizer or module number ``caller``: how often backward
        ran in it, how many autograd nodes it made, and how many ns of each ``known`` kind had passed when it began.
        None pass within it.
        """
        self.count += 1
        self.backwards += backwards
        self.total += end - begin
        self.last_end = end
        self._newest.append(caller)
        if self.count <= _MOST:
            self._numbers.extend((begin, end, caller, backwards, nodes, *known))

    def cycle(self) -> int | None:
        """How many calls make a step: 1 of one optimizer. None where no cycle of several was seen twice."""
        callers = list(self._newest)
        if len(set(callers)) <= 1:
            return 1
        for length in range(2, len(callers) // 2 + 1):
            newest = callers[-length:]
            if newest == callers[-2 * length : -length] and set(newest) == set(callers):
                return length
        return None

    def calls_of(self) -> Counter[int]:
        """How often each caller called."""
        return Counter(self._columns()[2].tolist())

    def turns(self, cycle: int) -> int:
        """In how many turns of the script's loop the optimizer steps that steps in most, of those that make a step. A
        turn begins with backward passes.
        """
        _, _, callers, backwards, *_ = self._whole(cycle)
        if not len(callers):
            return 1
        turn = np.cumsum(backwards[-1] > 0)
        return max(len(set(turn[callers[-1] == each])) for each in set(callers[-1]))

    def seconds(self, cycle: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How long each step of ``cycle`` calls took."""
        begins, ends, *_ = self._whole(cycle)
        return np.asarray((ends[:, -1] - begins[:, 0]) * 1e-9)

    def between(self, cycle: int, counted: Collection[int]) -> tuple[Between, ...]:
        """What lay before a step, in the mean of those at the places ``counted``; before the first lay nothing."""
        begins, ends, _, _, _, *until = self._whole(cycle)
        places = np.array([place for place in counted if place], dtype=np.int64)
        if not len(places):
            return ()
        waits = dict(zip(KNOWN, (each[places, 0] - each[places - 1, -1] for each in until), strict=True))
        parts = {name: float(each.sum()) for name, each in waits.items()}
        if len(places) > 2 and 2 * np.count_nonzero(waits["evaluation"]) > len(places):
            parts["calls without gradients"] = parts.pop("evaluation")  # before most steps: a teacher's, a rollout's
        gaps = float((begins[places, 0] - ends[places - 1, -1]).sum())
        parts["other"] = max(0.0, gaps - sum(parts.values()))
        whole = gaps + float((ends[places, -1] - begins[places, 0]).sum())
        return tuple(
            Between(name=name, seconds=time / len(places) * 1e-9, share=time / whole)
            for name, time in parts.items()
            if time > 0 and whole > 0
        )

    def sizes(self, cycle: int = 1) -> list[tuple[int, int]]:
        """How often backward ran in each step, and how many autograd nodes it made."""
        _, _, _, backwards, nodes, *_ = self._whole(cycle)
        return list(zip(backwards.sum(axis=1).tolist(), nodes.sum(axis=1).tolist(), strict=True))

    def alike(self, cycle: int, recorded: int | None, timed: Callable[[list[int]], list[int]]) -> tuple[SameSteps, ...]:
        """Steps by their size, the most frequent first; ``timed``: of the places of a size, those whose times count."""
        sizes, seconds = self.sizes(cycle), self.seconds(cycle)
        found = []
        for size, count in Counter(sizes).most_common(_SIZES):
            places = [place for place, each in enumerate(sizes) if each == size]
            counted = timed(places)
            median_s = float(np.median(seconds[counted])) if counted else None
            is_recorded = recorded is not None and recorded < len(sizes) and sizes[recorded] == size
            found.append(
                SameSteps(count=count, backwards=size[0], nodes=size[1], median_s=median_s, recorded=is_recorded)
            )
        return tuple(found)

    def _columns(self) -> Any:
        return np.array(self._numbers, dtype=np.int64).reshape(-1, _WIDTH).T

    def _whole(self, cycle: int) -> list[Any]:
        """Each column, a row a step and a column a call in it; a cycle that the script did not end is left out."""
        columns = self._columns()
        steps = columns.shape[1] // cycle
        return [column[: steps * cycle].reshape(steps, cycle) for column in columns]
