"""Score a solution: bound the reference, check the solution against it, time both."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of
from rooflight.front.device import Progress, find_what_if, log_progress, place_of
from rooflight.front.options import RunOptions
from rooflight.front.sessions import analyze
from rooflight.front.targets import ROOM, Observed, record_without_hardware
from rooflight.hardware.devices import find_by_torch_name
from rooflight.hardware.devices.finding import HERE
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.devices.what_if import AS_IT_IS, WhatIf
from rooflight.hardware.machine.environment import not_to_be_trusted
from rooflight.hardware.machine.hardware import cuda_name, free_memory_bytes, kind_here
from rooflight.hardware.machine.timing import Clock, ColdClock, CudaEvents, SteadyClock, flush_of
from rooflight.records.quantity import Quantity
from rooflight.records.session import Session
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import float32_rules
from rooflight.roofline.memory.use import memory_use
from rooflight.sources.workloads.errors import RunFailed, TargetError, in_one_line
from rooflight.sources.workloads.outputs import Difference, compare
from rooflight.sources.workloads.problem import (
    ImportedFile,
    Problem,
    check_names,
    open_problem,
    open_solution,
    same_numbers,
    solution_class,
)
from rooflight.studies.scoring.check import check, copy_weights
from rooflight.studies.scoring.result import COMPILED, EAGER, SOLUTION, Checked, Score
from rooflight.studies.scoring.trials import Run, WrongResultError, timed

if TYPE_CHECKING:
    from torch import nn

_FIRST_TIMED: Final = 1000  # draws of inputs in timed trials are others than those that were checked


def score(
    reference: str | Path,
    solution: str | Path,
    *,
    device: str | None = None,
    what_if: WhatIf = AS_IT_IS,
    compiled: bool = True,
    trials: int | None = None,
    tolerance: float | None = None,
    clock: Clock | None = None,
    progress: Progress = log_progress,
) -> Score:
    """Check a solution of a problem file against it on this machine, time both, and bound the problem for ``device``.

    Both run on the GPU where there is one, otherwise on the CPU; ``device`` "cpu" or "cuda" chooses. For another device
    the bounds are its own, and nothing is timed; ``what_if`` supposes other roofs. ``compiled``: time the reference
    under torch.compile too. ``trials``: how many, None for as many as fit into half a minute. ``tolerance``: the
    largest error of a right result, in the place of those by dtype. ``clock`` replaces the device's, for tests.

    A solution that is wrong gets no times. Raises ValueError (TargetError) for files that cannot be used, unknown
    devices and impossible numbers, RunFailed for a reference that breaks.
    """
    reference, solution = Path(reference), Path(solution)
    if trials is not None and trials < 1:
        raise ValueError(f"--trials {trials}: at least 1 trial")
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ValueError(f"--tolerance {tolerance:g}: an error, of 1: 1e-4 is usual for float32, 1e-2 for bfloat16")
    class_name = solution_class(_existing(solution))
    check_names(_existing(reference))  # a file that is no problem is refused as one, whatever else it could be
    seen = record_without_hardware(str(reference), RunOptions(), progress)
    here = device is None or device.lower() in HERE
    known = None if here else find_what_if(device, what_if, progress=progress)
    other = known is not None and place_of(known) is None
    place = kind_here() if device is None or other else device.lower() if known is None else place_of(known)
    assert place is not None
    not_run = _too_large(seen, place)
    pair = None if not_run else _Pair(reference, solution, place, tolerance, progress)
    gpu = find_by_torch_name(cuda_name() or "") if place == "cuda" else None
    # what is wrong shows before half a minute of calibrating
    checked = None if pair is None else pair.checked(tf32=computes_in_tf32(seen.session, gpu))
    spec = known or find_what_if(device, what_if, progress=progress)
    found = Score(
        reference=reference.name,
        solution=solution.name,
        solution_class=class_name,
        place=place,
        analysis=_analysis(seen, spec, progress),
        checked=checked,
        not_run=not_run,
        notes=(*seen.step.notes, *seen.notes),
    )
    if pair is None or checked is None or not checked.agrees:
        return found
    if other:
        return replace(found, not_timed=f"{spec.name} is not in this machine")
    return pair.timed(found, compiled=compiled, trials=trials, clock=clock or _clock(place))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise TargetError(f"no file {path}")
    if path.suffix != ".py":
        raise TargetError(f"{path} is no Python file: rooflight score takes problem.py and solution.py")
    return path


def _analysis(seen: Observed, spec: DeviceSpec, progress: Progress) -> Analysis:
    target = seen.step.description
    environment = {**seen.session.environment, "target": target, "model_class": seen.step.model_class}
    return analyze(replace(seen.session, environment=environment), spec, target=target, progress=progress)


def _too_large(seen: Observed, place: str) -> str:
    """Reference and solution each have weights and results, and inputs are there three times."""
    needed, capacity = 2 * memory_use(seen.session).peak_bytes, free_memory_bytes(place)
    if capacity is None or needed * ROOM <= capacity:
        return ""
    return (
        f"reference and solution side by side need at least {Quantity(needed, 'B')}, {Quantity(capacity, 'B')} are free"
    )


def computes_in_tf32(session: Session, device: DeviceSpec | None) -> bool:
    """Whether a float32 product of the recorded program runs in TF32 on a device: then its result has TF32's error."""
    if device is None:
        return False
    rules = float32_rules(session.environment, device)
    costs = ((op, cost_of(op)) for op in session.signatures)
    return any(
        rules.matrix_precision(op, cost.matrix_dtype) == "tfloat32"
        for op, cost in costs
        if not isinstance(cost, Uncosted) and cost.matrix_flops and cost.matrix_dtype == "float32"
    )


def _clock(place: str) -> Clock:
    """Of single calls from cold caches; on CUDA between events, as KernelBench times."""
    flush = flush_of(place)
    return CudaEvents(flush=flush, spin_cycles=0) if place == "cuda" else ColdClock(SteadyClock(), flush)


class _Pair:
    def __init__(
        self, reference: Path, solution: Path, place: str, tolerance: float | None, progress: Progress
    ) -> None:
        self._tolerance, self._progress = tolerance, progress
        progress(f"building the model of {reference.name}")
        self._problem: Problem = open_problem(reference, place)
        self._model = self._problem.model()
        progress(f"importing {solution.name}")
        opened = open_solution(solution, place)
        progress(f"building {opened.name} of {solution.name}")
        model = opened.model(self._problem.init_inputs())
        self._weights = copy_weights(self._model, model)
        self._reference = _runner(self._problem.file, self._model)
        self._solution = _runner(opened.file, model)
        self._tf32 = False

    def checked(self, *, tf32: bool) -> Checked:
        """Whether the solution is right."""
        self._tf32 = tf32
        found = check(
            self._reference,
            self._solution,
            self._problem.inputs,
            tolerance=self._tolerance,
            tf32=tf32,
            progress=self._progress,
        )
        return replace(found, tensors_matched=self._weights[0], tensors_unmatched=self._weights[1])

    def timed(self, found: Score, *, compiled: bool, trials: int | None, clock: Clock) -> Score:
        """The score with times, or without where a timed result is wrong."""
        checked, taken = found.checked, None
        assert checked is not None
        programs, not_compiled = {EAGER: self._reference}, "--no-compile"
        with warnings.catch_warnings():  # the programs' own, and the compiler's about its own use of torch
            warnings.simplefilter("ignore")
            if compiled:
                run, difference, not_compiled = self._compiled()
                checked = replace(checked, compiled=difference)
                programs |= {COMPILED: run} if run is not None else {}
            programs[SOLUTION] = self._solution
            try:
                taken = timed(
                    programs,
                    lambda number: self._problem.inputs(_FIRST_TIMED + number),
                    lambda results: self._difference(results[EAGER], results[SOLUTION]).message,
                    clock=clock,
                    trials=trials,
                    progress=self._progress,
                )
            except WrongResultError as error:
                checked = replace(checked, why=str(error))
        return replace(found, checked=checked, trials=taken, not_compiled=not_compiled)

    def _difference(self, expected: Any, given: Any) -> Difference:
        return compare(expected, given, tolerance=self._tolerance, tf32=self._tf32)

    def _compiled(self) -> tuple[Run | None, Difference | None, str]:
        import torch

        if why := not_to_be_trusted():
            return None, None, why
        self._progress(f"compiling {self._problem.file.path.name}")
        with suppress(ImportError):
            torch._dynamo.reset()
        run = _runner(self._problem.file, torch.compile(self._model))
        try:
            with same_numbers():
                given = run(self._problem.inputs())
        except RunFailed as error:
            cause = error.__cause__ or error
            return None, None, f"torch.compile failed: {in_one_line(cause)}"
        with same_numbers():
            expected = self._reference(self._problem.inputs())
        return run, self._difference(expected, given), ""


def _runner(file: ImportedFile, model: Callable[..., Any] | nn.Module) -> Run:
    import torch

    def call(inputs: tuple[Any, ...]) -> Any:
        with torch.no_grad():
            return model(*inputs)

    def run(inputs: tuple[Any, ...]) -> Any:
        return file.explaining(lambda: call(inputs))()

    return run
