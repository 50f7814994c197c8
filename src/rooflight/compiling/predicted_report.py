"""Predicted gains of torch.compile as a Report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from rooflight.compiling.predicted import PredictedCompiled
from rooflight.compiling.result import short_names
from rooflight.records.document import Document
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Cell, Column, Report, Table

_SAID = {"pays": "compiling would pay", "hurts": "compiling would hurt", "neutral": "compiling would change little"}


class PredictedGainDocument(Document, frozen=True, kw_only=True, tag="rooflight.compile-bench.predicted/1"):
    """A target in a mode, predicted: the keys of ``rooflight.compile-bench`` mean the same, and nothing ran.

    The speed-up lies nine times in ten between ``speedup_low`` and ``speedup_high``; ``sure``: both have the same
    verdict, and there are no ``doubts``, sentences why the model may say nothing of this step. ``correct`` is None: no
    result was compared. Of the physics behind the times, eager and compiled: launches, bytes moved, seconds of host and
    device by themselves, and the wall time of both together, which measured programs then correct; ``enter_s``: host
    time for guards, entering compiled code and replaying graphs; ``copy_s``: device time for inputs copied to where a
    graph reads them. ``compiled_kernels``: written by Inductor, ``library_calls``: of libraries.
    """

    target: str
    step: str
    mode: str
    device: str
    iterations: int
    warmup: int
    eager_s: float
    compiled_s: float
    steady_speedup: float
    speedup_low: float
    speedup_high: float
    total_speedup: float
    warmup_eager_s: float
    warmup_compiled_s: float
    compile_s: float
    break_even_iterations: int | None
    correct: bool | None
    verdict: Literal["pays", "neutral", "hurts"]
    sure: bool
    doubts: tuple[str, ...]
    graphs: int
    compiled_kernels: int
    library_calls: int
    eager_launches: int
    compiled_launches: int
    eager_bytes: int
    compiled_bytes: int
    eager_host_s: float
    compiled_host_s: float
    eager_device_s: float
    compiled_device_s: float
    eager_physical_s: float
    compiled_physical_s: float
    enter_s: float
    copy_s: float


def report_of(results: Sequence[PredictedCompiled]) -> Report:
    """What ``rooflight compile-bench --predict-only`` shows of one or more results. Raises ValueError for none."""
    if not results:
        raise ValueError("no predicted results of compile-bench to report")
    data = tuple(map(document, results))
    names = short_names(result.target for result in results)
    results = [replace(result, target=names[result.target]) for result in results]
    first = results[0]
    facts: list[tuple[str, Cell]] = [("device", first.device), ("roofs", first.roofs)]
    steps = {each.target: each.step for each in data if each.step != each.target}
    facts += (("step", step) for step in steps.values())
    if first.host:
        facts.append(("host", first.host))
    return Report(
        title=f"torch.compile, predicted: {', '.join(names.values())}",
        data=data,
        facts=tuple(facts),
        tables=(_results(results), *(_sources(number, result) for number, result in enumerate(results, start=1))),
        notes=tuple(_notes(results)),
        conclusion=" ".join(_conclusion(result) for result in results),
    )


def document(result: PredictedCompiled) -> PredictedGainDocument:
    """A result in machine-readable form."""
    gain = result.gain
    return PredictedGainDocument(
        target=result.target,
        step=result.step,
        mode=gain.mode,
        device=result.device,
        iterations=result.iterations,
        warmup=result.warmup,
        eager_s=gain.eager_s,
        compiled_s=gain.compiled_s,
        steady_speedup=gain.steady_speedup,
        speedup_low=gain.speedup_low,
        speedup_high=gain.speedup_high,
        total_speedup=result.total_speedup,
        warmup_eager_s=result.warmup_eager_s,
        warmup_compiled_s=result.warmup_compiled_s,
        compile_s=gain.compile_s,
        break_even_iterations=gain.break_even_iterations,
        correct=None,
        verdict=gain.verdict,
        sure=gain.sure,
        doubts=gain.doubts,
        graphs=gain.work.graphs,
        compiled_kernels=gain.work.generated,
        library_calls=gain.work.library_calls,
        eager_launches=gain.eager.launches,
        compiled_launches=gain.compiled.launches,
        eager_bytes=gain.eager.bytes_moved,
        compiled_bytes=gain.compiled.bytes_moved,
        eager_host_s=gain.eager.host_s,
        compiled_host_s=gain.compiled.host_s,
        eager_device_s=gain.eager.device_s,
        compiled_device_s=gain.compiled.device_s,
        eager_physical_s=gain.eager.wall_s,
        compiled_physical_s=gain.compiled.wall_s,
        enter_s=gain.compiled.enter_s,
        copy_s=gain.compiled.copy_s,
    )


def _conclusion(result: PredictedCompiled) -> str:
    gain = result.gain
    name = f"{result.target}, {gain.mode}"
    between = f"{gain.speedup_low:.3g} to {gain.speedup_high:.3g}"
    unsure = "" if gain.sure else " (unsure)"
    said = f"{name}: {_SAID[gain.verdict]}{unsure}: {gain.steady_speedup:.3g} times as fast ({between})."
    even = gain.break_even_iterations
    if even is None:
        return f"{said} It would never pay back what it costs."
    cost = Quantity(gain.compile_s, "s")
    return f"{said} It would pay back the {cost} of compiling after {count_of(even, 'iteration')}."


def _results(results: Sequence[PredictedCompiled]) -> Table:
    return Table(
        id="results",
        title="Eager and compiled, predicted",
        columns=(
            Column("target"),
            Column("mode"),
            Column("verdict"),
            Column("eager", "s"),
            Column("compiled", "s"),
            Column("steady"),
            Column("90 %"),
            Column("in all"),
            Column("compile", "s"),
            Column("break-even"),
        ),
        rows=tuple(_row(result) for result in results),
        note="eager, compiled: a steady iteration. steady: speed-up over eager, nine times in ten within 90 %. in all: "
        "compiling included. verdict: with a question mark it is unsure, as the interval has more than one, or as the "
        "notes say.",
        optional=("in all", "90 %", "break-even", "compile"),
    )


def _row(result: PredictedCompiled) -> tuple[Cell, ...]:
    gain, even = result.gain, result.gain.break_even_iterations
    return (
        result.target,
        gain.mode,
        gain.verdict if gain.sure else f"{gain.verdict}?",
        gain.eager_s,
        gain.compiled_s,
        f"{gain.steady_speedup:.3g} x",
        f"{gain.speedup_low:.3g} to {gain.speedup_high:.3g}",
        f"{result.total_speedup:.3g} x",
        gain.compile_s,
        "never" if even is None else f"≈{even:,}",
    )


def _sources(number: int, result: PredictedCompiled) -> Table:
    gain = result.gain
    eager, compiled = gain.eager, gain.compiled
    rows: list[tuple[Cell, ...]] = [
        ("launches by the host", eager.launches, compiled.launches, eager.launches - compiled.launches),
        _bytes("bytes moved", eager.bytes_moved, compiled.bytes_moved),
        _seconds("device", eager.device_s, compiled.device_s),
        _seconds("  of it inputs copied for a graph", 0.0, compiled.copy_s),
        _seconds("host", eager.host_s, compiled.host_s),
        _seconds("  of it guards and entering", 0.0, compiled.enter_s),
        _seconds("both at once", eager.wall_s, compiled.wall_s),
    ]
    if eager.fresh_s or compiled.fresh_s:
        rows.insert(4, _seconds("  of it first touches of fresh memory", eager.fresh_s, compiled.fresh_s))
    if result.host:
        rows.append(_seconds("as measured programs correct it", gain.eager_s, gain.compiled_s))
    return Table(
        id=f"sources_{number}",
        title=f"{result.target}, {gain.mode}: where the gain comes from",
        columns=(Column("part"), Column("eager"), Column("compiled"), Column("saved")),
        rows=tuple(rows),
        note="host, device: each by itself; both at once: a kernel begins when it is launched and the device is free.",
    )


def _bytes(what: str, eager: int, compiled: int) -> tuple[Cell, ...]:
    return (what, Quantity(eager, "B"), Quantity(compiled, "B"), Quantity(eager - compiled, "B"))


def _seconds(what: str, eager: float, compiled: float) -> tuple[Cell, ...]:
    return (what, Quantity(eager, "s"), Quantity(compiled, "s"), Quantity(eager - compiled, "s"))


def _notes(results: Sequence[PredictedCompiled]) -> Iterator[str]:
    yield "Nothing was compiled or timed. rooflight compile-bench without --predict-only measures."
    yield from dict.fromkeys(note for result in results for note in result.notes)
    by_doubt: dict[str, list[str]] = {}
    for result in results:
        for doubt in result.gain.doubts:
            by_doubt.setdefault(doubt, []).append(f"{result.target}, {result.gain.mode}")
    for doubt, names in by_doubt.items():
        yield f"Unsure: {doubt}: {_all_or(names, len(results))}."
    if any(result.host for result in results):
        yield "The time of compiling for a GPU rests on no measurement: torch.compile was timed on a CPU alone."


def _all_or(names: Iterable[str], count: int) -> str:
    given = list(names)
    return "all of them" if len(given) == count and count > 1 else "; ".join(given)
