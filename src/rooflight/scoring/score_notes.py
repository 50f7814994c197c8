"""What a score means in words: its conclusion, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.roofline.tables.notes import what_if_notes
from rooflight.scoring.result import COMPILED, EAGER, SOLUTION, Checked, Score

_NAMED = 5


def conclusion(score: Score) -> str:
    """How far the solution is from light, in a sentence or two."""
    bound = Quantity(score.program_bound_s, "s")
    if score.checked is None:
        return f"Nothing ran: {score.not_run}. Any program for this work needs at least {bound}."
    if not score.checked.agrees:
        return f"{score.solution} is wrong: {score.checked.why}. A wrong solution gets no share of the way."
    if score.trials is None:
        needs = f"Any program for this work needs at least {bound} there."
        return f"The solution is right. No times: {score.not_timed}. {needs}"
    text = _sentence(score, str(bound))
    if score.trials.disturbed:
        taken = percent(score.trials.others_share or 0.0)
        text += f" Other programs took {taken} of the CPU meanwhile: score again on a quiet machine."
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
        return f"The solution takes {times}. Eager is at {light} already, within 5%: no way is left to go."
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
    if checked.unmatched:
        names = ", ".join(checked.unmatched[:_NAMED]) + (", …" if len(checked.unmatched) > _NAMED else "")
        have = count_of(len(checked.unmatched), "tensor of the solution has", "tensors of the solution have")
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
        yield f"torch.compile's own result is outside of the tolerance: {compiled.told}."
    found = checked.difference
    if found.precision not in (None, "float32"):
        yield f"The result is as rough as one computed in {found.precision} (root-mean-square error {found.rms:.2g})."


def _of_times(score: Score) -> Iterable[str]:
    if score.trials is None:
        return
    bounds = score.analysis.program
    program, warm = Quantity(bounds.program_bound_s, "s"), Quantity(bounds.warm.program_bound_s, "s")
    if score.faster_than_light:
        taken = [f"{name} took {Quantity(score.timings[name].median_s, 's')}" for name in score.faster_than_light]
        yield (
            f"Contradiction: {', '.join(taken)}, less than the program bound, {min(warm, program, key=_value)}, which "
            f"nothing real beats. {_causes(score)}"
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


def _value(quantity: Quantity) -> float:
    return quantity.value


def _causes(score: Score) -> str:
    checked = score.checked
    assert checked is not None
    roofs = "roofs that are too low (rooflight calibrate measures them again), a cost that is wrong"
    if score.faster_than_light != (SOLUTION,):  # what eager does is known, so the bound is to be doubted
        return f"Likely causes: {roofs}."
    found = checked.difference
    causes = []
    if checked.same_inputs:
        causes.append("results kept from an earlier call, as all inputs are the same")
    elif checked.same_results:
        causes.append("nothing was computed, as the reference's result does not depend on its inputs")
    if found.precision not in (None, "float32"):
        causes.append(
            f"arithmetic of fewer bits: its result is as rough as {found.precision}'s (--precision bounds it so)"
        )
    if score.place == "cuda":
        causes.append("work on another CUDA stream, which the clock does not see")
    causes.append("an algorithm with fewer operations (Winograd, FFT, Strassen, zeros left out)")
    kept = "" if checked.same_inputs else " Every timed result was compared with eager's, on inputs of its own."
    return f"Likely causes: {', '.join(causes)}; {roofs}.{kept}"
