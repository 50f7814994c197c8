"""Steps: when each step of a script began and ended, what it did, and what lay before it."""

from __future__ import annotations

import statistics
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from rooflight.records.measurement import Float64
from rooflight.records.session import Int64
from rooflight.records.timeline import Between, SameSteps

_MOST: Final = 1 << 20  # calls that are kept: 64 MB
_LONGEST_CYCLE: Final = 64
_SIZES: Final = 6  # of steps that a report tells apart
KNOWN: Final = ("loader", "evaluation", "checkpoint")  # of the time between steps; the rest is "other"
APART: Final = ("evaluation", "checkpoint")  # some steps alone have them before them
_WIDTH: Final = 6 + len(KNOWN)
_LIKE: Final = 1.25  # inputs whose sizes differ by no more are of one size


class Steps:
    """The calls of one kind. Where several optimizers step in turn, a step is a cycle of their calls: of ``length``
    calls, None while that is not known. ``before`` calls of another order came before the first cycle.
    """

    def __init__(self) -> None:
        self.count = self.backwards = self.last_end = self.total = 0
        self.length: int | None = 1
        self.before = 0
        self.ended: Callable[[], None] | None = None  # is called after each
        self._numbers = array("q")
        self._newest: deque[tuple[int, str]] = deque(maxlen=2 * _LONGEST_CYCLE)  # callers, and where a turn began
        self._least = self._largest = 0  # elements of an input
        self._evaluated = 0  # how many calls had been made when a cycle was last interrupted

    def add(
        self,
        begin: int,
        end: int,
        caller: int,
        backwards: int,
        nodes: int,
        known: tuple[int, int, int],
        line: str = "",
        elements: int = 0,
    ) -> None:
        """One more, from ``begin`` to ``end`` (ns), by the optimizer or module number ``caller``: how often backward
        ran in it, how many autograd nodes it made, and how many ns of each ``known`` kind had passed when it began.
        None pass within it. ``line``: where a turn of the script's loop began with it, if it had backward passes.
        ``elements``: of the tensor that its model was called with, 0 where that is not known.
        """
        self.count += 1
        self.backwards += backwards
        self.total += end - begin
        self.last_end = end
        self._newest.append((caller, (line or str(caller)) if backwards else ""))
        if elements:
            self._least, self._largest = min(self._least or elements, elements), max(self._largest, elements)
        if self.count <= _MOST:
            self._numbers.extend((begin, end, caller, backwards, nodes, elements, *known))
        if self.ended is not None:
            self.ended()

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

    @property
    def unequal(self) -> bool:
        """Whether their inputs differ in size."""
        return self._largest > _LIKE * self._least

    def of_the_longest_size(self, place: int, elements: int) -> bool | None:
        """Whether a call at this place was of the size that took longest in sum so far; if it was not, whether an input
        of so many elements is, for which None stands.
        """
        sizes, seconds = self.sizes(), self.seconds()

        def total_s(size: tuple[int, int, int]) -> float:  # the first steps take longer, and those that are disturbed
            mine = seconds[[each == size for each in sizes]]
            return float(mine.min()) * len(mine)

        longest = max(set(sizes), key=total_s)
        if place < len(sizes) and sizes[place] == longest:
            return True
        return None if longest[2] <= elements <= _LIKE * longest[2] else False

    def calls_of(self) -> Counter[int]:
        """How often each caller called."""
        return Counter(self._columns()[2].tolist())

    def turns(self, cycle: int) -> int:
        """In how many turns of the script's loop the calls are made that make a step. Turns begin at one line, and most
        calls are of one loop.
        """
        lines = [line for _, line in self._newest]
        windows = [Counter(filter(None, lines[end - cycle : end])) for end in range(cycle, len(lines) + 1)]
        return statistics.mode(max(each.values(), default=1) for each in windows or [Counter[str]()])

    def seconds(self, cycle: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How long each step of ``cycle`` calls took."""
        begins, ends, *_ = self._whole(cycle)
        return np.asarray((ends[:, -1] - begins[:, 0]) * 1e-9)

    def spans(self, cycle: int) -> tuple[Int64, Int64]:
        """When each step of ``cycle`` calls began and ended, in ns."""
        begins, ends, *_ = self._whole(cycle)
        return begins[:, 0], ends[:, -1]

    def between(self, cycle: int, counted: Collection[int], step_s: float | None = None) -> tuple[Between, ...]:
        """What lay before a step, in the mean of those at the places ``counted``, beside a step of ``step_s`` or of
        their mean; before the first lay nothing.
        """
        begins, ends, _, _, _, _, *until = self._whole(cycle)
        places = np.array([place for place in counted if place], dtype=np.int64)
        if not len(places):
            return ()
        waits = dict(zip(KNOWN, (each[places, 0] - each[places - 1, -1] for each in until), strict=True))
        parts = {name: float(each.sum()) for name, each in waits.items()}
        seen = {name: int(np.count_nonzero(each)) for name, each in waits.items()}
        if len(places) > 2 and 2 * np.count_nonzero(waits["evaluation"]) > len(places):
            parts["calls without gradients"] = parts.pop("evaluation")  # before most steps: a teacher's, a rollout's
        gaps = float((begins[places, 0] - ends[places - 1, -1]).sum())
        parts["other"] = max(0.0, gaps - sum(parts.values()))
        whole = gaps + (
            float((ends[places, -1] - begins[places, 0]).sum()) if step_s is None else step_s * 1e9 * len(places)
        )
        return tuple(
            Between(
                name=name,
                seconds=time / len(places) * 1e-9,
                share=time / whole,
                seen=(seen.get(name, len(places)), len(places)),
            )
            for name, time in parts.items()
            if time > 0 and whole > 0
        )

    def iterations(self, cycle: int) -> Float64:
        """How long each step took with what lay before it, but for evaluations and checkpoints; NaN of the first."""
        _, ends, _, _, _, _, _, *apart = self._whole(cycle)
        found = np.full(len(ends), np.nan)
        waits = sum(each[1:, 0] - each[:-1, -1] for each in apart)
        found[1:] = (ends[1:, -1] - ends[:-1, -1] - waits) * 1e-9
        return found

    def sizes(self, cycle: int = 1) -> list[tuple[int, int, int]]:
        """How often backward ran in each step, how many autograd nodes it made, and the size of its input: the least
        of those about as large, 0 where it had several.
        """
        _, _, _, backwards, nodes, elements, *_ = self._whole(cycle)
        many, made, first = backwards.sum(axis=1), nodes.sum(axis=1), elements[:, 0]
        alone = np.where(many + np.count_nonzero(elements, axis=1) > 2, 0, first)
        least = dict[int, int]()
        for each in np.unique(alone).tolist():
            last = next(reversed(least.values()), 0)
            least[each] = last if last and each <= _LIKE * last else each
        return list(zip(many.tolist(), made.tolist(), map(least.__getitem__, alone.tolist()), strict=True))

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
                SameSteps(
                    count=count,
                    backwards=size[0],
                    nodes=size[1],
                    elements=size[2],
                    median_s=median_s,
                    recorded=is_recorded,
                )
            )
        return tuple(found)

    def _columns(self) -> Any:
        return np.array(self._numbers, dtype=np.int64).reshape(-1, _WIDTH).T

    def _whole(self, cycle: int) -> list[Any]:
        """Each column, a row a step and a column a call in it; a cycle that the script did not end is left out."""
        columns = self._columns()[:, self.before :]
        steps = columns.shape[1] // cycle
        return [column[: steps * cycle].reshape(steps, cycle) for column in columns]
