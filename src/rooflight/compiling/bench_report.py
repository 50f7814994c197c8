"""Results of ``rooflight compile-bench`` as a Report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal

from rooflight.compiling.result import NEUTRAL, BreakEven, Compiled, short_names
from rooflight.compiling.trial import Check, Rounding, Trial
from rooflight.records.document import Document
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Column, Report, Table
from rooflight.records.series import Axis, Line, Mark, Series
from rooflight.records.session import BUSY_SHARE

_REASONS = 5


class CompileDocument(Document, frozen=True, kw_only=True, tag="rooflight.compile-bench/1"):
    """A target in a mode. What compiling gains, and when; all that compiling changed is None where it ``failed``,
    and all that eager did where that failed. ``step``: what ran, with its sizes where they are known.

    ``eager_s``, ``compiled_s``: median of a steady iteration. ``steady_speedup`` is their quotient, ``total_speedup``
    that of all iterations, compiling included. ``warmup_eager_s``, ``warmup_compiled_s``: all warm-up iterations.
    ``compile_s``: what compiling from an empty cache added to them, ``compile_warm_s`` from a full one; ``stages_s``:
    by stage, empty cache. ``break_even_iterations``: after so many the compiled program is ahead, None for never;
    ``break_even_measured`` says whether it ran so many; ``break_even_low`` and ``_high`` come of quartiles. ``verdict``
    is of the steady state: beyond 5 % it pays or hurts. ``correct``: results, gradients and state equal the eager ones
    within tolerance, or are no further than those from a float64 run; ``wrong`` says why not. ``fp64_error_eager``,
    ``fp64_error_compiled``: errors against float64 (root mean square, of the tensor with the largest), None where
    ``fp64_failed`` says why there is no such run; ``fp64_further``: the first tensor that compiling moved away from
    float64 by more than rounding; ``fp64_missing``: ops without a float64 form. ``others_share``: of the CPU, taken by
    other programs, None where unknown.
    ``op_kernels``: ops of a step that compute, each a kernel or more; ``kernels``: of the compiled graphs.
    ``op_bytes`` and ``fused_bytes``: moved by the ops one by one, and fused at best; ``kernel_bytes``: by the compiled
    graphs, by Inductor's account. ``bounds_failed``: why there are no bounds, ``op_kernels``, ``op_bytes`` and
    ``fused_bytes``, which a recording of the step gives.
    """

    target: str
    step: str
    mode: str
    iterations: int
    warmup: int
    eager_s: float | None
    compiled_s: float | None
    steady_speedup: float | None
    total_speedup: float | None
    warmup_eager_s: float | None
    warmup_compiled_s: float | None
    compile_s: float | None
    compile_warm_s: float | None
    stages_s: dict[str, float]
    break_even_iterations: int | None
    break_even_measured: bool
    break_even_low: int | None
    break_even_high: int | None
    correct: bool | None
    wrong: str
    error: float | None
    fp64_error_eager: float | None
    fp64_error_compiled: float | None
    fp64_further: str
    fp64_missing: tuple[str, ...]
    fp64_failed: str
    verdict: Literal["pays", "neutral", "hurts"] | None
    others_share: float | None
    peak_bytes_eager: int | None
    peak_bytes_compiled: int | None
    graphs: int | None
    kernels: int | None
    graph_breaks: tuple[str, ...]
    recompiles: tuple[str, ...]
    op_bound_s: float | None
    fused_bound_s: float | None
    op_kernels: int | None
    op_bytes: int | None
    kernel_bytes: int | None
    fused_bytes: int | None
    bounds_failed: str
    failed: str
    samples_eager_s: tuple[float, ...]
    samples_compiled_s: tuple[float, ...]


def report_of(
    results: Sequence[Compiled], *, facts: Sequence[tuple[str, Cell]] = (), notes: Sequence[str] = ()
) -> Report:
    """What ``rooflight compile-bench`` shows of one or more results. Raises ValueError for none."""
    if not results:
        raise ValueError("no results of compile-bench to report")
    data = tuple(map(document, results))
    names = short_names(result.target for result in results)
    results = [replace(result, target=names[result.target]) for result in results]
    return Report(
        title=f"torch.compile: {', '.join(names.values())}",
        data=data,
        facts=(*facts, *_steps(results)),
        tables=tuple(_tables(results)),
        series=tuple(_pictures(results)),
        notes=(*notes, *_notes(results)),
        conclusion=" ".join(conclusion(result) for result in results),
    )


def _steps(results: Sequence[Compiled]) -> Iterable[tuple[str, Cell]]:
    """What ran, of each target whose name does not say it."""
    told = {result.target: result.eager.step for result in results if result.eager is not None and result.eager.step}
    return (("step", step) for step in told.values())


def document(result: Compiled) -> CompileDocument:
    """A result in machine-readable form."""
    eager, cold, warm = result.eager, result.cold, result.warm
    even, check = result.break_even, result.check
    rounding = (check.rounding if check else None) or Rounding()
    return CompileDocument(
        target=result.target,
        step=(eager.step if eager is not None else "") or result.target,
        mode=result.mode,
        iterations=result.iterations,
        warmup=result.warmup,
        eager_s=None if eager is None else result.steady_s(eager),
        compiled_s=None if cold is None else result.steady_s(cold),
        steady_speedup=result.steady_speedup,
        total_speedup=result.total_speedup,
        warmup_eager_s=None if eager is None else result.warmup_s(eager),
        warmup_compiled_s=None if cold is None else result.warmup_s(cold),
        compile_s=None if cold is None else result.compile_s(cold),
        compile_warm_s=None if warm is None else result.compile_s(warm),
        stages_s={} if cold is None else cold.stages_s,
        break_even_iterations=even.iterations,
        break_even_measured=even.measured,
        break_even_low=even.low,
        break_even_high=even.high,
        correct=None if check is None else check.correct,
        wrong="" if check is None else check.why,
        error=None if check is None else check.error,
        fp64_error_eager=rounding.eager,
        fp64_error_compiled=rounding.compiled,
        fp64_further=rounding.further,
        fp64_missing=rounding.missing,
        fp64_failed=rounding.failed,
        verdict=result.verdict,
        others_share=result.others_share,
        peak_bytes_eager=None if eager is None else eager.peak_bytes,
        peak_bytes_compiled=None if cold is None else cold.peak_bytes,
        graphs=None if cold is None else cold.graphs,
        kernels=None if cold is None else cold.kernels,
        graph_breaks=() if cold is None else cold.graph_breaks,
        recompiles=() if cold is None else cold.recompiles,
        op_bound_s=result.op_bound_s,
        fused_bound_s=result.fused_bound_s,
        op_kernels=result.op_kernels,
        op_bytes=result.op_bytes,
        kernel_bytes=None if cold is None else cold.kernel_bytes,
        fused_bytes=result.fused_bytes,
        bounds_failed=result.bounds_failed,
        failed=result.failed,
        samples_eager_s=() if eager is None else eager.samples_s,
        samples_compiled_s=() if cold is None else cold.samples_s,
    )


def conclusion(result: Compiled) -> str:
    """Whether compiling pays, and from when on, in a sentence."""
    name = f"{result.target} ({result.mode})"
    gain, total = result.steady_speedup, result.total_speedup
    if result.eager is None:
        return f"{name} does not run: {result.failed}."
    if result.interrupted and result.cold is None:
        return f"{name}: interrupted before the compiled program had run."
    if gain is None or total is None:
        return f"{name} does not compile: {result.failed}."
    if result.check is not None and not result.check.correct:
        return f"{name}: the compiled program is wrong ({result.check.why}), so its times say nothing."
    steady = f"{gain:.3g} times eager's speed in the steady state"
    over = f"over {result.iterations} iterations, compiling included, {total:.3g} times"
    said = {"pays": "compiling pays", "hurts": "compiling hurts", "neutral": "compiling changes little"}
    return f"{name}: {said[result.verdict or 'neutral']}: {steady}; {over}. {_pays_back(result)}"


def _pays_back(result: Compiled) -> str:
    even = result.break_even
    if even.iterations is None:
        return "It never pays back what it costs." if result.verdict != "neutral" else "It may never pay back its cost."
    after = f"after {count_of(even.iterations, 'iteration')}"
    if even.measured:
        return f"It had paid back its cost {after} (measured{_spread(even)})."
    return f"It would pay back its cost {after} (extrapolated{_spread(even)})."


def _spread(even: BreakEven) -> str:
    if even.low is None or even.low == even.high:
        return ""
    return f"; {even.low:,} to {'never' if even.high is None else f'{even.high:,}'} by the quartiles"


def _tables(results: Sequence[Compiled]) -> Iterable[Table]:
    yield Table(
        id="results",
        title="Eager and compiled",
        columns=(
            Column("target"),
            Column("mode"),
            Column("verdict"),
            Column("eager", "s"),
            Column("compiled", "s"),
            Column("steady"),
            Column("in all"),
            Column("compile", "s"),
            Column("from cache", "s"),
            Column("break-even"),
            Column("result"),
        ),
        rows=tuple(_row(result) for result in results),
        note="eager, compiled: median of a steady iteration. steady, in all: speed-up over eager, without and with "
        "compiling. break-even: the iteration from which on compiling has paid back its cost (≈: extrapolated).",
        optional=("from cache", "in all", "break-even", "compile"),
    )
    if ran := [(result, *result.ran) for result in results if result.ran is not None]:
        yield _work(ran)
    if checks := [result for result in results if result.check is not None]:
        yield _errors(checks)
    for number, result in enumerate(results, start=1):
        if result.ran is not None:
            yield _times(number, result, *result.ran)
            yield _stages(number, result, result.ran[1])


def _row(result: Compiled) -> tuple[Cell, ...]:
    cold, warm, even = result.cold, result.warm, result.break_even
    about = "" if even.measured else "≈"
    return (
        result.target,
        result.mode,
        result.verdict or ("interrupted" if result.interrupted else "failed"),
        None if result.eager is None else result.steady_s(result.eager),
        None if cold is None else result.steady_s(cold),
        _times_faster(result.steady_speedup),
        _times_faster(result.total_speedup),
        None if cold is None else result.compile_s(cold),
        None if warm is None else result.compile_s(warm),
        None if cold is None else "never" if even.iterations is None else f"{about}{even.iterations:,}",
        None if result.check is None else "right" if result.check.correct else "wrong",
    )


def _work(ran: Sequence[tuple[Compiled, Trial, Trial]]) -> Table:
    return Table(
        id="work",
        title="Kernels, bytes and memory of a step",
        columns=(
            Column("target"),
            Column("mode"),
            Column("ops"),
            Column("kernels"),
            Column("moved by ops", "B"),
            Column("by kernels", "B"),
            Column("fused at best", "B"),
            Column("op bound", "s"),
            Column("fused bound", "s"),
            Column("peak eager", "B"),
            Column("peak compiled", "B"),
        ),
        rows=tuple(
            (
                result.target,
                result.mode,
                result.op_kernels,
                cold.kernels,
                result.op_bytes,
                cold.kernel_bytes,
                result.fused_bytes,
                result.op_bound_s,
                result.fused_bound_s,
                eager.peak_bytes,
                cold.peak_bytes,
            )
            for result, eager, cold in ran
        ),
        note="ops: those of an eager step that compute. kernels: of the compiled graphs, generated or a library's; by "
        "kernels: what they read and write by Inductor's account. Ops outside the graphs are in neither (an optimizer "
        "beside a compiled model). peak: of the whole process, compiler included; on CUDA, of torch's allocator.",
        optional=("op bound", "fused bound", "fused at best"),
    )


def _errors(results: Sequence[Compiled]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        assert result.check is not None
        rounding = result.check.rounding or Rounding()
        further = None if rounding.eager is None else rounding.further or "no tensor"
        rows.append(
            (
                result.target,
                result.mode,
                *map(_error, (result.check.error, rounding.eager, rounding.compiled)),
                further,
            )
        )
    return Table(
        id="errors",
        title="Errors",
        columns=(
            Column("target"),
            Column("mode"),
            Column("from eager"),
            Column("eager from float64"),
            Column("compiled from float64"),
            Column("compiled is further in"),
        ),
        rows=tuple(rows),
        note="from eager: the largest |difference| / (scale + |eager|) of results, gradients and state. From float64: "
        "the largest root mean square error of a tensor, as a share of its values.",
    )


def _error(error: float | None) -> str | None:
    return None if error is None else f"{error:.2g}"


def _times_faster(speedup: float | None) -> str | None:
    return None if speedup is None else f"{speedup:.3g} x"


def _times(number: int, result: Compiled, eager: Trial, cold: Trial) -> Table:
    warmup, rest = result.warmup, result.iterations - result.warmup
    sums = (
        (f"warm-up (first {warmup})", result.warmup_s(eager), result.warmup_s(cold), warmup),
        (f"steady state (other {rest})", sum(eager.samples_s[warmup:]), sum(cold.samples_s[warmup:]), rest),
        (f"in all ({result.iterations})", sum(eager.samples_s), sum(cold.samples_s), result.iterations),
    )
    rows: list[tuple[Cell, ...]] = []
    for what, before, after, count in sums:
        rows.append((what, before, after, _times_faster(before / after)))
        rows.append(("  per iteration", before / count, after / count, _times_faster(before / after)))
    return Table(
        id=f"times_{number}",
        title=f"{result.target}, {result.mode}",
        columns=(Column("iterations"), Column("eager", "s"), Column("compiled", "s"), Column("speed-up")),
        rows=tuple(rows),
        note="Sums and means. The verdict compares medians, which a single disturbed iteration does not change.",
    )


def _stages(number: int, result: Compiled, cold: Trial) -> Table:
    warm = result.warm.stages_s if result.warm is not None else {}
    return Table(
        id=f"stages_{number}",
        title=f"Compiling {result.target}, {result.mode}, by stage",
        columns=(Column("stage"), Column("empty cache", "s"), Column("full cache", "s")),
        rows=tuple((stage, seconds, warm.get(stage)) for stage, seconds in cold.stages_s.items()),
        note="By torch's own clocks. Each stage without those that it waits for. With a full cache AOT autograd finds "
        "and loads what was compiled before, so that nothing is left for the stages after it.",
    )


def _pictures(results: Sequence[Compiled]) -> Iterable[Series]:
    for number, result in enumerate(results, start=1):
        if result.ran is None:
            continue
        eager, cold = result.ran
        iterations = tuple(float(each + 1) for each in range(result.iterations))
        programs = (("eager", eager), ("compiled", cold), ("compiled, from the cache", result.warm))
        yield Series(
            id=f"time_so_far_{number}",
            title=f"{result.target}, {result.mode}: time so far",
            x=Axis(name="iteration"),
            y=Axis(name="time so far", unit="s", logarithmic=True),
            lines=tuple(
                Line(name=name, x=iterations, y=tuple(accumulate(trial.samples_s)), mark=Mark.LINE)
                for name, trial in programs
                if trial is not None
            ),
            note="Where the lines cross, compiling has paid back what it cost.",
        )


def _notes(results: Sequence[Compiled]) -> Iterable[str]:
    yield from dict.fromkeys(note for result in results if result.eager is not None for note in result.eager.notes)
    for result in results:
        name = f"{result.target}, {result.mode}"
        if result.failed:
            yield f"{name}: {result.failed}."
        if result.interrupted and result.cold is not None:
            yield f"{name}: interrupted before its results were compared with eager's."
        if result.cold is None:
            continue
        yield from _compiling_notes(name, result.cold)
        if result.check is not None and not result.check.correct:
            yield f"{name}: the compiled program is wrong: {result.check.why}."
        if result.check is not None:
            yield from _rounding_notes(name, result.check)
        if result.bounds_failed:
            yield f"{name}: no bounds, and no ops and bytes of eager's: {result.bounds_failed}."
        if result.op_bytes and result.fused_bytes:
            saved = 1 - result.fused_bytes / result.op_bytes
            moved = f"{Quantity(result.op_bytes, 'B')} moved op by op"
            yield f"{name}: fusing at best saves {percent(saved)} of {moved}."
        if result.others_share is not None and result.others_share >= BUSY_SHARE:
            taken = percent(result.others_share)
            yield f"{name}: other programs took {taken} of the CPU meanwhile: run again on a quiet machine."
        if result.verdict == "neutral":
            yield f"{name}: less than {percent(NEUTRAL)} is neither a gain nor a loss."


def _compiling_notes(name: str, cold: Trial) -> Iterable[str]:
    for what, reasons in (("graph break", cold.graph_breaks), ("recompile", cold.recompiles)):
        if reasons:
            yield f"{name}: {count_of(len(reasons), what)}: {_some(reasons)}. rooflight explain says what removes each."
    if cold.recompiles:
        yield f"{name}: kernels and their bytes are those of all compilations, recompiles too: a step runs fewer."


def _rounding_notes(name: str, check: Check) -> Iterable[str]:
    rounding = check.rounding or Rounding()
    if rounding.failed:
        yield f"{name}: not compared with float64: {rounding.failed}."
    if rounding.missing:
        ops = ", ".join(rounding.missing[:_REASONS]) + " ..." * (len(rounding.missing) > _REASONS)
        yield f"{name}: without a float64 form, so in the program's precision in the float64 run: {ops}."
    if check.different and check.correct:
        yield f"{name}: {check.different}, but no further from float64 than the eager program: rounding."


def _some(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
    return "; ".join(reasons[:_REASONS]) + more
