"""What a ``StepFinder`` found, as a session: the recorded step, the times of those that were not, and the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.capture.run.finder import Caller, StepFinder
from rooflight.capture.run.recording import Kept
from rooflight.capture.run.steps import Steps
from rooflight.records.measurement import Measurement
from rooflight.records.session import Session
from rooflight.records.timeline import Run, RunStep, StepKind

_FEW: Final = 3


def session_of(finder: StepFinder, script: str, exit_code: int | None, limit: int | None) -> Session:
    """The session of a run that has ended; without records where no step could be recorded. At most ``limit`` steps
    after the skipped ones are timed.
    """
    finder.finish()
    kind, steps, caller = _found(finder)
    nothing = Run(script=script, exit_code=exit_code, seen=_seen(finder))
    if kind is None:
        empty = _empty()
        return replace(empty, run=nothing, environment={**empty.environment, "target": script})
    cycle = (finder.cycle or 1) if kind is StepKind.OPTIMIZER else 1
    kept = finder.recorder.kept.get(kind)
    if kept is None:  # of another kind, which its calls are parts of
        kept = next(iter(finder.recorder.kept.values()), None)
        place = None
    else:
        place = kept.place if kept.cycle == cycle else None
    taken = finder.recorder.taken[kind] if place is not None else set()
    run = replace(
        nothing,
        step=RunStep(
            kind=kind,
            name=caller.name,
            where=caller.where,
            count=steps.count // cycle,
            begins=_begins(finder.begun_by) if kind in _WITH_A_BEGIN else f"the call of {caller.name}",
            recorded=None if place is None else place + 1,
            calls=_calls(finder, steps) if kind is StepKind.OPTIMIZER else (),
        ),
        between=steps.between(cycle, _undisturbed(range(steps.count // cycle), finder.skip, taken)),
        alike=steps.alike(cycle, place, taken),
    )
    session = kept.session if kept is not None else _empty()
    times = _timed(steps, cycle, kept if place is not None else None, finder.skip, taken, limit)
    environment = {**session.environment, "target": script}
    return _with_times(replace(session, run=run, environment=environment), times, None if place is not None else 0.0)


_WITH_A_BEGIN: Final = (StepKind.OPTIMIZER, StepKind.BACKWARD)


def _begins(by: type | None) -> str:
    if by is None:
        return "the end of the one before"
    if any(each.__name__ == "Optimizer" for each in by.__mro__):
        return f"the call of {by.__name__}.step, which runs the model"
    return f"the first call of {by.__name__} with gradients on"


def _found(finder: StepFinder) -> tuple[StepKind | None, Steps, Caller]:
    """The first kind that ran, in the order in which they mean steps."""
    optimizer, backward, function = finder.by_optimizer, finder.by_backward, finder.by_function
    if function.count:
        return StepKind.FUNCTION, function, finder.function
    if optimizer.count:
        callers = list(finder.optimizers)
        names = dict.fromkeys(caller.name for caller in callers)
        return StepKind.OPTIMIZER, optimizer, Caller(" and ".join(names), callers[0].where)
    if backward.count:
        return StepKind.BACKWARD, backward, finder.backward
    called = [(weights.elements, finder.calls[number].count, number) for number, (_, weights) in finder.modules.items()]
    called = [each for each in called if each[1]]
    if not called:
        return None, optimizer, finder.backward
    number = max(called)[2]
    return StepKind.MODULE, finder.calls[number], finder.modules[number][0]


def _calls(finder: StepFinder, steps: Steps) -> tuple[tuple[str, int], ...]:
    names = list(finder.optimizers)
    counts = sorted(steps.calls_of().items())
    return tuple((f"{names[number].name} ({names[number].where})", count) for number, count in counts if len(names) > 1)


def _timed(
    steps: Steps, cycle: int, kept: Kept | None, skip: int, taken: set[int], limit: int | None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Times of steps like the recorded one, or of all where none is."""
    seconds, sizes = steps.seconds(cycle), steps.sizes(cycle)
    alike = {sizes[kept.place]} if kept is not None and kept.place < len(sizes) else set(sizes)
    same = [place for place, size in enumerate(sizes) if size in alike and place not in taken]
    return np.asarray(seconds[_undisturbed(same or range(len(sizes)), skip, taken)[:limit]], dtype=np.float64)


def _undisturbed(places: Iterable[int], skip: int, taken: set[int]) -> list[int]:
    """Steps that were not recorded, after the skipped ones where there are some. The step after a recorded one finds
    other caches and is left out too, unless few are left.
    """
    places = [place for place in places if place not in taken]
    places = [place for place in places if place >= skip] or places
    settled = [place for place in places if place - 1 not in taken]
    return settled if len(settled) >= _FEW else places


def _with_times(session: Session, walls: np.ndarray[tuple[int], np.dtype[np.float64]], same: float | None) -> Session:
    own = session.measurement
    on_cpu = session.environment.get("device_kind") == "cpu"
    nothing = np.empty((0, len(session)))
    if not len(walls) and own is None:
        return session
    timed = own is not None and on_cpu
    return session.with_measurement(
        Measurement(
            wall_samples_s=walls,
            op_samples_s=own.op_samples_s if own is not None and timed else nothing,
            op_starts_s=own.op_starts_s if own is not None and timed else np.empty((0, 0)),
            same_calls=same,
            clock="steps of the script; ops, while one was recorded" if timed else "steps of the script",
        )
    )


def _seen(finder: StepFinder) -> str:
    """In words, what a script did that made no step."""
    parts: Mapping[str, int] = {
        "calls of modules without parameters": finder.losses,
        "calls of modules": sum(steps.count for steps in finder.calls.values()),
        "backward passes": finder.by_backward.count,
        "optimizer steps": finder.by_optimizer.count,
    }
    seen = ", ".join(f"{count:,} {name}" for name, count in parts.items() if count)
    broken = finder.broken or finder.recorder.broken
    why = f"; watching it failed ({broken}): please report it" if broken else ""
    return (seen or "no call of a module, backward pass or optimizer step") + why


def _empty() -> Session:
    from rooflight.capture.record.recorder import record

    with record(compiled_eagerly=False) as recording:
        pass
    return recording.session
