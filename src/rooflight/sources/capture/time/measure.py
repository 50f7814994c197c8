"""``measure``: the second, undisturbed pass that gives a recorded step its times."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import prod
from statistics import fmean
from time import perf_counter, thread_time
from typing import Any, Final

import numpy as np

from rooflight.hardware.machine.cpu_load import Bystander
from rooflight.hardware.machine.memory import fetched_s, of_the_system
from rooflight.hardware.network.collectives import kind_of
from rooflight.records.measurement import SAME_STEP, Measurement, other_step
from rooflight.records.session import Session
from rooflight.records.tensor import TensorSpec
from rooflight.records.timeline import HostLine, HostTime
from rooflight.sources.capture.time.compilations import compilations
from rooflight.sources.capture.time.host_lines import host_lines
from rooflight.sources.capture.time.kineto import STEP_MARK, op_times, works_on_memory
from rooflight.sources.capture.time.window import TRACE, Kineto, Profile

_Shapes = tuple[tuple[tuple[int, ...], str], ...]
_Calls = Counter[tuple[str, _Shapes, _Shapes]]


def same_calls(session: Session, again: Session) -> float | None:
    """The share of calls that two recordings have in common: the same op with the same shapes and dtypes. Where sizes
    are drawn anew in each step, the share of what each op moves, if that and the number of its calls are more alike.

    It is a share of the longer recording, so that a step is not the same as a part of it. Views do not count, since
    their number depends on the dispatch modes that are active. None if the first has nothing but views.
    """
    ours, theirs = _calls(session), _calls(again)
    if not ours:
        return None
    whole = _common(ours, theirs)
    by_op = [_by_op(each) for each in (ours, theirs)]
    return max(whole, min(_common(*pair) for pair in zip(*by_op, strict=True)))


def _common(ours: Counter[Any], theirs: Counter[Any]) -> float:
    return (ours & theirs).total() / max(ours.total(), theirs.total(), 1)


def _by_op(calls: _Calls) -> tuple[Counter[str], Counter[str]]:
    """How often each op was called, and the elements that its tensors had in sum."""
    count, elements = Counter[str](), Counter[str]()
    for (name, inputs, outputs), times in calls.items():
        count[name] += times
        elements[name] += times * sum(prod(shape) for shape, _ in (*inputs, *outputs))
    return count, elements


def _calls(session: Session) -> _Calls:
    numbers = session.columns.signature[session.counted & works_on_memory(session)]
    calls: _Calls = Counter()
    for number, count in Counter(numbers.tolist()).items():
        op = session.signatures[number]
        calls[op.name, _shapes_of(op.inputs), _shapes_of(op.outputs)] += count
    return calls


def _shapes_of(tensors: Iterable[TensorSpec]) -> _Shapes:
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


Progress = Callable[[str], None]

MIN_JOINED = 0.9
"""Share of the working (not view) records that must have an event. Below it no op times are kept, since they may be
wrong."""
PATIENCE_S: Final = 30.0
"""How long a rank waits for the others to say how long their step took: collectives have just kept them together."""
_MOST_WARM_UPS: Final = 8
_CHEAP_S: Final = 2.0  # if all steps took at most this together, they are timed once more on a busy machine


class MeasurementWarning(UserWarning):
    """The measured times must not be compared with the session's bound."""


def measure(
    session: Session | Callable[[], Any],
    step: Callable[[], Any] | None = None,
    *,
    warmup: int = 2,
    max_runs: int = 30,
    max_seconds: float = 10.0,
    profiled: int = 3,
    progress: Progress | None = None,
) -> Session:
    """Run ``step``, the program that ``session`` recorded, again and return the session with its times. Given a step
    alone, ``measure(step)``, it is run once, then recorded, then measured.

    The step runs once more under a recording, to find whether it is the one that ``session`` recorded. In ``warmup``
    more runs (more of short steps) a sampler looks where the host's thread is, and more follow until nothing compiles.
    Then whole steps are timed with nothing else running (at least 3, at most ``max_runs``, about ``max_seconds`` in
    all), then ``profiled`` steps run under Kineto, without shapes or stacks and without a sync inside the step: they
    give the start and the time of each op. On CUDA these are those of the kernels, and the device is synchronised
    before and after each whole step. Errors of ``step`` are not caught.

    The share of the CPU that other programs took while whole steps were timed is kept with the times. If it was too
    large, short steps are timed once more. A MeasurementWarning is issued if the step is not the recorded one; its time
    is kept, and not compared with the bound.

    A step with collectives must be measured by all ranks of the world at once: between steps they agree on how many to
    run. Where one does not, a MeasurementWarning says so after half a minute, and the warm-up alone has been timed.
    """
    if step is None and callable(session) and not isinstance(session, Session):
        step, session = session, _recorded_anew(session)
    if not isinstance(session, Session):
        raise TypeError(f"measure takes a Session, not {type(session).__name__}: pass recording.session")
    if not callable(step):
        raise TypeError(f"measure takes a function that runs the recorded step again, not {type(step).__name__}")
    say = progress or (lambda _: None)
    on_cuda = session.environment.get("device_kind", "cpu") == "cuda"
    together = _runs_together(session)
    say("recording the step again")
    same = same_calls(session, _recorded(step))
    say("warming up")
    lines, warm_s = host_lines(step, max(1, warmup), again=not together)
    if not together:
        _warm_up(step)
    _synchronize(on_cuda)

    def timed() -> Measurement:
        return _time_steps(step, max_runs, max_seconds, on_cuda=on_cuda, together=together, say=say)

    try:
        walls = timed()
    except _NotTogetherError as missing:
        warnings.warn(
            f"only the warm-up was timed: rank {missing} runs the step, but does not measure it. Run Rooflight on "
            "every rank, or leave the measurement out (--no-measure)",
            MeasurementWarning,
            stacklevel=3,
        )
        return session.with_measurement(_of_warm_up(session, warm_s, lines, same))
    if walls.disturbed and walls.wall_samples_s.sum() <= _CHEAP_S:
        say("timing once more: other programs are running")
        walls = min(walls, timed(), key=lambda each: each.others_share or 0.0)
    say("profiling ops")
    profile = _profile(step, profiled, on_cuda, together)
    events = profile.events
    if same == 0 and any(event.on_device and event.name != STEP_MARK for event in events):
        same = None  # a replayed CUDA graph runs the kernels of ops that are not recorded
    times = op_times(session, events, device=on_cuda)
    samples, starts = times.seconds, times.starts_s
    clock = "kernels by Kineto" if on_cuda else "ops by Kineto"
    if joined_share(session, samples) < MIN_JOINED or (same is not None and same < SAME_STEP):
        samples, starts = np.empty((0, len(session))), np.empty((0, 0))
        clock = "steps only: the ops that ran are not those recorded"
    after_s = float(np.median(times.after_s)) if len(times.after_s) and not on_cuda else None
    host = walls.host and replace(walls.host, lines=lines, compilations=compilations(), after_s=after_s)
    measurement = replace(walls, op_samples_s=samples, op_starts_s=starts, clock=clock, same_calls=same, host=host)
    if not measurement.of_the_session:
        warnings.warn(other_step(measurement), MeasurementWarning, stacklevel=3)
    facts = {**_as_timed(session), **({TRACE: profile.trace} if profile.trace else {})}
    return replace(session, environment=facts).with_measurement(measurement)


def _warm_up(step: Callable[[], Any]) -> None:
    """Run a step on until nothing compiles in it any more; not forever, since some compile in each."""
    for _ in range(_MOST_WARM_UPS):
        before = _times_compiled()
        if not before:
            return
        step()
        if _times_compiled() == before:
            return


def _times_compiled() -> int:
    return sum(each.times for each in compilations())


def _time_steps(
    step: Callable[[], Any], max_runs: int, max_seconds: float, *, on_cuda: bool, together: bool, say: Progress
) -> Measurement:
    # ranks on one host count as other programs for each other, so none of them can find out the share of the rest
    bystander = None if together else Bystander()
    walls: list[float] = []
    worked: list[float] = []
    before = of_the_system()
    while len(walls) < 3 or (len(walls) < max_runs and _longest(sum(walls), together) < max_seconds):
        say(f"timing step {len(walls) + 1}")
        start, begun = perf_counter(), thread_time()
        step()
        _synchronize(on_cuda)
        walls.append(perf_counter() - start)
        worked.append(thread_time() - begun)
    share = None if bystander is None else bystander.others()
    system_s, pages = ((now - then) / len(walls) for then, now in zip(before, of_the_system(), strict=True))
    host = HostTime(cpu_s=fmean(worked), fetched_s=fetched_s(system_s, pages), pages=pages)
    return Measurement(
        wall_samples_s=np.array(walls), op_samples_s=np.empty((0, 0)), clock="", others_share=share, host=host
    )


def _of_warm_up(session: Session, walls_s: list[float], lines: tuple[HostLine, ...], same: float | None) -> Measurement:
    return Measurement(
        wall_samples_s=np.array(walls_s),
        op_samples_s=np.empty((0, len(session))),
        clock="steps of the warm-up only",
        same_calls=same,
        host=HostTime(cpu_s=min(walls_s), lines=lines),
    )


def _recorded(step: Callable[[], Any]) -> Session:
    from rooflight.sources.capture.record.recorder import record

    with record() as recording:
        step()
    return recording.session


def _recorded_anew(step: Callable[[], Any]) -> Session:
    from rooflight.sources.capture.record.recorder import record

    step()  # what it makes when it first runs is no part of it
    with record(memory=True) as recording:
        step()
    return recording.session


def _as_timed(session: Session) -> Mapping[str, str]:
    from rooflight.hardware.machine import environment

    facts, threads = session.environment, environment.torch_threads()
    if facts.get("device_kind") != "cpu" or facts.get("cpu") != environment.cpu_model():
        return facts
    if facts.get("torch_threads") in (None, str(threads)):
        return facts
    return {**facts, "torch_threads": str(threads), "fingerprint": environment.fingerprint("cpu")}


def joined_share(session: Session, samples: np.ndarray[Any, Any]) -> float:
    """Share of the counted records that work on memory which have a time in every sample.

    Collectives do not count: whether their time can be found depends on the backend, not on the ops that ran.
    """
    elsewhere = np.array([kind_of(op.name) is not None for op in session.signatures], dtype=bool)
    working = session.counted & works_on_memory(session) & ~elsewhere[session.columns.signature]
    if not working.any():
        return 1.0
    if not len(samples):
        return 0.0
    return float(np.isfinite(samples[:, working]).all(axis=0).mean())


def _profile(step: Callable[[], Any], steps: int, on_cuda: bool, together: bool) -> Profile:
    kineto = Kineto("cuda" if on_cuda else None)
    kineto.start()
    try:
        if together:
            step()  # ranks take different times to start a profiler, and the profile must not have the others' waits
        for _ in range(steps):
            kineto.next()
            step()
    except BaseException:
        kineto.drop()
        raise
    return kineto.stop()


def _runs_together(session: Session) -> bool:
    if not any(kind_of(op.name) is not None for op in session.signatures):
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _NotTogetherError(RuntimeError):
    pass


_rounds = 0  # in which all ranks agreed, so as many on each


def _longest(seconds: float, together: bool) -> float:
    """The longest time of all ranks: if each rank used its own, some would run one step more, and wait for ever. They
    agree by way of the store, since a collective of ours would meet one of the program's on ranks that do not measure.
    """
    global _rounds
    if not together:
        return seconds
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    if dist.get_backend() == "fake":
        return seconds
    store = PrefixStore("rooflight.measure", _get_default_store())
    names = [f"{_rounds}.{rank}" for rank in range(dist.get_world_size())]
    store.set(names[dist.get_rank()], repr(seconds))
    try:
        store.wait(names, timedelta(seconds=PATIENCE_S))
    except RuntimeError:
        missing = ", ".join(str(rank) for rank, name in enumerate(names) if not store.check([name]))
        raise _NotTogetherError(missing) from None
    _rounds += 1
    return max(float(store.get(name)) for name in names)


def _synchronize(on_cuda: bool) -> None:
    if on_cuda:
        import torch

        torch.cuda.synchronize()
