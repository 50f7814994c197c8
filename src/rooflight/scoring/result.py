"""Score: how far a solution is on the way from eager to light."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rooflight.machine.timing import Timing
from rooflight.roofline.analysis import Analysis
from rooflight.scoring.trials import Trials
from rooflight.workloads.outputs import Difference

EAGER, COMPILED, SOLUTION = "eager", "compiled", "solution"
PROGRAMS: Final = (EAGER, COMPILED, SOLUTION)
AT_BOUND: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Whether a solution is right: ``why`` not, else empty, and its largest difference over ``draws`` of inputs.

    ``compiled`` is the same of torch.compile's own result, None where it was not compiled. ``same_inputs``: every draw
    had the same; ``same_results``: the reference gave the same result for every draw. ``unmatched`` names tensors of
    the solution's state without one of the same name and shape in the reference.
    """

    draws: int
    difference: Difference
    why: str = ""
    compiled: Difference | None = None
    same_inputs: bool = False
    same_results: bool = False
    reuses_memory: bool = False
    copied: int = 0
    unmatched: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the solution is right."""
        return not self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A solution beside the bounds of its reference (``analysis``) and beside the reference, eager and compiled.

    ``place`` is where they ran, "cpu" or "cuda". ``checked`` is None where nothing ran, ``trials`` where nothing was
    timed; ``not_run`` and ``not_timed`` say why, ``not_compiled`` why the compiled reference is missing.
    """

    reference: str
    solution: str
    solution_class: str
    place: str
    analysis: Analysis
    checked: Checked | None = None
    trials: Trials | None = None
    not_run: str = ""
    not_timed: str = ""
    not_compiled: str = ""
    notes: tuple[str, ...] = ()

    @property
    def timings(self) -> Mapping[str, Timing]:
        """Times by program: those that were timed."""
        return self.trials.timings if self.trials is not None else {}

    @property
    def program_bound_s(self) -> float:
        """Light: the least that any program that does the reference's work needs on the device."""
        return self.analysis.program.program_bound_s

    def share(self, program: str) -> float | None:
        """Of the way from eager to light the part that a program has gone: (eager − program) / (eager − program bound),
        of medians. 0 is eager, 1 is light; negative is slower than eager, above 1 a contradiction.

        None where it was not timed, and where eager is at its bound, so that there is no way.
        """
        timings = self.timings
        if program not in timings or EAGER not in timings or self.eager_at_bound:
            return None
        eager_s = timings[EAGER].median_s
        return (eager_s - timings[program].median_s) / (eager_s - self.program_bound_s)

    @property
    def eager_at_bound(self) -> bool:
        """Whether eager is above the program bound by less than AT_BOUND of its time: a share would be noise."""
        timing = self.timings.get(EAGER)
        return timing is not None and timing.median_s - self.program_bound_s < AT_BOUND * timing.median_s

    @property
    def speedup(self) -> float | None:
        """Eager's time over the solution's."""
        timings = self.timings
        if SOLUTION not in timings or not timings[SOLUTION].median_s:
            return None
        return timings[EAGER].median_s / timings[SOLUTION].median_s

    @property
    def faster_than_light(self) -> tuple[str, ...]:
        """Programs timed below the program bound, even with all that a cache can hold in it."""
        bound_s = self.analysis.program.warm.program_bound_s
        return tuple(name for name, timing in self.timings.items() if timing.median_s < bound_s)

    @property
    def helped_by_cache(self) -> tuple[str, ...]:
        """Programs below the program bound that a cache explains."""
        fast = (name for name, timing in self.timings.items() if timing.median_s < self.program_bound_s)
        return tuple(name for name in fast if name not in self.faster_than_light)
