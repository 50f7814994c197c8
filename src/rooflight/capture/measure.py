"""``measure``: the second, undisturbed pass that gives a recorded step its times."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from rooflight.capture.events import Event, events_of
from rooflight.capture.kineto import STEP_MARK, op_times, works_on_memory
from rooflight.network.collectives import kind_of
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
    inside the step, for when single ops began and how long they took. On CUDA these are the times of the kernels, and
    whole steps are timed from one synchronised device to the next. Whatever ``step`` raises passes through.

    A step with collectives must be measured by all ranks of the world at once: between steps they agree on how many to
    run.
    """
    say = progress or (lambda _: None)
    on_cuda = _uses_cuda(session)
    together = _runs_together(session)
    say("warming up")
    for _ in range(max(1, warmup)):
        step()
    _synchronize(on_cuda)
    walls: list[float] = []
    while len(walls) < 3 or (len(walls) < max_runs and _longest(sum(walls), together) < max_seconds):
        say(f"timing step {len(walls) + 1}")
        start = perf_counter()
        step()
        _synchronize(on_cuda)
        walls.append(perf_counter() - start)
    say("profiling ops")
    times = op_times(session, _profile(step, profiled, on_cuda, together), device=on_cuda)
    samples, starts = times.seconds, times.starts_s
    clock = "kernels by Kineto" if on_cuda else "ops by Kineto"
    if joined_share(session, samples) < MIN_JOINED:
        samples, starts = np.empty((0, len(session))), np.empty((0, 0))
        clock = "steps only: the ops that ran are not those recorded"
    return session.with_measurement(
        Measurement(wall_samples_s=np.array(walls), op_samples_s=samples, op_starts_s=starts, clock=clock)
    )


def joined_share(session: Session, samples: np.ndarray[Any, Any]) -> float:
    """Share of the counted records that work on memory which found a time in every sample.

    Collectives do not count: whether their time can be found depends on the backend, not on what ran.
    """
    elsewhere = np.array([kind_of(op.name) is not None for op in session.signatures], dtype=bool)
    working = session.counted & works_on_memory(session) & ~elsewhere[session.columns.signature]
    if not working.any():
        return 1.0
    if not len(samples):
        return 0.0
    return float(np.isfinite(samples[:, working]).all(axis=0).mean())


def _profile(step: Callable[[], Any], steps: int, on_cuda: bool, together: bool) -> list[Event]:
    import torch
    from torch.autograd.profiler import profile, record_function

    with profile(use_cpu=True, use_device="cuda" if on_cuda else None, use_kineto=True) as profiler:
        if together:
            step()  # starting the profiler takes each rank another time, for which its peers would be seen to wait
        for _ in range(steps):
            with record_function(STEP_MARK):
                step()
        if on_cuda:
            torch.cuda.synchronize()
    return events_of(profiler.kineto_results)


def _runs_together(session: Session) -> bool:
    """Whether other ranks take part in the step."""
    if not any(kind_of(op.name) is not None for op in session.signatures):
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _longest(seconds: float, together: bool) -> float:
    """Of all ranks the longest time: if each went by its own, some would run a step more, and wait for ever."""
    if not together:
        return seconds
    import torch
    import torch.distributed as dist

    longest = torch.tensor(seconds, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def _uses_cuda(session: Session) -> bool:
    return session.environment.get("device_kind", "cpu") == "cuda"


def _synchronize(on_cuda: bool) -> None:
    if on_cuda:
        import torch

        torch.cuda.synchronize()
