"""A Score as a Report: bounds, eager, compiled and the solution side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflight.machine.timing import Timing
from rooflight.records.document import Document, Fields
from rooflight.records.quantity import percent
from rooflight.records.report import Axis, Cell, Column, Line, Mark, Report, Series, Table
from rooflight.roofline.tables.document import DeviceFigures, device_figures
from rooflight.roofline.tables.report import what_if_facts
from rooflight.scoring.result import EAGER, PROGRAMS, SOLUTION, Checked, Score
from rooflight.scoring.score_notes import conclusion, score_notes


class BoundsData(Fields, frozen=True, kw_only=True):
    """The bounds of the reference. ``warm``: with all that a cache can hold in it."""

    op_bound_s: float
    fused_bound_s: float
    program_bound_s: float
    warm_program_bound_s: float


class CheckedData(Fields, frozen=True, kw_only=True):
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


class ProgramData(Fields, frozen=True, kw_only=True):
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
    bounds: BoundsData
    coverage: float | None
    checked: CheckedData | None
    programs: tuple[ProgramData, ...]
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


def report_of(score: Score) -> Report:
    """What ``rooflight score`` shows."""
    verdict = conclusion(score)
    return Report(
        title=f"Score: {score.solution} for {score.reference} on {score.analysis.device.name}",
        data=_data(score, verdict),
        facts=tuple(_facts(score)),
        tables=(_table(score),),
        series=tuple(_series(score)),
        notes=(*score.notes, *score_notes(score)),
        conclusion=verdict,
    )


def _facts(score: Score) -> Iterable[tuple[str, Cell]]:
    analysis, checked, trials = score.analysis, score.checked, score.trials
    yield "reference", f"{score.reference}, {analysis.session.environment.get('model_class', 'Model')}"
    yield "solution", f"{score.solution}, {score.solution_class}"
    yield "device", analysis.device.name
    yield "roofs from", analysis.device.roofs_used
    yield from what_if_facts(analysis)
    yield "result", _result(checked) if checked is not None else f"not checked: {score.not_run}"
    if trials is None:
        yield "times", f"none: {score.not_timed or score.not_run or 'the solution is wrong'}"
        return
    yield "times", f"medians of {trials.number} trials in turns, each on new inputs, from cold caches"
    share = score.share(SOLUTION)
    way = "(eager − solution) / (eager − program bound)"
    yield "of the way to light", "none: eager is at its bound" if share is None else f"{percent(share)} {way}"
    yield "speed-up", None if score.speedup is None else f"{score.speedup:.3g} times eager's speed"


def _result(checked: Checked) -> str:
    if not checked.agrees:
        return f"wrong: {checked.why}"
    found = checked.difference
    if found.error is None:
        return f"right: equal for {checked.draws} draws of inputs"
    compiled = checked.compiled
    beside = f"; compiled {compiled.error:.2g}" if compiled is not None and compiled.error is not None else ""
    return (
        f"right for {checked.draws} draws of inputs: error {found.error:.2g} (tolerance {found.tolerance:g}{beside}), "
        f"as precise as {found.precision}"
    )


def _table(score: Score) -> Table:
    program = score.analysis.program
    bounds = (
        ("program bound", program.program_bound_s),
        ("fused bound", program.fused_bound_s),
        ("op bound", score.analysis.totals.op_bound_s),
    )
    rows: list[tuple[Cell, ...]] = [
        (name, seconds, None, program.program_bound_s / seconds if seconds else None, None) for name, seconds in bounds
    ]
    for name, timing in _timings(score):
        rows.append((name, timing.median_s, timing.spread, _of_light(score, timing), score.share(name)))
    return Table(
        id="programs",
        title="Side by side",
        columns=(
            Column("what"),
            Column("time", "s"),
            Column("spread", "%"),
            Column("of light", "%"),
            Column("of the way", "%"),
        ),
        rows=tuple(rows),
        note="of light: program bound / time. of the way: from eager (0%) to light (100%). "
        "spread: quartiles over median.",
        optional=("spread",),
    )


def _series(score: Score) -> Iterable[Series]:
    timings = list(_timings(score))
    if not timings:
        return
    number = len(timings[0][1].samples_s)
    trials = tuple(float(trial + 1) for trial in range(number))
    bound = (score.program_bound_s,) * number
    yield Series(
        id="trials",
        title="Times by trial",
        x=Axis(name="trial"),
        y=Axis(name="time", unit="s", logarithmic=True),
        lines=(
            *(Line(name=name, x=trials, y=timing.samples_s, mark=Mark.POINTS) for name, timing in timings),
            Line(name="program bound", x=trials, y=bound),
        ),
    )


def _timings(score: Score) -> Iterable[tuple[str, Timing]]:
    return ((name, score.timings[name]) for name in PROGRAMS if name in score.timings)


def _of_light(score: Score, timing: Timing) -> float:
    return score.program_bound_s / timing.median_s if timing.median_s else 0.0


def _data(score: Score, verdict: str) -> ScoreDocument:
    analysis, trials = score.analysis, score.trials
    program = analysis.program
    return ScoreDocument(
        reference=score.reference,
        solution=score.solution,
        solution_class=score.solution_class,
        target=analysis.target,
        device=device_figures(analysis.device),
        ran_on=score.place,
        environment=dict(analysis.session.environment),
        bounds=BoundsData(
            op_bound_s=analysis.totals.op_bound_s,
            fused_bound_s=program.fused_bound_s,
            program_bound_s=program.program_bound_s,
            warm_program_bound_s=program.warm.program_bound_s,
        ),
        coverage=analysis.coverage.calls,
        checked=_checked_data(score.checked),
        programs=tuple(
            ProgramData(
                name=name,
                median_s=timing.median_s,
                minimum_s=timing.minimum_s,
                spread=timing.spread,
                samples_s=timing.samples_s,
                of_light=_of_light(score, timing),
                share=None if name == EAGER else score.share(name),
            )
            for name, timing in _timings(score)
        ),
        share=score.share(SOLUTION),
        speedup=score.speedup,
        eager_at_bound=score.eager_at_bound,
        faster_than_light=score.faster_than_light,
        trials=trials.number if trials is not None else 0,
        caches="cold",
        others_share=trials.others_share if trials is not None else None,
        disturbed=trials is not None and trials.disturbed,
        not_run=score.not_run,
        not_timed=score.not_timed,
        not_compiled=score.not_compiled,
        conclusion=verdict,
    )


def _checked_data(checked: Checked | None) -> CheckedData | None:
    if checked is None:
        return None
    found = checked.difference
    return CheckedData(
        agrees=checked.agrees,
        why=checked.why,
        draws=checked.draws,
        error=found.error,
        rms_error=found.rms,
        tolerance=found.tolerance,
        precision=found.precision,
        compiled_error=checked.compiled.error if checked.compiled is not None else None,
        same_inputs=checked.same_inputs,
        same_results=checked.same_results,
        reuses_memory=checked.reuses_memory,
        tensors_matched=checked.copied,
        tensors_unmatched=checked.unmatched,
    )
