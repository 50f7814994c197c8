"""What compiling a target would bring, predicted: the target is recorded, and nothing of it is compiled or timed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rooflight.compiling.benchmark import check_request
from rooflight.compiling.trial import Options
from rooflight.compiling.workloads import WORKLOADS
from rooflight.front.device import Progress, current_device, log_progress
from rooflight.front.sessions import predicted
from rooflight.front.targets import RunOptions, analyze_target
from rooflight.machine.fresh_pages import fresh_page_s
from rooflight.prediction.compiled_walls import MODES as PREDICTED_MODES
from rooflight.prediction.cpu_gain import FRESH_PAGE_S
from rooflight.prediction.gain import Gain, predicted_gain
from rooflight.prediction.predictor import Predictor
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import Host
from rooflight.roofline.memory import memory_shortage

BACKENDS: Final = ("inductor", "cudagraphs")


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
    target: str,
    options: Options | None = None,
    *,
    inputs: str | None = None,
    modes: Sequence[str] = ("default",),
    device: str | None = None,
    host: Host | None = None,
    iterations: int = 100,
    warmup: int = 5,
    backend: str = "inductor",
    threads: int | None = None,
    progress: Progress = log_progress,
) -> tuple[PredictedCompiled, ...]:
    """What ``benchmark`` would find of a target on ``device``, a result for each mode, without compiling it.

    Presets, configs and problems are recorded without hardware; a function runs once, where it makes its tensors, to
    be recorded. ``device`` is this machine's by default; "cpu" has the roofs of ``threads`` threads. ``host`` is the
    typical one by default. Raises ValueError (TargetError) for what cannot be recorded, for an unknown device and for a
    backend of which no gain is known.
    """
    asked = options or Options()
    check_request(
        target, asked, modes, inputs=inputs, iterations=iterations, warmup=warmup, threads=threads, limit_s=1.0
    )
    if backend not in BACKENDS:
        raise ValueError(f'no gain is predicted for the backend "{backend}": take {" or ".join(BACKENDS)}')
    if unknown := [mode for mode in modes if mode not in PREDICTED_MODES]:
        raise ValueError(f'no gain is predicted for the mode "{unknown[0]}": take {", ".join(PREDICTED_MODES[:-1])}')
    analysis, notes = _analysis(target, asked, inputs, device, host, threads, progress)
    if missing := memory_shortage(analysis.memory, analysis.device.name):
        notes = [*notes, f"{missing} The times are those of one device with enough memory."]
    if backend == "cudagraphs" and analysis.device.kind == "cpu":
        raise ValueError("--backend cudagraphs: a CPU has no CUDA graphs: name a GPU with --device")
    page_s = fresh_page_s() if analysis.device.kind == "cpu" else FRESH_PAGE_S
    named = ("cudagraphs",) if backend == "cudagraphs" else tuple(modes)
    return tuple(
        PredictedCompiled(
            target=target,
            step=target if target.endswith(analysis.target) or target in WORKLOADS else analysis.target,
            device=analysis.device.name,
            roofs=analysis.device.roofs_used,
            host="" if analysis.device.kind == "cpu" else analysis.host.source,
            iterations=iterations,
            warmup=warmup,
            gain=predicted_gain(analysis, mode, page_s=page_s),
            notes=tuple(notes),
        )
        for mode in named
    )


def _analysis(
    target: str,
    options: Options,
    inputs: str | None,
    device: str | None,
    host: Host | None,
    threads: int | None,
    progress: Progress,
) -> tuple[Analysis, list[str]]:
    if target in WORKLOADS:
        target = f"{inspect.getsourcefile(WORKLOADS[target])}:{WORKLOADS[target].__name__}"
    run = RunOptions(**{key: value for key, value in msgspec.structs.asdict(options).items() if key != "device"})
    analysis, notes = analyze_target(target, run, inputs=inputs, device=device, measured=False, progress=progress)
    if analysis.device.kind == "cpu":
        if host is not None:
            raise ValueError("--host: no effect on a CPU, whose ops are predicted together with what launches them")
        if threads is not None:
            analysis = analysis.on(current_device("cpu", threads=threads, progress=progress))
        return analysis, notes
    if threads is not None:
        raise ValueError("--threads: no effect on a GPU's predicted times")
    progress("predicting")
    return predicted(analysis, Predictor(), host), notes
