"""estimate-train-time's run modes beside sampling: a profiler's trace of one shape, and one shape run once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape
from rooflight.sampling import provenance
from rooflight.sampling.job import TRACES, Job

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
    name = f"{provenance.device_label(kind, int(number or 0))}_{job.name}_{job.precision}_{sizes}.pt.trace.json"
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
