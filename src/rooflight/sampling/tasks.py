"""The jobs of a request: which operators, shapes and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflight.costs.operators import registry
from rooflight.costs.operators.estimate_train_time import TIMES
from rooflight.costs.operators.operator import Operator
from rooflight.costs.operators.registry import operators_of
from rooflight.records.quantity import count_of
from rooflight.sampling import estimate_train_time
from rooflight.sampling.job import Job
from rooflight.sampling.profiled import EventTiming
from rooflight.sampling.request import SamplingRequest
from rooflight.sampling.runner import Repeats
from rooflight.sampling.smart_sweep import SmartSweep, Views
from rooflight.sampling.sweeps import PointSweep, Shapes, Sweep, check_part, complete, full_grid, small_shapes

_SMART_BOX_S = 1.0
_BOXES_A_BUDGET = 20
_SMART_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A job and its sweep.

    ``run`` is estimate-train-time's run mode, ``shapes`` are what its modes beside ``get_all`` run. ``events``: how a
    user's function is timed; None for an operator.
    """

    job: Job
    sweep: Sweep
    run: str = "get_all"
    shapes: tuple[dict[str, int], ...] = ()
    events: EventTiming | None = None


def tasks(request: SamplingRequest, views: Callable[[Operator, str], Views] | None = None) -> tuple[Task, ...]:
    """The jobs of a request. ``views``: for an operator and torch's name of a dtype, what models of other devices
    answer of shapes, for the smart sweep. Raises ValueError for unknown operators, configs and parts.
    """
    check_part(request.parts, request.part)
    if not 0 < request.box_s < float("inf"):
        raise ValueError(f"--time-box {request.box_s:g}: a time in seconds, more than 0")
    if request.config is not None:
        return (_configured(request, estimate_train_time.load(request.config)),)
    found = [operator for word in dict.fromkeys(request.operators) for operator in operators_of(word)]
    if request.sweep == "smart":
        # the largest shares first: who interrupts a sweep has the most of what it is for
        shared = sorted(registry.every(), key=lambda operator: -operator.smart_share)
        return _smart(request, views, found or [operator for operator in shared if operator.smart_share])
    points = small_shapes if request.sweep == "test" else full_grid
    return tuple(
        Task(
            job=_job(request, operator, Repeats(box_s=request.box_s)),
            sweep=PointSweep(points(operator), parts=request.parts, part=request.part),
        )
        for operator in found or [operator for operator in registry.every() if not operator.ranks]
    )


def _smart(
    request: SamplingRequest, views: Callable[[Operator, str], Views] | None, operators: list[Operator]
) -> tuple[Task, ...]:
    weights = [1 if request.operators else operator.smart_share for operator in operators]
    found = []
    for operator, weight in zip(operators, weights, strict=True):
        share_s = request.budget_s * weight / sum(weights)
        box_s = min(request.box_s, max(_SMART_BOX_S, share_s / _BOXES_A_BUDGET))
        sweep = SmartSweep(
            operator,
            request.dtype,
            budget_s=share_s,
            kind=request.kind,
            parts=request.parts,
            part=request.part,
            views=None if views is None else views(operator, request.dtype),
        )
        found.append(Task(job=_job(request, operator, Repeats(least=_SMART_REPEATS, box_s=box_s)), sweep=sweep))
    return tuple(found)


def _configured(request: SamplingRequest, config: estimate_train_time.Config) -> Task:
    operator = config.operator
    warmups = config.wait + config.warmup
    repeats = Repeats(warmups=warmups, least=config.active, most=max(config.active, 10), box_s=request.box_s)
    shapes = tuple(complete(operator, shape) for shape in config.shapes)
    if config.run != "get_all" and not shapes:
        raise ValueError(f"{request.config}: run {config.run} needs shapes")
    points = config.grid if config.run == "get_all" else Shapes(operator, shapes)
    given = config.warmup_shape
    warmup_shape = None if given is None or operator.ranks else complete(operator, given)
    events = None
    if config.is_function:
        samples = config.run in ("get_all", "get_one")
        if samples and len(config.targets) != len(operator.directions):
            raise ValueError(
                f"{request.config}: targets has {count_of(len(config.targets), 'list')} of events for the times "
                f"{', '.join(TIMES[operator.directions])}: run get_profiler shows what events there are"
            )
        warmup_shape = warmup_shape or points[0]
        events = EventTiming(
            targets=config.targets, wait=config.wait, warmup=config.warmup, active=config.active, shape=warmup_shape
        )
    job = _job(request, operator, repeats, events)
    if config.features is not None:
        job = replace(job, timing={**job.timing, "features": json.dumps(config.features)})
    return Task(
        job=replace(job, kernel=config.kernel, columns=config.columns, warmup_shape=warmup_shape),
        sweep=PointSweep(points, parts=request.parts, part=request.part),
        run=config.run,
        shapes=shapes,
        events=events,
    )


def _job(request: SamplingRequest, operator: Operator, repeats: Repeats, events: EventTiming | None = None) -> Job:
    if events is None:
        timing = {
            "cache": "cold" if request.cold else "warm",
            "clock": "device events" if request.kind == "cuda" else "steady clock",
            "least samples": str(repeats.least),
            "spread wanted": f"{repeats.spread:g}",
        }
    else:
        timing = {
            "cache": "as the function leaves it",
            "clock": "profiler events",
            "samples": str(events.active),
            "targets": json.dumps(events.targets),
        }
    return Job(
        operator=operator,
        dtype=request.dtype,
        out=request.out,
        parts=request.parts,
        part=request.part,
        repeats=repeats,
        timing=timing,
    )
