"""Runs under torch's profiler: a trace of one shape, and the times of a user's function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflight.costs.operators.operator import Operator, Prepared, Shape
from rooflight.records.samples import Row, Status
from rooflight.sampling.event_times import NoSuchEventError, Target, Trace, read, times_s
from rooflight.sampling.job import TRACES, Job
from rooflight.sampling.runner import FEWEST, Sampled, failure_of, row_of
from rooflight.sampling.store import device_label

Progress = Callable[[str], object]


def run_once(job: Job, shape: Shape, device: str, *, progress: Progress) -> str:
    """Run forward and backward once. Returns what was run. Raises ValueError for a shape that cannot be."""
    progress(f"{job.name}: {_text(shape)}")
    _once(_prepared(job.operator, shape, job.dtype, device))
    return f"{job.name} {job.precision}: ran {_text(shape)} once on {device}; nothing was written"


def trace(job: Job, shape: Shape, device: str, *, progress: Progress) -> str:
    """Write a Chrome trace of as many runs as the job takes samples, after its warm-ups. Returns what was written.

    Raises ValueError for a shape that cannot be.
    """
    warmups, active = job.repeats.warmups, job.repeats.least
    progress(f"{job.name}: {_text(shape)}, {warmups} runs to warm up, {active} profiled")
    prepared = _prepared(job.operator, shape, job.dtype, device)
    kind, _, number = device.partition(":")
    sizes = "_".join(str(value) for value in shape.values())
    name = f"{device_label(kind, int(number or 0))}_{job.name}_{job.precision}_{sizes}.pt.trace.json"
    path = job.out / TRACES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(warmups):
        _once(prepared)
    with profiler(device, warmup=1, active=active) as profiled:
        for _ in range(1 + active):
            _once(prepared)
            profiled.step()
    profiled.export_chrome_trace(str(path))
    return f"{job.name} {job.precision}: {active} runs of {_text(shape)} -> {path} (Perfetto or TensorBoard shows it)"


def profiler(device: str, *, warmup: int, active: int) -> Any:
    """torch's profiler over ``active`` steps after ``warmup`` (at least 1), with Python's frames, as a context."""
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    steps = schedule(wait=0, warmup=warmup, active=active, repeat=1)
    return profile(activities=activities, schedule=steps, with_stack=True)


def _text(shape: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in shape.items())


def _prepared(operator: Operator, shape: Shape, dtype: str, device: str) -> Prepared:
    import torch

    if why := operator.refusal(shape):
        raise ValueError(f"{operator.name}: {why}")
    return operator.prepare(torch, shape, dtype, device)


def _once(prepared: Prepared) -> None:
    result = prepared.forward()
    if prepared.backward is not None:
        prepared.backward(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTiming:
    """How a function is timed, in estimate-train-time's words.

    ``targets`` name the events of each direction. A shape is run ``active`` times under the profiler, after ``wait``
    calls outside the profiler and ``warmup`` calls that the profiler drops; those are of the warm-up ``shape``.
    """

    targets: tuple[Target, ...]
    wait: int
    warmup: int
    active: int
    shape: Shape


class EventSampler:
    """Times a function on one device, ``"cpu"`` or ``"cuda:1"`` and the like, by its profiler's events."""

    def __init__(self, device: str, dtype: str, timing: EventTiming) -> None:
        self.device, self.dtype, self._timing = device, dtype, timing
        self.kind: str = "cuda" if device.startswith("cuda") else "cpu"

    def warm_up(self, operator: Operator, shape: Shape) -> None:
        """Profile a shape without keeping anything of it.

        Raises NoSuchEventError for targets that name nothing: no other shape would have such events. A shape that
        cannot run is left alone.
        """
        try:
            trace = self._trace(operator, shape)
        except Exception:  # the rows will say what is wrong with each shape
            return
        for target in self._timing.targets:
            times_s(trace, target)

    def row(self, operator: Operator, shape: Shape) -> Row:
        """Sample a shape. Never raises for what a shape can do wrong: that is the row's status."""
        return row_of(shape, lambda: self._outcome(operator, shape))

    def _outcome(self, operator: Operator, shape: Shape) -> Sampled:
        if why := operator.refusal(shape):
            return Status.REFUSED, {}, why
        try:
            trace = self._trace(operator, shape)
            found = [times_s(trace, target) for target in self._timing.targets]
        except NoSuchEventError as error:
            return Status.FAILED, {}, str(error)
        except ValueError as error:  # what estimate-train-time's functions raise for sizes that cannot be divided
            return Status.REFUSED, {}, str(error)
        except Exception as error:  # what a kernel refuses shows only when it runs
            status, note = failure_of(error, self.kind)
            return status, {}, note
        samples = dict(zip(operator.directions, found, strict=True))
        least = min(len(times) for times in found)
        if least < FEWEST:
            return Status.FAILED, samples, f"{least} of {self._timing.active} calls have all events of the targets"
        return Status.OK, samples, ""

    def _trace(self, operator: Operator, shape: Shape) -> Trace:
        import torch

        timing = self._timing
        warm, timed = (operator.prepare(torch, each, self.dtype, self.device).forward for each in (timing.shape, shape))
        for _ in range(timing.wait):
            warm()
        skipped = max(1, timing.warmup)  # without a step to drop the profiler's start would fall into the first one
        with profiler(self.device, warmup=skipped, active=timing.active) as profiled:
            for number in range(skipped):
                if number < timing.warmup:
                    warm()
                profiled.step()
            for _ in range(timing.active):
                timed()
                profiled.step()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiled.export_chrome_trace(str(path))
            return read(path)
