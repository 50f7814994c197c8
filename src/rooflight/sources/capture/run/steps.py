"""Steps: when each step of a script began and ended, what it did, and what lay before it."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from rooflight.records.session import Int64
from rooflight.records.timeline import Between, SameSteps

_MOST: Final = 1 << 20  # calls that are kept: 64 MB
_LONGEST_CYCLE: Final = 64
_SIZES: Final = 6  # of steps that a report tells apart
KNOWN: Final = ("loader", "evaluation", "checkpoint")  # of the time between steps; the rest is "other"
_WIDTH: Final = 5 + len(KNOWN)


class Steps:
    """The calls of one kind. Where several optimizers step in turn, a step is a cycle of their calls: of ``length``
    calls, None while that is not known. ``before`` calls of another order came before the first cycle.
    """

    def __init__(self) -> None:
        self.count = self.backwards = self.last_end = self.total = 0
        self.length: int | None = 1
        self.before = 0
        self._numbers = array("q")
        self._newest: deque[tuple[int, str]] = deque(maxlen=2 * _LONGEST_CYCLE)  # callers, and where a turn began
        self._evaluated = 0  # how many calls had been made when a cycle was last interrupted

    def add(
        self, begin: int, end: int, caller: int, backwards: int, nodes: int, known: tuple[int, int, int], line: str = ""
    ) -> None:
        """One more, from ``begin`` to ``end`` (ns), by the optimizer or module number ``caller``: how often backward
        ran in it, how many autograd nodes it made, and how many ns of each ``known`` kind had passed when it began.
        None pass within it. ``line``: where a turn of the script's loop began with it, if it had backward passes.
        """
        self.count += 1
        self.backwards += backwards
        self.total += end - begin
        self.last_end = end
        self._newest.append((caller, (line or str(caller)) if backwards else ""))
        if self.count <= _MOST:
            self._numbers.extend((begin, end, caller, backwards, nodes, *known))

    def follow(self) -> bool:
        """Learn of the newest call how many make a step. Returns whether it belongs to the cycle that was known."""
        callers, length = [caller for caller, _ in self._newest], self.length
        if length is not None and (len(callers) <= length or callers[-1] == callers[-1 - length]):
            return True
        self.length = self.cycle()
        self.before = self.count % (self.length or 1)
        return length is None

    def cycle(self) -> int | None:
        """How many calls make a step: 1 of one optimizer. None where no cycle of several was seen twice. A cycle begins
        with a turn of the script's loop.
        """
        callers, begins = [caller for caller, _ in self._newest], [line for _, line in self._newest]
        if len(set(callers)) <= 1:
            return 1
        for length in range(2, len(callers) // 2 + 1):
            newest, turns = callers[-length:], begins[-length] or not any(begins)
            if turns and newest == callers[-2 * length : -length] and set(newest) == set(callers):
                return length
        return None

    @property
    def place(self) -> tuple[int, int]:
        """Of the next call: the number of its step, from 0, and its own in that."""
        return divmod(self.count - self.before, self.length or 1)

    def interrupt(self) -> None:
        """A model is evaluated now, within a step or between two."""
        if self.place[1]:
            self._evaluated = self.count

    @property
    def whole(self) -> bool:
        """Whether no model was evaluated within the newest step."""
        return not self._evaluated or self._evaluated <= self.count - (self.length or 1)

    def calls_of(self) -> Counter[int]:
        """How often each caller called."""
        return Counter(self._columns()[2].tolist())

    def turns(self, cycle: int) -> int:
        """In how many turns of the script's loop the calls are made that make a step. Turns begin at one line."""
        begins = Counter(line for _, line in list(self._newest)[-cycle:] if line)
        return max(begins.values(), default=1)

    def seconds(self, cycle: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How long each step of ``cycle`` calls took."""
        begins, ends, *_ = self._whole(cycle)
        return np.asarray((ends[:, -1] - begins[:, 0]) * 1e-9)

    def spans(self, cycle: int) -> tuple[Int64, Int64]:
        """When each step of ``cycle`` calls began and ended, in ns."""
        begins, ends, *_ = self._whole(cycle)
        return begins[:, 0], ends[:, -1]

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
        columns = self._columns()[:, self.before :]
        steps = columns.shape[1] // cycle
        return [column[: steps * cycle].reshape(steps, cycle) for column in columns]
