"""Results of ``rooflight compile-bench`` as a Report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from rooflight.records.account import WORDS, Cause
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Axis, Cell, Line, Mark, Report, Series, Table, table
from rooflight.studies.compiling.bench.result import (
    NEUTRAL,
    BreakEven,
    Check,
    Compiled,
    Rounding,
    Trial,
    break_even,
    document,
    short_names,
    summary,
    times_faster,
)

_REASONS = 5
_AIMED_AT = (Cause.FUSION, Cause.LAUNCHES)


def report_of(
    results: Sequence[Compiled], *, facts: Sequence[tuple[str, Cell]] = (), notes: Sequence[str] = ()
) -> Report:
    """What ``rooflight compile-bench`` shows of one or more results. Raises ValueError for none."""
    if not results:
        raise ValueError("no results of compile-bench to report")
    data = tuple(map(document, results))
    names = short_names(result.target for result in results)
    results = [replace(result, target=names[result.target]) for result in results]
    steps = {result.target: result.eager.step for result in results if result.eager is not None and result.eager.step}
    return Report(
        title=f"torch.compile: {', '.join(names.values())}",
        data=data,
        facts=(*facts, *(("step", step) for step in steps.values())),
        tables=tuple(_tables(results)),
        series=tuple(_pictures(results)),
        notes=(*notes, *_notes(results)),
        conclusion=" ".join(conclusion(result) for result in results),
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
    if result.verdict == "unsure":
        why = f"other programs took {percent(result.others_share or 0.0)} of the CPU"
        return f"{name}: unsure, as {why}: {steady}; {over}. Run it again on a quiet machine."
    words = {"pays": "compiling pays", "hurts": "compiling hurts", "neutral": "compiling changes little"}
    verdict = f"{name}: {words[result.verdict or 'neutral']}: {steady}; {over}. {_pays_back(result)}"
    return " ".join(filter(None, (verdict, _eager(result))))


def _eager(result: Compiled) -> str:
    """Of what compiling aims at, how much an eager iteration has, by its account."""
    if result.account is None:
        return ""
    parts = {cause: sum(row.share for row in result.account.rows if row.cause is cause) for cause in _AIMED_AT}
    said = " and ".join(f"{percent(part)} {WORDS[cause]}" for cause, part in parts.items())
    return f"An eager iteration has {said} ({result.account.rows[0].source})." if result.account.rows else ""


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
    yield table(
        "results",
        "Eager and compiled",
        results,
        ("target", "", lambda row: row.target),
        ("mode", "", lambda row: row.mode),
        ("verdict", "", lambda row: row.verdict or ("interrupted" if row.interrupted else "failed")),
        ("eager", "s", lambda row: row.eager_s),
        ("compiled", "s", lambda row: row.compiled_s),
        ("steady", "", lambda row: times_faster(row.steady_speedup)),
        ("in all", "", lambda row: times_faster(row.total_speedup)),
        ("compile", "s", lambda row: row.compile_s),
        ("from cache", "s", lambda row: row.compile_warm_s),
        ("break-even", "", break_even),
        ("result", "", lambda row: None if row.check is None else "right" if row.check.correct else "wrong"),
        note="eager, compiled: median of a steady iteration. steady, in all: speed-up over eager, without and with "
        "compiling. break-even: the iteration from which on compiling has paid back its cost (≈: extrapolated).",
        optional=("from cache", "in all", "break-even", "compile"),
    )
    yield summary(results)
    if ran := [(result, *result.ran) for result in results if result.ran is not None]:
        yield _work(ran)
    if checks := [(result, result.check) for result in results if result.check is not None]:
        yield _errors(checks)
    for number, result in enumerate(results, start=1):
        if result.ran is not None:
            yield _times(number, result, *result.ran)
            yield _stages(number, result, result.ran[1])


def _work(ran: Sequence[tuple[Compiled, Trial, Trial]]) -> Table:
    return table(
        "work",
        "Launches, cache, bytes and memory of a step",
        ran,
        ("target", "", lambda row: row[0].target),
        ("mode", "", lambda row: row[0].mode),
        ("launches eager", "", lambda row: row[0].op_kernels),
        ("compiled", "", lambda row: row[2].kernels),
        ("graphs from cache", "", lambda row: _from_cache(row[2])),
        ("next start", "", lambda row: _from_cache(row[0].warm)),
        ("moved by ops", "B", lambda row: row[0].op_bytes),
        ("by kernels", "B", lambda row: row[2].kernel_bytes),
        ("fused at best", "B", lambda row: row[0].fused_bytes),
        ("op bound", "s", lambda row: row[0].op_bound_s),
        ("fused bound", "s", lambda row: row[0].fused_bound_s),
        ("peak eager", "B", lambda row: row[1].peak_bytes),
        ("peak compiled", "B", lambda row: row[2].peak_bytes),
        note="launches eager: ops of a step that compute. compiled: kernels of the compiled graphs, generated or a "
        "library's, without ops outside the graphs (an optimizer beside a compiled model); by kernels: what they read "
        "and write by Inductor's account. graphs from cache: of all that Inductor compiled, from an empty cache and in "
        "the next start. peak: of the whole process, compiler included; on CUDA, of torch's allocator.",
        optional=("op bound", "fused bound", "fused at best"),
    )


def _from_cache(trial: Trial | None) -> str | None:
    if trial is None or not (graphs := trial.cache_hits + trial.cache_misses):
        return None
    return f"{trial.cache_hits} of {graphs}"


def _errors(checks: Sequence[tuple[Compiled, Check]]) -> Table:
    rows = [(result, check.error, check.rounding or Rounding()) for result, check in checks]
    return table(
        "errors",
        "Errors",
        rows,
        ("target", "", lambda row: row[0].target),
        ("mode", "", lambda row: row[0].mode),
        ("from eager", "", lambda row: _error(row[1])),
        ("eager from float64", "", lambda row: _error(row[2].eager)),
        ("compiled from float64", "", lambda row: _error(row[2].compiled)),
        ("compiled is further in", "", lambda row: row[2].eager and (row[2].further or "no tensor")),
        note="from eager: the largest |difference| / (scale + |eager|) of results, gradients and state. From float64: "
        "the largest root mean square error of a tensor, as a share of its values.",
    )


def _error(error: float | None) -> str | None:
    return None if error is None else f"{error:.2g}"


def _times(number: int, result: Compiled, eager: Trial, cold: Trial) -> Table:
    warmup, rest = result.warmup, result.iterations - result.warmup
    parts = (
        (f"warm-up (first {warmup})", slice(warmup), warmup),
        (f"steady state (other {rest})", slice(warmup, None), rest),
        (f"in all ({result.iterations})", slice(None), result.iterations),
    )
    rows: list[tuple[str, float, float]] = []
    for what, part, count in parts:
        before, after = sum(eager.samples_s[part]), sum(cold.samples_s[part])
        rows += [(what, before, after), ("  per iteration", before / count, after / count)]
    return table(
        f"times_{number}",
        f"{result.target}, {result.mode}",
        rows,
        ("iterations", "", lambda row: row[0]),
        ("eager", "s", lambda row: row[1]),
        ("compiled", "s", lambda row: row[2]),
        ("speed-up", "", lambda row: times_faster(row[1] / row[2])),
        note="Sums and means. The verdict compares medians, which a single disturbed iteration does not change.",
    )


def _stages(number: int, result: Compiled, cold: Trial) -> Table:
    warm = result.warm.stages_s if result.warm is not None else {}
    return table(
        f"stages_{number}",
        f"Compiling {result.target}, {result.mode}, by stage",
        cold.stages_s.items(),
        ("stage", "", lambda row: row[0]),
        ("empty cache", "s", lambda row: row[1]),
        ("full cache", "s", lambda row: warm.get(row[0])),
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
            yield f"{name}: other programs took {taken} of the CPU: run again on a quiet machine."
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
