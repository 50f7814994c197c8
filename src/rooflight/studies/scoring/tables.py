"""A Score as a Report: bounds, eager, compiled and the solution side by side, and what they mean in words."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Axis, Cell, Line, Mark, Report, Series, Table, share, table
from rooflight.roofline.tables.notes import what_if_notes
from rooflight.roofline.tables.report import what_if_facts
from rooflight.studies.scoring.result import COMPILED, EAGER, SOLUTION, Checked, Score, document

_NAMED = 5


def conclusion(score: Score) -> str:
    """How far the solution is from light, in a sentence or two."""
    bound = Quantity(score.program_bound_s, "s")
    if score.checked is None:
        return f"Nothing ran: {score.not_run}. Any program for this work needs at least {bound}."
    if not score.checked.agrees:
        return f"{score.solution} is wrong: {score.checked.why}. A wrong solution has no share."
    if score.trials is None:
        needs = f"Any program for this work needs at least {bound} there."
        return f"The solution is right. No times: {score.not_timed}. {needs}"
    text = _sentence(score, str(bound))
    if score.trials.disturbed:
        taken = percent(score.trials.others_share or 0.0)
        text += f" Other programs took {taken} of the CPU: score again on a quiet machine."
    return text


def _sentence(score: Score, bound: str) -> str:
    eager, solution = score.timings[EAGER], score.timings[SOLUTION]
    times = f"{Quantity(solution.median_s, 's')} beside eager's {Quantity(eager.median_s, 's')}"
    light = f"the {bound} that any program for this work needs"
    if fast := score.faster_than_light:
        took = Quantity(score.timings[fast[0]].median_s, "s")
        return f"Contradiction: {fast[0]} took {took}, less than {light}."
    share = score.share(SOLUTION)
    if share is None:
        return f"The solution takes {times}. Eager is at {light} already, within 5%: nothing is left to gain."
    if share < 0:
        return f"The solution is slower than eager: {times}, and away from {light}."
    compiled = score.share(COMPILED)
    beside = "" if compiled is None else f", torch.compile {percent(compiled)}"
    return f"The solution goes {percent(share)} of the way from eager to light{beside}: {times}, and {light}."


def score_notes(score: Score) -> Iterable[str]:
    """Reasons to doubt the score, and what was left out."""
    analysis, coverage = score.analysis, score.analysis.coverage
    if coverage.uncosted:
        calls = sum(op.calls for op in coverage.uncosted)
        without = count_of(calls, "call of the reference has", "calls of the reference have")
        yield f"{without} no cost: the bounds are lower than the truth."
    for name, calls in analysis.unknown_peaks.items():
        bounded = count_of(calls, "call is", "calls are")
        yield f"{analysis.device.name} has no known {name}: {bounded} bounded without it."
    yield from what_if_notes(analysis)
    if score.checked is not None:
        yield from _of_check(score.checked)
    if score.not_compiled:
        yield f"No compiled reference: {score.not_compiled}."
    yield from _of_times(score)


def _of_check(checked: Checked) -> Iterable[str]:
    if checked.tensors_unmatched:
        count = len(checked.tensors_unmatched)
        names = ", ".join(checked.tensors_unmatched[:_NAMED]) + ", …" * (count > _NAMED)
        have = count_of(count, "tensor of the solution has", "tensors of the solution have")
        yield (
            f"{have} no counterpart of the same name and shape in the reference: what the constructor drew from the "
            f"same random numbers stays ({names})."
        )
    if not checked.agrees:
        return
    if checked.same_inputs:
        yield "get_inputs gives the same inputs for every draw: results kept from an earlier call would not be noticed."
    elif checked.same_results:
        yield "The reference gives the same result for every draw: one that computes nothing would not be noticed."
    if checked.reuses_memory:
        yield "The solution writes into the memory of its earlier results: they change when it is called again."
    compiled = checked.compiled
    if compiled is not None and not compiled.agrees:
        yield f"torch.compile's own result is outside of the tolerance: {compiled.message}."
    if checked.difference.precision not in (None, "float32"):
        error = f"root-mean-square error {checked.difference.rms:.2g}"
        yield f"The result is as rough as one computed in {checked.difference.precision} ({error})."


def _of_times(score: Score) -> Iterable[str]:
    if score.trials is None:
        return
    bounds = score.bounds
    program, warm = Quantity(bounds.program_bound_s, "s"), Quantity(bounds.warm_program_bound_s, "s")
    if score.faster_than_light:
        least = Quantity(min(bounds.program_bound_s, bounds.warm_program_bound_s), "s")
        taken = [f"{name} took {Quantity(score.timings[name].median_s, 's')}" for name in score.faster_than_light]
        yield (
            f"Contradiction: {', '.join(taken)}, less than the program bound, {least}, which nothing real beats. "
            f"{_causes(score)}"
        )
    for name in score.helped_by_cache:
        yield (
            f"{name} took {Quantity(score.timings[name].median_s, 's')}, less than the program bound, {program}, and "
            f"more than that bound with a full cache, {warm}: part of its data stayed in a cache."
        )
    if score.trials.disturbed:
        effect = "launches" if score.place == "cuda" else "times"
        yield (
            f"Other programs took {percent(score.trials.others_share or 0.0)} of the CPU during the trials: {effect} "
            "may take several times too long. Score again on a quiet machine."
        )
    elif wide := [name for name, timing in score.timings.items() if timing.spread > 0.1]:
        yield f"Times of {' and '.join(wide)} spread by more than 10%: something disturbed them, or the work varies."


def _causes(score: Score) -> str:
    checked = score.checked
    assert checked is not None
    roofs = "roofs that are too low (rooflight calibrate measures them again), a cost that is wrong"
    if score.faster_than_light != (SOLUTION,):  # what eager does is known, so the bound is to be doubted
        return f"Likely causes: {roofs}."
    causes = []
    if checked.same_inputs:
        causes.append("results kept from an earlier call, as all inputs are the same")
    elif checked.same_results:
        causes.append("nothing was computed, as the reference's result does not depend on its inputs")
    if (precision := checked.difference.precision) not in (None, "float32"):
        causes.append(f"arithmetic of fewer bits: its result is as rough as {precision}'s (--precision bounds it so)")
    if score.place == "cuda":
        causes.append("work on another CUDA stream, which the clock does not see")
    causes.append("an algorithm with fewer operations (Winograd, FFT, Strassen, zeros left out)")
    compared = "" if checked.same_inputs else " Every timed result was compared with eager's, on inputs of its own."
    return f"Likely causes: {', '.join(causes)}; {roofs}.{compared}"


def report_of(score: Score) -> Report:
    """What ``rooflight score`` shows."""
    verdict = conclusion(score)
    return Report(
        title=f"Score: {score.solution} for {score.reference} on {score.analysis.device.name}",
        data=document(score, verdict),
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
    found, compiled = checked.difference, checked.compiled
    if found.error is None:
        return f"right: equal for {checked.draws} draws of inputs"
    beside = "" if compiled is None or compiled.error is None else f"; compiled {compiled.error:.2g}"
    return (
        f"right for {checked.draws} draws of inputs: error {found.error:.2g} "
        f"(tolerance {found.tolerance:g}{beside}), as precise as {found.precision}"
    )


def _table(score: Score) -> Table:
    known = score.bounds
    bounds = (
        ("program bound", known.program_bound_s),
        ("fused bound", known.fused_bound_s),
        ("op bound", known.op_bound_s),
    )
    rows: list[tuple[str, float, float | None, float | None]] = [
        (name, bound_s, None, None) for name, bound_s in bounds
    ]
    rows += [(name, timing.median_s, timing.spread, score.share(name)) for name, timing in score.timings.items()]
    return table(
        "programs",
        "Side by side",
        rows,
        ("what", "", lambda row: row[0]),
        ("time", "s", lambda row: row[1]),
        ("spread", "%", lambda row: row[2]),
        ("of light", "%", lambda row: share(score.program_bound_s, row[1])),
        ("of the way", "%", lambda row: row[3]),
        note="of light: program bound / time. of the way: from eager (0%) to light (100%). "
        "spread: quartiles over median.",
        optional=("spread",),
    )


def _series(score: Score) -> Iterable[Series]:
    timings = list(score.timings.items())
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
