"""Programs timed side by side: in each trial all of them, one after the other, on inputs that none has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rooflight.hardware.machine.cpu_load import Bystander
from rooflight.hardware.machine.timing import Clock, Timing
from rooflight.records.measurement import BUSY_SHARE
from rooflight.sources.workloads.outputs import copied
from rooflight.sources.workloads.problem import same_numbers

Run = Callable[[tuple[Any, ...]], Any]
"""A program: from inputs to a result."""

MOST_TRIALS: Final = 30
FEWEST_TRIALS: Final = 5
BOX_S: Final = 30.0
"""Without a number of trials: as many as fit into so many seconds, within these limits."""
_WARMUPS: Final = 2


class WrongResultError(Exception):
    """A timed result is not right: the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Seconds of each program, trial by trial, and the share of the CPU that other programs took meanwhile."""

    timings: Mapping[str, Timing]
    others_share: float | None = None

    @property
    def number(self) -> int:
        """How many trials there were."""
        return len(next(iter(self.timings.values())).samples_s)

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much of the CPU that the times may be theirs."""
        return self.others_share is not None and self.others_share >= BUSY_SHARE


def timed(
    programs: Mapping[str, Run],
    draw: Callable[[int], tuple[Any, ...]],
    check: Callable[[Mapping[str, Any]], str],
    *,
    clock: Clock,
    trials: int | None = None,
    bystander: Bystander | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Trials:
    """Time the programs in turns, each first in its turn.

    ``draw`` gives the inputs of a trial; each program has a copy of its own. ``check`` says what is wrong with the
    results of a trial, by program, or nothing. ``trials``: how many; None takes as many as fit into BOX_S seconds, at
    least FEWEST_TRIALS and at most MOST_TRIALS. The caches are what ``clock`` makes of them. Raises ValueError for no
    trials, WrongResultError for a wrong result.
    """
    if trials is not None and trials < 1:
        raise ValueError(f"--trials {trials}: at least 1 trial")
    names = list(programs)
    inputs = draw(0)
    for name in names:
        progress(f"warming up: {name}")
        for _ in range(_WARMUPS):
            programs[name](_own(inputs))
    samples: dict[str, list[float]] = {name: [] for name in names}
    watch, end_ns, number = bystander or Bystander(), clock.now_ns() + round(BOX_S * 1e9), 0
    while number < (trials or FEWEST_TRIALS) or (trials is None and number < MOST_TRIALS and clock.now_ns() < end_ns):
        progress(f"trial {number + 1}{'' if trials is None else f' of {trials}'}")
        inputs = draw(number + 1)
        results = {}
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            call = _Call(programs[name], _own(inputs))
            with same_numbers():  # where programs draw, all draw the same
                samples[name].append(clock.time_s(call))
            results[name] = call.result
        if why := check(results):
            raise WrongResultError(f"{why} (in timed trial {number + 1})")
        number += 1
    return Trials(
        timings={name: Timing(samples_s=tuple(taken)) for name, taken in samples.items()}, others_share=watch.others()
    )


class _Call:
    def __init__(self, run: Run, inputs: tuple[Any, ...]) -> None:
        self._run, self._inputs = run, inputs
        self.result: Any = None

    def __call__(self) -> None:
        self.result = self._run(self._inputs)


def _own(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(copied, inputs))
