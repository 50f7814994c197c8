"""``measure``: the second, undisturbed pass that gives a recorded step its times."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from rooflight.capture.kineto import STEP_MARK, events_of, op_times, works_on_memory
from rooflight.records.session import Measurement, Session

Progress = Callable[[str], None]

MIN_JOINED = 0.9
"""Share of the working (not view) records that must find their event, or no op times are kept: they may be wrong."""


def measure(
    session: Session,
    step: Callable[[], Any],
    *,
    warmup: int = 2,
    max_runs: int = 10,
    max_seconds: float = 10.0,
    profiled: int = 3,
    progress: Progress | None = None,
) -> Session:
    """Run ``step``, the program that ``session`` recorded, again and return the session with its times.

    After ``warmup`` runs, whole steps are timed with nothing else running (at least 3, at most ``max_runs``, about
    ``max_seconds`` in all), then ``profiled`` steps run under Kineto, without shapes or stacks and without a sync
    inside the step, for the times of single ops. On CUDA these are the times of the kernels, and whole steps are timed
    from one synchronised device to the next. Whatever ``step`` raises passes through.
    """
    say = progress or (lambda _: None)
    on_cuda = _uses_cuda(session)
    say("warming up")
    for _ in range(max(1, warmup)):
        step()
    _synchronize(on_cuda)
    walls: list[float] = []
    while len(walls) < 3 or (len(walls) < max_runs and sum(walls) < max_seconds):
        say(f"timing step {len(walls) + 1}")
        start = perf_counter()
        step()
        _synchronize(on_cuda)
        walls.append(perf_counter() - start)
    say("profiling ops")
    samples = op_times(session, _profile(step, profiled, on_cuda), device=on_cuda)
    clock = "kernels by Kineto" if on_cuda else "ops by Kineto"
    if joined_share(session, samples) < MIN_JOINED:
        samples = np.empty((0, len(session)))
        clock = "steps only: the ops that ran are not those recorded"
    return session.with_measurement(Measurement(wall_samples_s=np.array(walls), op_samples_s=samples, clock=clock))


def joined_share(session: Session, samples: np.ndarray[Any, Any]) -> float:
    """Share of the counted records that work on memory which found a time in every sample."""
    working = session.counted & works_on_memory(session)
    if not working.any():
        return 1.0
    if not len(samples):
        return 0.0
    return float(np.isfinite(samples[:, working]).all(axis=0).mean())


def _profile(step: Callable[[], Any], steps: int, on_cuda: bool) -> list[Any]:
    import torch
    from torch.autograd.profiler import profile, record_function

    with profile(use_cpu=True, use_device="cuda" if on_cuda else None, use_kineto=True) as profiler:
        for _ in range(steps):
            with record_function(STEP_MARK):
                step()
        if on_cuda:
            torch.cuda.synchronize()
    return events_of(profiler.kineto_results)


def _uses_cuda(session: Session) -> bool:
    return session.environment.get("device_kind", "cpu") == "cuda"


def _synchronize(on_cuda: bool) -> None:
    if on_cuda:
        import torch

        torch.cuda.synchronize()
