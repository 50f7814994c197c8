"""What compiling a target would bring, predicted: the target is recorded, and nothing of it is compiled or timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rooflight.front.device import Progress, current_device, log_progress
from rooflight.front.sessions import predicted
from rooflight.hardware.machine.memory import fresh_page_s
from rooflight.prediction.gain.gain import Gain, predicted_gain
from rooflight.prediction.gain.walls import FRESH_PAGE_S
from rooflight.prediction.gain.walls import MODES as PREDICTED_MODES
from rooflight.prediction.predictor import Predictor
from rooflight.records.document import Document
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Cell, Report, Table, table
from rooflight.records.session import COMPILED
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import Host
from rooflight.roofline.memory.texts import memory_shortage
from rooflight.studies.compiling.bench.benchmark import Matrix, recorded
from rooflight.studies.compiling.bench.result import short_names
from rooflight.studies.compiling.workloads import WORKLOADS

BACKENDS: Final = ("inductor", "cudagraphs")
_PHYSICS: Final = {"launches": "launches", "bytes": "bytes_moved", "host_s": "host_s", "device_s": "device_s",
                   "physical_s": "wall_s"}  # fmt: skip
_WORDS: Final = {
    "pays": "compiling would pay",
    "hurts": "compiling would hurt",
    "neutral": "compiling would change little",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCompiled:
    """The ``gain`` of a target on a device, over so many iterations, ``warmup`` of them no steady state. ``step``: what
    was recorded, in a line; ``notes``: what was not done as its config says, and whether the device has the memory.
    """

    target: str
    step: str
    device: str
    roofs: str
    host: str
    iterations: int
    warmup: int
    gain: Gain
    notes: tuple[str, ...] = ()

    @property
    def warmup_eager_s(self) -> float:
        """Time of the eager warm-up iterations."""
        return self.warmup * self.gain.eager_s

    @property
    def warmup_compiled_s(self) -> float:
        """Time of the compiled warm-up iterations, compiling included."""
        return self.gain.compile_s + self.warmup * self.gain.compiled_s

    @property
    def total_speedup(self) -> float:
        """Eager's time of all iterations over the compiled step's, compiling included."""
        return self.gain.total_speedup(self.iterations)


def predict(
    asked: Matrix, *, device: str | None = None, host: Host | None = None, progress: Progress = log_progress
) -> tuple[PredictedCompiled, ...]:
    """What ``benchmark`` would find of targets on ``device``, a result for each target and mode, without compiling any.

    Presets, configs and problems are recorded without hardware; a function runs once, where it makes its tensors, to
    be recorded. ``device`` is this machine's by default; "cpu" has the roofs of so many ``threads``. ``host`` is the
    typical one by default. Raises ValueError (TargetError) for what cannot be recorded, for an unknown device and for a
    backend of which no gain is known.
    """
    asked.check()
    if asked.backend not in BACKENDS:
        raise ValueError(f'no gain is predicted for the backend "{asked.backend}": take {" or ".join(BACKENDS)}')
    if unknown := [mode for mode in asked.modes if mode not in PREDICTED_MODES]:
        raise ValueError(f'no gain is predicted for the mode "{unknown[0]}": take {", ".join(PREDICTED_MODES[:-1])}')
    return tuple(each for target in asked.targets for each in _predicted(target, asked, device, host, progress))


def _predicted(
    target: str, asked: Matrix, device: str | None, host: Host | None, progress: Progress
) -> Iterator[PredictedCompiled]:
    analysis, notes = _analysis(target, asked, device, host, progress)
    on_cpu = analysis.device.kind == "cpu"
    session = analysis.session
    compiled = analysis.of(replace(session, environment={**session.environment, COMPILED: "yes"}))
    if missing := memory_shortage(compiled.memory, analysis.device.name, compiled=True):
        notes = [*notes, f"{missing} The times are those of one device with enough memory."]
    if asked.backend == "cudagraphs" and on_cpu:
        raise ValueError("--backend cudagraphs: a CPU has no CUDA graphs: name a GPU with --device")
    page_s = fresh_page_s() if on_cpu else FRESH_PAGE_S
    for mode in ("cudagraphs",) if asked.backend == "cudagraphs" else asked.modes:
        yield PredictedCompiled(
            target=target,
            step=target if target.endswith(analysis.target) or target in WORKLOADS else analysis.target,
            device=analysis.device.name,
            roofs=analysis.device.roofs_used,
            host="" if on_cpu else analysis.host.source,
            iterations=asked.iterations,
            warmup=asked.warmup,
            gain=predicted_gain(analysis, mode, page_s=page_s),
            notes=tuple(notes),
        )


def _analysis(
    target: str, asked: Matrix, device: str | None, host: Host | None, progress: Progress
) -> tuple[Analysis, list[str]]:
    analysis, notes = recorded(target, asked.options, inputs=asked.inputs, device=device, progress=progress)
    if analysis.device.kind == "cpu":
        if host is not None:
            raise ValueError("--host: no effect on a CPU, whose ops are predicted together with what launches them")
        if asked.threads is not None:
            analysis = analysis.on(current_device("cpu", threads=asked.threads, progress=progress))
        return analysis, notes
    if asked.threads is not None:
        raise ValueError("--threads: no effect on a GPU's predicted times")
    progress("predicting")
    return predicted(analysis, Predictor(), host), notes


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
    steps = {each.target: each.step for each in data if each.step != each.target}
    facts: list[tuple[str, Cell]] = [("device", first.device), ("roofs", first.roofs)]
    facts += [*(("step", step) for step in steps.values()), *([("host", first.host)] if first.host else [])]
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
    sides = (("eager", gain.eager), ("compiled", gain.compiled))
    return PredictedGainDocument.view(
        result,
        gain,
        gain.work,
        correct=None,
        compiled_kernels=gain.work.generated,
        **{f"{side}_{name}": getattr(physics, field) for side, physics in sides for name, field in _PHYSICS.items()},
        enter_s=gain.compiled.enter_s,
        copy_s=gain.compiled.copy_s,
    )


def _conclusion(result: PredictedCompiled) -> str:
    gain = result.gain
    name = f"{result.target}, {gain.mode}"
    between = f"{gain.speedup_low:.3g} to {gain.speedup_high:.3g}"
    unsure = "" if gain.sure else " (unsure)"
    verdict = f"{name}: {_WORDS[gain.verdict]}{unsure}: {gain.steady_speedup:.3g} times as fast ({between})."
    even = gain.break_even_iterations
    if even is None:
        return f"{verdict} It would never pay back what it costs."
    cost = Quantity(gain.compile_s, "s")
    return f"{verdict} It would pay back the {cost} of compiling after {count_of(even, 'iteration')}."


def _results(results: Sequence[PredictedCompiled]) -> Table:
    return table(
        "results",
        "Eager and compiled, predicted",
        ((result, result.gain) for result in results),
        ("target", "", lambda row: row[0].target),
        ("mode", "", lambda row: row[1].mode),
        ("verdict", "", lambda row: row[1].verdict if row[1].sure else f"{row[1].verdict}?"),
        ("eager", "s", lambda row: row[1].eager_s),
        ("compiled", "s", lambda row: row[1].compiled_s),
        ("steady", "", lambda row: f"{row[1].steady_speedup:.3g} x"),
        ("90 %", "", lambda row: f"{row[1].speedup_low:.3g} to {row[1].speedup_high:.3g}"),
        ("in all", "", lambda row: f"{row[0].total_speedup:.3g} x"),
        ("compile", "s", lambda row: row[1].compile_s),
        ("break-even", "", lambda row: "never" if (n := row[1].break_even_iterations) is None else f"≈{n:,}"),
        note="eager, compiled: a steady iteration. steady: speed-up over eager, nine times in ten within 90 %. in all: "
        "compiling included. verdict: with a question mark it is unsure, as the interval has more than one, or as the "
        "notes say.",
        optional=("in all", "90 %", "break-even", "compile"),
    )


def _sources(number: int, result: PredictedCompiled) -> Table:
    gain = result.gain
    eager, compiled = gain.eager, gain.compiled
    parts = [
        ("launches by the host", "", eager.launches, compiled.launches),
        ("bytes moved", "B", eager.bytes_moved, compiled.bytes_moved),
        ("device", "s", eager.device_s, compiled.device_s),
        ("  of it inputs copied for a graph", "s", 0.0, compiled.copy_s),
        ("  of it first touches of fresh memory", "s", eager.fresh_s, compiled.fresh_s),
        ("host", "s", eager.host_s, compiled.host_s),
        ("  of it guards and entering", "s", 0.0, compiled.enter_s),
        ("both at once", "s", eager.wall_s, compiled.wall_s),
        ("as measured programs correct it", "s", gain.eager_s, gain.compiled_s),
    ]
    left_out = {
        "  of it first touches of fresh memory": not (eager.fresh_s or compiled.fresh_s),
        "as measured programs correct it": not result.host,
    }
    return table(
        f"sources_{number}",
        f"{result.target}, {gain.mode}: where the gain comes from",
        (part for part in parts if not left_out.get(part[0])),
        ("part", "", lambda part: part[0]),
        ("eager", "", lambda part: _in(part[1], part[2])),
        ("compiled", "", lambda part: _in(part[1], part[3])),
        ("saved", "", lambda part: _in(part[1], part[2] - part[3])),
        note="host, device: each by itself; both at once: a kernel begins when it is launched and the device is free.",
    )


def _in(unit: str, value: float) -> Cell:
    return Quantity(value, unit) if unit else value


def _notes(results: Sequence[PredictedCompiled]) -> Iterator[str]:
    yield "Nothing was compiled or timed. rooflight compile-bench without --predict-only measures."
    yield from dict.fromkeys(note for result in results for note in result.notes)
    by_doubt: dict[str, list[str]] = {}
    for result in results:
        for doubt in result.gain.doubts:
            by_doubt.setdefault(doubt, []).append(f"{result.target}, {result.gain.mode}")
    for doubt, names in by_doubt.items():
        which = "all of them" if len(names) == len(results) > 1 else "; ".join(names)
        yield f"Unsure: {doubt}: {which}."
    if any(result.host for result in results):
        yield "The time of compiling for a GPU rests on no measurement: torch.compile was timed on a CPU alone."
