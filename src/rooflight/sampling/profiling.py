"""The page's run modes beside sampling: a profiler's trace of one shape, and one shape run once."""

from __future__ import annotations

from pathlib import Path

from rooflight.operators.operator import Operator, Prepared, Shape


def run_once(operator: Operator, shape: Shape, dtype: str, device: str) -> None:
    """Run forward and backward once. Raises ValueError for a shape that cannot be."""
    _once(_prepared(operator, shape, dtype, device))


def trace(operator: Operator, shape: Shape, dtype: str, device: str, *, warmups: int, active: int, path: Path) -> Path:
    """Write a Chrome trace of ``active`` runs after ``warmups``. Raises ValueError for a shape that cannot be."""
    from torch.profiler import ProfilerActivity, profile, schedule

    prepared = _prepared(operator, shape, dtype, device)
    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(activities=activities, schedule=schedule(wait=0, warmup=warmups, active=active, repeat=1)) as profiler:
        for _ in range(warmups + active):
            _once(prepared)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def _prepared(operator: Operator, shape: Shape, dtype: str, device: str) -> Prepared:
    import torch

    if why := operator.refusal(shape):
        raise ValueError(f"{operator.name}: {why}")
    return operator.prepare(torch, shape, dtype, device)


def _once(prepared: Prepared) -> None:
    result = prepared.forward()
    if prepared.backward is not None:
        prepared.backward(result)
