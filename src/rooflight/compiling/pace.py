"""How many programs a benchmark runs, and how long those that are left take by those that have ended."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Literal

from rooflight.front.device import Progress

Kind = Literal["eager", "cold", "warm", "check"]
OF_A_MODE: Final[tuple[Kind, ...]] = ("cold", "warm", "check")
"""Programs of a mode, in the order in which they run. Eager runs once for all modes of a target."""


def programs_of(targets: int, modes: int) -> int:
    """How many programs run for so many targets and modes, if none of them fails."""
    return targets * (1 + modes * len(OF_A_MODE))


class Pace:
    """Says before each program which one it is of how many, and about how long it and the rest take.

    The time that is left is the sum over these programs of the mean time of those of the same kind that have ended, or
    of all that have ended where none was of that kind. Nothing is said of it before the first has ended.
    """

    def __init__(
        self, targets: int, modes: int, progress: Progress, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        mode: list[Kind] = [*OF_A_MODE] * modes
        self._left: list[Kind] = (["eager", *mode]) * targets
        self._all = len(self._left)
        self._progress = progress
        self._clock = clock
        self._ended: defaultdict[Kind, list[float]] = defaultdict(list)
        self._began_s = 0.0

    def begins(self, text: str) -> None:
        """Show that the next program begins."""
        number = self._all - len(self._left) + 1
        left = self._left_s()
        about = "" if left is None else f", about {_rough(left)} left"
        self._progress(f"{text} (program {number} of {self._all}{about})")
        self._began_s = self._clock()

    def ended(self) -> None:
        """Note that the program that began has ended."""
        self._ended[self._left.pop(0)].append(self._clock() - self._began_s)

    def skips(self, count: int) -> None:
        """The next ``count`` programs do not run: the one that began, which has failed, and those that need it."""
        del self._left[:count]

    def _left_s(self) -> float | None:
        known = {kind: statistics.fmean(seconds) for kind, seconds in self._ended.items()}
        if not known:
            return None
        usual = statistics.fmean(known.values())
        return sum(known.get(kind, usual) for kind in self._left)


def _rough(seconds: float) -> str:
    return f"{max(5, 5 * round(seconds / 5))} s" if seconds < 90 else f"{round(seconds / 60)} min"
