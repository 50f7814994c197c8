"""From what a user names to an analysis: a preset, a config, a function or file of theirs, or a saved session."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import TYPE_CHECKING, Final

from rooflight.front.device import Progress, find_what_if, log_progress, place_of
from rooflight.front.options import PLAIN, RunOptions, TraceOptions
from rooflight.front.sessions import analyze, analyze_file
from rooflight.front.sources import is_session
from rooflight.hardware.devices.finding import HERE
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.devices.what_if import AS_IT_IS, WhatIf
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import CACHED, DECODED, Session
from rooflight.records.visible import visible
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.memory.use import memory_use
from rooflight.sources.traces.file.discovery import is_trace

if TYPE_CHECKING:
    from rooflight.sources.workloads.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a step did, what it was, and notes for who reads the report."""

    session: Session
    step: Step
    notes: tuple[str, ...] = ()


ROOM = 1.2
"""Memory a run needs over what its ops show: kernels take workspaces, torch itself some, and allocators round up."""
_SILENT_S: Final = {False: 2.0, True: 60.0}
"""After which a step that is not measured, or is, has a word said of how long it takes."""
_OWN: Final = str(Path(__file__).parents[1])
_SLOW: Final = {
    False: "computes on this CPU, though its times are not asked for. Nothing is computed if its model and tensors are "
    'made on meta (with torch.device("meta"): ...) or, for a GPU that is not here, on "cuda"',
    True: "has run for a minute. To be measured it runs a dozen times, and waits for ever if it exchanges with ranks "
    "that run it less often (--no-measure: twice)",
}


def analyze_target(
    target: str,
    options: RunOptions,
    *,
    inputs: str | None = None,
    device: str | None = None,
    what_if: WhatIf = AS_IT_IS,
    measured: bool | None = None,
    trace: TraceOptions = PLAIN,
    progress: Progress = log_progress,
) -> tuple[Analysis, list[str]]:
    """What ``rooflight analyze`` does up to the report: the analysis, and notes on options that had no effect.

    A device other than this machine's is bounded without hardware, on the meta device. ``inputs``: the function of the
    target's file that returns the arguments of a function that takes some, if not ``get_inputs``. Raises ValueError for
    the user's mistakes, RunFailed for a step that breaks.
    """
    if is_session(target):
        what = "trace" if is_trace(Path(target)) else "saved session"
        if inputs is not None:
            raise ValueError(f"--inputs {inputs}: no effect on {target}: a {what} cannot run again")
        options.refuse(f"no effect on {target}: a {what} cannot run with other options")
        if measured is not None:
            raise ValueError(f"--{'' if measured else 'no-'}measure: no effect on {target}: a {what} cannot run again")
        return analyze_file(target, device, what_if=what_if, options=trace, progress=progress), []
    trace.refuse_for(target)
    from rooflight.sources.workloads.errors import TargetError
    from rooflight.sources.workloads.targets import ProblemFile, UserFunction, find_target, no_inputs, require_libraries

    kind = find_target(target)
    if inputs is not None and not isinstance(kind, UserFunction):
        raise TargetError(no_inputs(inputs))
    require_libraries(kind)  # before a device is calibrated for half a minute
    from rooflight.hardware.machine.hardware import kind_here
    from rooflight.sources.capture.run.asks import AsksForGpuError

    here = device is None or device.lower() in HERE
    # a name that is unknown, and roofs that the device cannot have, are refused at once
    known = None if here else find_what_if(device, what_if, progress=progress)
    place = kind_here() if device is None else device.lower() if known is None else place_of(known)
    runs = place is not None and measured is not False
    is_function = isinstance(kind, UserFunction)
    if is_function:
        options.refuse(f"no effect on {target}: set it inside the function")
        known = known or find_what_if(device, what_if, progress=progress)
    as_here = options
    if place == "cpu" and not options.dtype and not isinstance(kind, UserFunction | ProblemFile):
        as_here = replace(options, dtype="float32")  # a CPU is not made for bfloat16
    try:
        with _as_on(known, place):
            # what cannot be shows while the step is recorded without hardware, before half a minute of calibrating
            seen = (
                _observe_function(target, inputs, runs, progress)
                if is_function
                else record_without_hardware(target, as_here, progress)
            )
    except AsksForGpuError:
        assert known is not None
        seen = _record_elsewhere(target, options, inputs, known, progress)
    spec = known or find_what_if(device, what_if, progress=progress)
    if runs and place is not None and not is_function:
        seen = _observe_here(target, as_here, seen, spec, place, progress)
    notes = [*seen.step.notes, *seen.notes]
    if measured and place is None:
        notes.append(f"Not measured: {spec.part_name} is another device than this machine's.")
    step = seen.step
    decoded = {DECODED: str(step.tokens), CACHED: str(step.seq)} if step.name == "decode" else {}
    about = {"target": step.description, "model_class": step.model_class, **decoded}
    environment = {**seen.session.environment, **{name: text for name, text in about.items() if text}}
    return analyze(replace(seen.session, environment=environment), spec, target=step.description), notes


@contextmanager
def _as_on(device: DeviceSpec | None, place: str | None) -> Iterator[None]:
    """A step recorded for a GPU that is not here runs as on one. Raises AsksForGpuError where it asks for one."""
    import torch

    from rooflight.sources.capture.record.autocast import as_on_gpu
    from rooflight.sources.capture.run.asks import asking_for_gpu

    elsewhere = device is not None and device.kind == "cuda" and place is None and not torch.cuda.is_available()
    with as_on_gpu() if elsewhere else nullcontext(), asking_for_gpu() if elsewhere else nullcontext():
        yield


def _record_elsewhere(
    target: str, options: RunOptions, inputs: str | None, device: DeviceSpec, progress: Progress
) -> Observed:
    """A step of the user's own code that asks for a GPU, on one that is not here."""
    from rooflight.front.elsewhere import record_elsewhere
    from rooflight.sources.capture.run.elsewhere import Program
    from rooflight.sources.workloads import spread
    from rooflight.sources.workloads.errors import STEP_FAILED, RunFailed, TargetError
    from rooflight.sources.workloads.steps import Step

    progress(f"recording a step on {device.part_name}, which is not here: {target} asks for a GPU")
    given = {"step": options.step or "forward", "inputs": inputs, "optimizer": options.optimizer}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]
    program = Program(target=spread.__name__, arguments=(target, *words), module=True, skip=0, only="function",
                      named=f"{spread.__file__}:{spread.once.__name__}")  # fmt: skip
    with TemporaryDirectory() as folder:
        session = record_elsewhere(program, [device], Path(folder) / "step.session")
    run = session.run
    assert run is not None
    about, *more = session.environment["target"].split("\n")
    if not len(session) and run.exit_code:
        raise (RunFailed if about.startswith(STEP_FAILED) else TargetError)(about)
    assumed = [f"{each.what}: {each.answer} ({each.where.at}, {count_of(each.times, 'time')})" for each in run.assumed]
    notes = (f"{target} asks for a GPU: recorded on a virtual one.", *assumed, *more[1:])
    environment = {**session.environment, "model_class": more[0]}
    return Observed(session=replace(session, run=None, environment=environment),
                    step=Step(run=lambda: None, description=about), notes=notes)  # fmt: skip


def _observe_function(target: str, inputs: str | None, measured: bool, progress: Progress) -> Observed:
    from rooflight.sources.traces.live import measure

    slow = Timer(_SILENT_S[measured], logging.getLogger("rooflight").warning,
                 ("rooflight: %s %s", visible(target), _SLOW[measured]))  # fmt: skip
    slow.daemon = True
    if not target.startswith(_OWN):  # nobody can change a workload of compile-bench
        slow.start()
    try:
        step, session = _recorded_function(target, inputs, progress)
        return Observed(session=measure(session, step.run, progress=progress) if measured else session, step=step)
    finally:
        slow.cancel()


def _recorded_function(target: str, inputs: str | None, progress: Progress) -> tuple[Step, Session]:
    from rooflight.sources.workloads.targets import open_target
    from rooflight.sources.workloads.user_code import refuse_pending

    progress(f"making the step of {target}")
    step = open_target(target, inputs=inputs)
    if not step.has_run:
        progress("running it once, so that lazily made state is not part of the record")
        refuse_pending(step.run(), target)
    return step, _record(step, progress)


def _observe_here(
    target: str, options: RunOptions, seen: Observed, here: DeviceSpec, place: str, progress: Progress
) -> Observed:
    from rooflight.hardware.machine.hardware import free_memory_bytes
    from rooflight.sources.traces.live import measure

    needed, capacity = memory_use(seen.session).peak_bytes, free_memory_bytes(place)
    if capacity is not None and needed * ROOM > capacity:
        short = f"{Quantity(needed - capacity, 'B')} too little" if needed > capacity else "too tight for a real run"
        note = (
            f"Not measured: the step needs at least {Quantity(needed, 'B')}, {here.name} has {Quantity(capacity, 'B')} "
            f"free: {short}."
        )
        return replace(seen, notes=(*seen.notes, note))
    progress("building the model")
    step = _open(target, options, place)
    return Observed(session=measure(_record(step, progress), step.run, progress=progress), step=step)


def record_without_hardware(target: str, options: RunOptions, progress: Progress) -> Observed:
    """What the step does on meta; where it depends on what tensors hold, on this machine's CPU.

    Raises ValueError for the user's mistakes, RunFailed for a step that breaks.
    """
    from rooflight.sources.workloads.errors import RunFailed, TargetError
    from rooflight.sources.workloads.targets import ConfigFile, ProblemFile, find_target

    progress("building the model without memory")
    step, why = _open(target, options, "meta"), ""
    if not step.reads_values:
        try:
            return Observed(session=_record(step, progress), step=step)
        except RunFailed as error:
            if not isinstance(find_target(target), ConfigFile | ProblemFile):
                raise
            why = f" ({error})"
    progress("building the model on the CPU")
    try:
        step = _on_cpu(step, why, target, options)
        session = _record(step, progress)
    except RunFailed as error:
        if _is_problem(target):
            raise
        raise TargetError(
            f"{step.model_class} does not run with the inputs that Rooflight makes: {error}; check the config and"
            " --dtype, or write your own step and pass path/to/train.py:make_step"
        ) from error
    note = f"Recorded on this machine's CPU: what {step.model_class} does depends on what its tensors hold."
    return Observed(session=session, step=step, notes=(note,))


def _on_cpu(on_meta: Step, why: str, target: str, options: RunOptions) -> Step:
    from rooflight.hardware.machine.hardware import free_memory_bytes

    assert on_meta.model is not None
    weights = sum(each.numel() * each.element_size() for each in on_meta.model.parameters())
    needed = weights * (4 if on_meta.name == "train" else 1)  # gradients, and two moments of Adam
    capacity = free_memory_bytes("cpu")
    if capacity is not None and needed * ROOM > capacity:
        raise ValueError(
            f"{on_meta.model_class} cannot be recorded without memory{why}, and needs more than "
            f"{Quantity(needed, 'B')}; this machine has {Quantity(capacity, 'B')} free"
        )
    return _open(target, replace(options, dtype=None if _is_problem(target) else on_meta.dtype), "cpu")


def _is_problem(target: str) -> bool:
    from rooflight.sources.workloads.targets import ProblemFile, find_target

    return isinstance(find_target(target), ProblemFile)


def _open(target: str, options: RunOptions, place: str) -> Step:
    from rooflight.sources.capture.record.constants import noting_constants
    from rooflight.sources.workloads.targets import open_target

    with noting_constants():
        return open_target(target, step=options.step or "forward", batch=options.batch, seq=options.seq,
                           dtype=options.dtype, device=place, optimizer=options.optimizer,
                           small=options.small)  # fmt: skip


def _record(step: Step, progress: Progress) -> Session:
    from rooflight.sources.capture.record.recorder import record

    progress("recording a step")
    with record(step.model, memory=True) as recording:
        step.run()
    if not len(recording.session):
        raise ValueError(". ".join(("the step ran no torch operation: there is nothing to analyse", *step.notes)))
    return recording.session
