"""Score: how far a solution is on the way from eager to light."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rooflight.hardware.machine.timing import Timing
from rooflight.records.document import Document, Fields
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import memory_time
from rooflight.roofline.tables.document import DeviceFigures, device_figures
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.scoring.trials import Trials

EAGER, COMPILED, SOLUTION = "eager", "compiled", "solution"
PROGRAMS: Final = (EAGER, COMPILED, SOLUTION)
AT_BOUND: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Whether a solution is right: ``why`` not, else empty, and its largest difference over ``draws`` of inputs.

    ``compiled`` is the same of torch.compile's own result, None where it was not compiled. ``same_inputs``: every draw
    had the same; ``same_results``: the reference gave the same result for every draw. ``tensors_unmatched`` names
    tensors of the solution's state without one of the same name and shape in the reference.
    """

    draws: int
    difference: Difference
    why: str = ""
    compiled: Difference | None = None
    same_inputs: bool = False
    same_results: bool = False
    reuses_memory: bool = False
    tensors_matched: int = 0
    tensors_unmatched: tuple[str, ...] = ()

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
        """Times by program, in the order of PROGRAMS: those that were timed."""
        found = self.trials.timings if self.trials is not None else {}
        return {name: found[name] for name in PROGRAMS if name in found}

    @property
    def bounds(self) -> Bounds:
        """The bounds of the reference. Trials begin with cold caches, so all that it reads comes from main memory."""
        analysis, program = self.analysis, self.analysis.program
        cold_s = max(program.program_bound_s, memory_time(analysis.fusion.bytes_in, 0, analysis.device.memory[-1:]))
        return Bounds(
            op_bound_s=max(analysis.totals.op_bound_s, cold_s),
            fused_bound_s=max(program.fused_bound_s, cold_s),
            program_bound_s=cold_s,
            warm_program_bound_s=program.warm.program_bound_s,
        )

    @property
    def program_bound_s(self) -> float:
        """Light: the least that any program that does the reference's work needs on the device."""
        return self.bounds.program_bound_s

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
        bound_s = self.bounds.warm_program_bound_s
        return tuple(name for name, timing in self.timings.items() if timing.median_s < bound_s)

    @property
    def helped_by_cache(self) -> tuple[str, ...]:
        """Programs below the program bound that a cache explains."""
        fast = (name for name, timing in self.timings.items() if timing.median_s < self.program_bound_s)
        return tuple(name for name in fast if name not in self.faster_than_light)


class Bounds(Fields, frozen=True, kw_only=True):
    """The bounds of the reference, none of what it reads in a cache when it begins. ``warm``: with all that a cache can
    hold in it.
    """

    op_bound_s: float
    fused_bound_s: float
    program_bound_s: float
    warm_program_bound_s: float


class CheckedFigures(Fields, frozen=True, kw_only=True):
    """Whether the solution is right, and ``why`` not. ``error`` is the largest of |difference| / (scale + |reference|),
    scale the mean of |reference| over a tensor, at most 1; ``rms_error`` the root mean square of the difference over
    that of the reference, ``precision`` what such an error is typical of; ``compiled_error`` is the ``error`` of
    torch.compile's result.
    """

    agrees: bool
    why: str
    draws: int
    error: float | None
    rms_error: float | None
    tolerance: float | None
    precision: str | None
    compiled_error: float | None
    same_inputs: bool
    same_results: bool
    reuses_memory: bool
    tensors_matched: int
    tensors_unmatched: tuple[str, ...]


class ProgramTimes(Fields, frozen=True, kw_only=True):
    """Times of ``eager``, ``compiled`` or ``solution``. ``of_light``: program bound / median. ``share``: of the way
    from eager to light, None where there is none.
    """

    name: str
    median_s: float
    minimum_s: float
    spread: float
    samples_s: tuple[float, ...]
    of_light: float
    share: float | None


class ScoreDocument(Document, frozen=True, kw_only=True, tag="rooflight.score/1"):
    """A solution beside the bounds of its reference and beside the reference, eager and compiled.

    ``share``: (eager − solution) / (eager − program bound), of medians: 0 is eager, 1 light, less than 0 slower; None
    for a wrong solution, without times, and where eager is at its bound. ``speedup``: eager / solution.
    ``faster_than_light``: programs below the warm program bound, a contradiction. ``ran_on``: cpu or cuda.
    """

    reference: str
    solution: str
    solution_class: str
    target: str
    device: DeviceFigures
    ran_on: str
    environment: Mapping[str, str]
    bounds: Bounds
    coverage: float | None
    checked: CheckedFigures | None
    programs: tuple[ProgramTimes, ...]
    share: float | None
    speedup: float | None
    eager_at_bound: bool
    faster_than_light: tuple[str, ...]
    trials: int
    caches: str
    others_share: float | None
    disturbed: bool
    not_run: str
    not_timed: str
    not_compiled: str
    conclusion: str


def document(score: Score, verdict: str) -> ScoreDocument:
    """What programs read of a score."""
    analysis, trials = score.analysis, score.trials
    bounds, checked = score.bounds, score.checked
    bound_s = bounds.program_bound_s
    programs = (
        ProgramTimes.view(
            timing,
            name=name,
            of_light=bound_s / timing.median_s if timing.median_s else 0.0,
            share=None if name == EAGER else score.share(name),
        )
        for name, timing in score.timings.items()
    )
    return ScoreDocument.view(
        score,
        target=analysis.target,
        device=device_figures(analysis.device),
        ran_on=score.place,
        environment=analysis.session.environment,
        bounds=bounds,
        coverage=analysis.coverage.calls,
        checked=None if checked is None else _checked(checked),
        programs=tuple(programs),
        share=score.share(SOLUTION),
        trials=0 if trials is None else trials.number,
        caches="cold",
        others_share=None if trials is None else trials.others_share,
        disturbed=trials is not None and trials.disturbed,
        conclusion=verdict,
    )


def _checked(checked: Checked) -> CheckedFigures:
    compiled_error = None if checked.compiled is None else checked.compiled.error
    return CheckedFigures.view(
        checked, checked.difference, rms_error=checked.difference.rms, compiled_error=compiled_error
    )
