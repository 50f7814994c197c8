"""What a ``StepFinder`` found, as a session: the recorded step, the times of those that were not, and the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rooflight.hardware.machine.memory import host_memory
from rooflight.records.measurement import Float64, Measurement
from rooflight.records.quantity import count_of
from rooflight.records.record import ScriptMemory, StorageKind
from rooflight.records.session import Int64, Session
from rooflight.records.timeline import Between, HostLine, HostTime, Run, RunStep, StepKind, Within
from rooflight.sources.capture.run.events import Caller
from rooflight.sources.capture.run.finder import StepFinder
from rooflight.sources.capture.run.hooks import programs_begun
from rooflight.sources.capture.run.left import ENOUGH
from rooflight.sources.capture.run.sampler import Sampler
from rooflight.sources.capture.run.steps import APART, Steps
from rooflight.sources.capture.run.workers import lines_of_workers
from rooflight.sources.capture.time.kineto import op_times
from rooflight.sources.capture.time.measure import MIN_JOINED, joined_share
from rooflight.sources.capture.time.window import ITERATIONS, TRACE, Window

_FEW: Final = 3
_LIES_IN: Final = {Within.LOADER: "loader", Within.STARTING: "loader", Within.SAVING: "checkpoint"}


def session_of(
    finder: StepFinder,
    script: str,
    exit_code: int | None,
    limit: int | None,
    others: float | None = None,
    sampler: Sampler | None = None,
    folder: Path | None = None,
    error: str = "",
) -> Session:
    """The session of a run that has ended; without records where no step could be recorded. At most ``limit`` steps
    after the skipped ones are timed, those like the recorded one. ``others``: the share of the CPU of other programs.
    ``sampler`` saw what the host did, and in ``folder`` is what workers of loaders saw. ``error``: what ended it.
    """
    finder.finish()
    kind, steps, caller, cycle = _found(finder)
    run = Run(script=script, exit_code=exit_code, error=error, seen=_seen(finder))
    if kind is None:
        run = replace(run, between=sampler.whole if sampler is not None else ())
        empty = _empty()
        return replace(empty, run=run, environment={**empty.environment, "target": script})
    kept = finder.recorder.kept.get(kind)
    place = kept.place if kept is not None and kept.cycle == cycle else None
    if kept is None:  # of another kind, which its calls are parts of
        kept = next(iter(finder.recorder.kept.values()), None)
    undisturbed = partial(_undisturbed, finder.skip, finder.recorder.taken[kind] if place is not None else set())
    step = RunStep(
        kind=kind,
        name=caller.name,
        where=caller.where,
        count=(steps.count - steps.before) // cycle,
        begins=finder.begins if kind in ("optimizer", "backward") else f"the call of {caller.name}",
        recorded=None if place is None else place + 1,
        calls=_calls(finder, steps) if kind is StepKind.OPTIMIZER else (),
        turns=steps.turns(cycle if kept is None else kept.cycle),
    )
    counted, sizes, took = undisturbed(range(step.count)), steps.sizes(cycle), steps.seconds(cycle)
    like = {sizes[place]} if place is not None and place < len(sizes) else set(sizes)
    timed = (undisturbed([each for each, size in enumerate(sizes) if size in like]) or counted)[:limit]
    between = steps.between(cycle, counted, float(took[timed].mean()) if timed else None)
    between = tuple(_loaded(each, finder, folder, len(sizes)) if each.name == "loader" else each for each in between)
    sampler = sampler if sampler is not None and sampler.thread == finder.thread else None
    if sampler is not None:
        between = _with_lines(between, sampler, *steps.spans(cycle), np.array([each for each in counted if each]))
    run = replace(run, step=step, between=between, alike=steps.alike(cycle, place, undisturbed))
    session = kept.session if kept is not None else _empty()
    begun = [f"Scripts {each}: run them by rooflight run." for each in [programs_begun()] if each]
    notes = (*session.notes, *finder.recorder.notes, *begun)
    process = host_memory()
    left, memory = finder.recorder.left, ScriptMemory(resident_bytes=process.peak_bytes if process else 0)
    if left is not None and left.steps >= ENOUGH:
        memory = replace(memory, growth=left.grown, followed=left.steps)
    run = replace(run, memory=memory)
    facts = {**session.environment, "target": script}
    session = replace(session, run=run, environment=facts, notes=notes, evaluation=_evaluation(finder))
    host = None
    if sampler is not None and timed:
        begins, ends = steps.spans(cycle)
        host = sampler.within(begins[timed], ends[timed])
    same = None if place is not None else 0.0
    if finder.window.profile is not None and not {*sizes[finder.window.places.start :][: 2 * ITERATIONS]} <= like:
        note = "Op times are lacking: the profiled iterations had inputs of other sizes than the recorded step."
        session = replace(session, notes=(*session.notes, note))
        finder.window.drop()
    if finder.window.profile is not None and same is None:
        return _of_a_device(session, finder.window, steps.iterations(cycle)[timed], others, host)
    return _with_times(session, took[timed], same, others, host)


def _evaluation(finder: StepFinder) -> Session | None:
    """One that was recorded beside steps; before them it was a call of the model that kept nothing for a backward."""
    before = finder.recorder.kept.get(StepKind.MODULE)
    if finder.recorder.evaluation is not None or before is None or not finder.has_trained:
        return finder.recorder.evaluation
    lifetimes = before.session.lifetimes
    keeps = lifetimes is None or (lifetimes.kind == StorageKind.ACTIVATION).any()
    return None if keeps else before.session


def _loaded(part: Between, finder: StepFinder, folder: Path | None, steps: int) -> Between:
    """Waits for a loader, with what is known of its workers in so many steps."""
    waits = finder.waits
    inside = lines_of_workers(folder, max(1, steps)) if folder is not None and waits.workers else ()
    return replace(part, workers=waits.workers, inside=inside, again=waits.again)


def _with_lines(
    between: tuple[Between, ...], sampler: Sampler, begins: Int64, ends: Int64, counted: Int64
) -> tuple[Between, ...]:
    """The same, with the lines of each by what the host's thread did: samples tell a loader, a checkpoint, the rest."""
    if not len(counted):
        return between
    gaps = ends[counted - 1], begins[counted]
    evaluating = sampler.within(*gaps, evaluating=True)
    rest = sampler.within(*gaps)
    by_name: dict[str, list[HostLine]] = {"loader": [], "checkpoint": [], "other": []}
    for line in rest.lines if rest is not None else ():
        by_name[_LIES_IN.get(line.within, "other")].append(line)
    without = evaluating.lines if evaluating is not None else ()
    return tuple(replace(each, lines=tuple(by_name.get(each.name, without))) for each in between)


def _found(finder: StepFinder) -> tuple[StepKind | None, Steps, Caller, int]:
    """The first kind that ran, in the order in which they mean steps; and how many of its calls make one."""
    if finder.by_function.count:
        return StepKind.FUNCTION, finder.by_function, finder.function, 1
    kind, steps, caller, cycle = _unnamed(finder)
    for phase, blocks in sorted(finder.phases.items(), key=lambda each: -each[1].total):
        inside = sum(calls * count for calls, count in blocks.calls_of().items())
        each_one = kind is StepKind.MODULE or blocks.count + 1 >= steps.count // cycle
        if blocks.count > 1 and each_one and inside + cycle >= steps.count:
            return StepKind.PHASE, blocks, Caller(f'phase("{phase.name}")', phase.where), 1
    return kind, steps, caller, cycle


def _unnamed(finder: StepFinder) -> tuple[StepKind | None, Steps, Caller, int]:
    optimizer, backward, modules = finder.by_optimizer, finder.by_backward, finder.modules
    if optimizer.count:
        callers = list(finder.optimizers)
        names = dict.fromkeys(caller.name for caller in callers)
        return StepKind.OPTIMIZER, optimizer, Caller(" and ".join(names), callers[0].where), optimizer.length or 1
    if backward.count:
        return StepKind.BACKWARD, backward, finder.backward, backward.length or 1
    sizes = [(modules.called[each][1].elements, calls.count, each) for each, calls in modules.calls.items()]
    number = max((size for size in sizes if size[1]), default=(0, 0, -1))[2]
    if number < 0:
        return None, optimizer, finder.backward, 1
    return StepKind.MODULE, modules.calls[number], modules.called[number][0], 1


def _calls(finder: StepFinder, steps: Steps) -> tuple[tuple[str, int], ...]:
    names = list(finder.optimizers)
    counts = sorted(steps.calls_of().items())
    return tuple(
        (f"{names[number].name} ({names[number].where.at})", count) for number, count in counts if len(names) > 1
    )


def _undisturbed(skip: int, taken: set[int], places: Iterable[int]) -> list[int]:
    """Steps that were not recorded, after the skipped ones where there are some. The step after a recorded one finds
    other caches and is left out too, unless few are left.
    """
    places = [place for place in places if place not in taken]
    places = [place for place in places if place >= skip] or places
    settled = [place for place in places if place - 1 not in taken]
    return settled if len(settled) >= _FEW else places


def _with_times(
    session: Session, walls: np.ndarray[Any, Any], same: float | None, others: float | None, host: HostTime | None
) -> Session:
    """The session, with the times of steps; of its ops those on the CPU, since elsewhere none waited for the device."""
    if not len(walls) and session.measurement is None:
        return session
    own = session.measurement if session.environment.get("device_kind") == "cpu" else None
    return session.with_measurement(
        Measurement(
            wall_samples_s=walls,
            op_samples_s=np.empty((0, len(session))) if own is None else own.op_samples_s,
            op_starts_s=np.empty((0, 0)) if own is None else own.op_starts_s,
            same_calls=same,
            others_share=others,
            host=host,
            clock="steps of the script" + ("; ops, while one was recorded" if own is not None else ""),
        )
    )


def _of_a_device(
    session: Session, window: Window, walls: Float64, others: float | None, host: HostTime | None
) -> Session:
    """The session of a GPU's step, with the ops of the window. Its wall is the whole iteration: the device works on
    while the host waits for its loader. Where the host ran ahead of it, the walls are lifted to those between syncs.
    """
    profile, run = window.profile, session.run
    assert profile is not None
    assert run is not None
    walls = walls[np.isfinite(walls)]
    walls = walls * max(1.0, window.mean_s / float(walls.mean())) if len(walls) else np.full(ITERATIONS, window.mean_s)
    times = op_times(session, profile.events, device=window.device == "cuda")
    if joined_share(session, times.seconds) < MIN_JOINED:  # other ops ran than were recorded
        return _with_times(session, walls, None, others, host)
    measured = Measurement(
        wall_samples_s=walls, op_samples_s=times.seconds, op_starts_s=times.starts_s, others_share=others, host=host,
        clock="iterations of the script; kernels by Kineto",
    )  # fmt: skip
    apart = tuple(each for each in run.between if each.name in APART)
    session = replace(session, run=replace(run, between=apart))
    facts = {**session.environment, **({TRACE: profile.trace} if profile.trace else {})}
    return replace(session, environment=facts).with_measurement(measured)


def _seen(finder: StepFinder) -> str:
    """In words, what a script did that made no step."""
    parts = {
        ("call of modules without parameters", "calls of modules without parameters"): finder.losses,
        ("call of a module", "calls of modules"): sum(steps.count for steps in finder.modules.calls.values()),
        ("backward pass", "backward passes"): finder.by_backward.count,
        ("optimizer step", "optimizer steps"): finder.by_optimizer.count,
    }
    seen = ", ".join(count_of(count, *names) for names, count in parts.items() if count)
    broken = finder.broken or finder.recorder.broken
    why = f"; watching it failed ({broken}): please report it" if broken else ""
    why += f"; scripts {each}" if (each := programs_begun()) else ""
    return (seen or "no call of a module, backward pass or optimizer step") + why


def _empty() -> Session:
    from rooflight.sources.capture.record.recorder import record

    with record(compiled_eagerly=False) as recording:
        pass
    return recording.session
