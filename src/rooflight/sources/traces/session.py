"""A session made of a trace, with notes of what the trace lacks, and of times in it that cannot all be right.

Some traces have events far away from all others, or work that ran before its launch: Kineto converts the device's clock
to the host's, and has written times of 0, and of another clock, where that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from rooflight.hardware.devices.catalog import datasheets, find_by_torch_name
from rooflight.records.assembly import session_of
from rooflight.records.dtypes import float32_fact
from rooflight.records.measurement import NO_WORK, Measurement
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import AS_KERNELS, COMPILED, Flags, Int64, Session
from rooflight.records.timeline import Timeline
from rooflight.sources.traces.file.discovery import is_database
from rooflight.sources.traces.file.kernel_dtypes import DTYPES_OF_KERNELS
from rooflight.sources.traces.file.kinds import is_rocm
from rooflight.sources.traces.file.kineto import load_trace
from rooflight.sources.traces.file.nsight import load_nsight
from rooflight.sources.traces.file.rocm import load_rocm
from rooflight.sources.traces.file.trace import COLLECTIVE, UNKNOWN, Nesting, Trace, nested
from rooflight.sources.traces.ops.collectives import assumed_group
from rooflight.sources.traces.ops.context import NO_CONTEXT, CallContext, call_contexts, multiplies_by_tf32
from rooflight.sources.traces.ops.engines import EngineFacts, Model, ModelFacts, read_model
from rooflight.sources.traces.ops.execution_trace import Operands, join_execution, with_storages
from rooflight.sources.traces.ops.signatures import RUNS_NOTHING, Call, find_signatures, is_level
from rooflight.sources.traces.ownership import Ownership, Places, owners, phase_of
from rooflight.sources.traces.time.own import OwnTime
from rooflight.sources.traces.time.replays import Replays, join_replays, work_by_replay
from rooflight.sources.traces.time.steps import (
    NO_STEPS,
    Repeated,
    Run,
    Runs,
    marked_steps,
    repeated,
    step_notes,
    times_of_ops,
)
from rooflight.sources.traces.time.timeline import kernels_by_name, timeline_of

_MODEL_UNUSED: Final = (
    "The model's config changed nothing: no op of the trace is a serving engine's that leaves out what it has."
)

Progress = Callable[[int, int], None]


def read_trace(
    path: str | PathLike[str],
    capture: str | PathLike[str] | None = None,
    *,
    model: Model | None = None,
    execution_trace: str | PathLike[str] | None = None,
    whole: bool = False,
    progress: Progress | None = None,
) -> Session:
    """The session in a trace that torch.profiler exported (Kineto JSON, plain or gzip), or in a report that Nsight
    Systems exported to SQLite, with the times of its kernels.

    Its ops are those that a recording of the program would have, as far as the trace shows: their results follow from
    running each kind of call once on meta tensors. An op that cannot be run has its time and counts as
    uncosted. A trace does not show which op read what another wrote, so that the fused and the program bound leave out
    bytes between ops; the ``execution_trace`` that torch's observer wrote of the same run does. ``capture`` is the
    trace of the capture of the graphs that were replayed: their kernels then belong to the ops whose launches were
    captured. ``model`` is the config of the model that a serving engine ran, from which follows what its ops leave
    out: a mapping, the path of a config.json, or a preset. With ``whole``, all ops of the trace are one step, whatever
    steps the profiler marked. ``progress`` is called with the bytes read of a file, and its size.

    Raises ValueError for a file that is no trace or is damaged, for a trace without ops, for a capture that fits none
    of the replays, for a model that is no config, and for an execution trace of another run; OSError.
    """
    config = read_model(model) if model is not None else None
    trace, operands = _loaded(Path(path), progress), dict[int, Operands]()
    if execution_trace is not None:
        trace, operands = join_execution(trace, Path(execution_trace))
    nesting = nested(trace)
    replays = join_replays(trace, Path(capture), progress) if capture is not None else None
    source = _Source.of(trace, nesting, config, None if replays is None else replays.joined)
    ops = _ops(source.owned, with_memory=bool(operands))
    contexts = _contexts(source.owned, ops, operands)
    sources, runs = [source], _host_runs(source, ops, contexts, operands)
    environment, notes = _environment(source.owned), notes_of(source.owned)
    if replays is not None:
        sources.append(_Source.of(replays.trace, replays.nesting, config))
        runs += _replayed_runs(sources[-1], replays)
        environment |= _float32_setting(sources[-1].owned)
        notes.append(replays.note)
    if trace.guesses_dtypes:
        notes.append(DTYPES_OF_KERNELS)
    if config is not None and not any(each.engine.used_model for each in sources):
        notes.append(_MODEL_UNUSED)
    ran = _those_that_ran(trace, runs)
    steps = NO_STEPS if whole else marked_steps(source.owned)
    alike = repeated(trace, steps, ran)
    notes += step_notes(trace, ran, alike)
    shown = alike.runs[alike.shown]
    records, storage_bytes = ran.records(shown), list[int]()
    if operands:
        records, storage_bytes, lacking = with_storages(records, ran.operands(shown))
        if lacking:
            notes.append(f"{count_of(lacking, 'op')} of the trace without memory in {Path(execution_trace or '').name}")
    session = session_of(records, storage_bytes=storage_bytes, environment=environment, notes=notes)
    # signatures that other steps alone have are part of it, for the timeline of the whole trace
    session = replace(session, signatures=tuple(dict.fromkeys((*session.signatures, *ran.signatures))))
    timeline = timeline_of(
        source.owned,
        source.places,
        steps,
        source.own,
        shown=alike.numbers,
        walls=alike.walls,
        calls=Counter(steps.of(ran.launched).tolist()),
        has_shapes=_have_shapes(trace, contexts),
        replayed=~source.chosen,
    )
    if timeline is not None:
        kernels = kernels_by_name((each.owned, each.chosen) for each in sources)
        timeline = replace(timeline, signature_s=ran.seconds_of(session.signatures), kernels=kernels)
    return session.with_measurement(_measurement(trace, alike, ran, timeline))


def _loaded(file: Path, progress: Progress | None) -> Trace:
    if is_rocm(file):
        trace = load_rocm(file)
    else:
        trace = without_strays(load_nsight(file) if is_database(file) else load_trace(file, progress))
    if not len(trace.ops) and not trace.has_device:
        raise ValueError(nothing_ran(trace))
    return trace


@dataclass(frozen=True, slots=True)
class _Source:
    """A trace with what is known of it. ``chosen[k]``: work k is accounted here, not where it was captured."""

    owned: Ownership
    chosen: Flags
    engine: EngineFacts
    places: Places
    own: OwnTime

    @classmethod
    def of(cls, trace: Trace, nesting: Nesting, config: ModelFacts | None, replayed: Flags | None = None) -> _Source:
        replayed = np.zeros(len(trace.work), dtype=np.bool_) if replayed is None else replayed
        owned = owners(trace, nesting, _seen_by_recorder(trace)).without(replayed)
        return cls(owned, ~replayed, EngineFacts(owned, config), Places(trace, nesting), OwnTime.of(trace))

    def call(self, op: int, context: CallContext, annotations: Sequence[str]) -> Call:
        trace = self.owned.trace
        if facts := self.engine.of(op, annotations):
            context = replace(context, facts=facts)
        return Call(trace.op_name(op), trace.arguments[trace.ops.args[op]], context)


def _seen_by_recorder(trace: Trace) -> Flags:
    known: dict[tuple[int, int], bool] = {}
    found = []
    for name, args in zip(trace.ops.name.tolist(), trace.ops.args.tolist(), strict=True):
        if (name, args) not in known:
            is_collective = trace.has_device and trace.names[name] == COLLECTIVE
            known[name, args] = is_collective or is_level(Call(trace.names[name], trace.arguments[args]))
        found.append(known[name, args])
    return np.array(found, dtype=np.bool_)


def _ops(owned: Ownership, *, with_memory: bool) -> Sequence[int]:
    """Ops that did something. What allocates and views shows where memory came from."""
    found = owned.device_ops if owned.trace.has_device else owned.host_ops
    ops: list[int] = (np.union1d(found, owned.host_ops) if with_memory else found).tolist()
    return ops


def _contexts(owned: Ownership, ops: Sequence[int], operands: Mapping[int, Operands]) -> Mapping[int, CallContext]:
    contexts = call_contexts(owned, ops)
    for op in ops if operands else ():
        if (held := operands.get(op)) is not None:
            context = contexts.get(op, NO_CONTEXT)
            contexts[op] = replace(context, shared=held.shared, results=held.results)
    return contexts


def _host_runs(
    source: _Source, ops: Sequence[int], contexts: Mapping[int, CallContext], operands: Mapping[int, Operands]
) -> list[Run]:
    engine, places, columns = source.engine, source.places, source.owned.trace.ops
    start, seconds = times_of_ops(source.owned)
    own = source.own.of_ops(source.owned) if source.owned.trace.has_device else seconds
    return [
        Run(
            call=source.call(op, contexts.get(op, NO_CONTEXT), places.annotations(op) if engine.concerns(op) else ()),
            place=places.place(op),
            seconds=float(seconds[op]),
            own=float(own[op]),
            start=int(start[op] if seconds[op] else columns.start[op]),
            launched=int(columns.start[op]),
            thread=int(columns.thread[op]),
            operands=operands.get(op),
        )
        for op in ops
    ]


def _replayed_runs(source: _Source, replays: Replays) -> list[Run]:
    worked = work_by_replay(replays, source.owned.accounted, source.own.own)
    ops = sorted({op for _, op in worked})
    contexts, places = call_contexts(source.owned, ops), {op: source.places.place(op) for op in ops}
    return [
        Run(
            call=source.call(op, contexts.get(op, NO_CONTEXT), replays.names[replay]),
            place=replace(places[op], phase=phase_of(replays.names[replay])),
            seconds=seconds,
            own=own,
            start=start,
            launched=replays.launched[replay][0],
            thread=replays.launched[replay][1],
        )
        for (replay, op), (seconds, own, start) in worked.items()
    ]


def _those_that_ran(trace: Trace, runs: Sequence[Run]) -> Runs:
    signatures = find_signatures(run.call for run in runs)
    return Runs(
        (
            run
            for run in runs
            if signatures[run.call].incomplete != RUNS_NOTHING or (trace.has_device and run.seconds > 0)
        ),
        signatures,
    )


def _have_shapes(trace: Trace, contexts: Mapping[int, CallContext]) -> Flags:
    described = np.array([bool(args.dims and args.types) for args in trace.arguments], dtype=np.bool_)
    found = described[trace.ops.args]
    found[[op for op, context in contexts.items() if context.collective is not None]] = True
    return found


def _measurement(trace: Trace, alike: Repeated, runs: Runs, timeline: Timeline | None) -> Measurement:
    if trace.launches and not trace.has_device:  # the host's times are of launches, not of the work
        walls = np.array([end - begin for begin, end in alike.walls], dtype=np.float64) * 1e-9
        return Measurement(wall_samples_s=walls, op_samples_s=np.empty((0, len(alike.runs[0]))), clock=NO_WORK)
    starts = [runs.start[row] - begin for row, (begin, _) in zip(alike.runs, alike.walls, strict=True)]
    return Measurement(
        wall_samples_s=np.array([end - begin for begin, end in alike.walls], dtype=np.float64) * 1e-9,
        op_samples_s=np.array([runs.seconds[row] for row in alike.runs], dtype=np.float64),
        op_starts_s=np.array(starts, dtype=np.float64) * 1e-9,
        op_own_s=np.array([runs.own[row] for row in alike.runs], dtype=np.float64),
        timeline=timeline,
        clock="kernels in the trace" if trace.has_device else "ops in the trace",
    )


def _environment(owned: Ownership) -> dict[str, str]:
    trace = owned.trace
    of_device = trace.has_device or bool(trace.launches)
    facts = {"device_kind": "cuda" if of_device else "cpu", "target": trace.path.name}
    if of_device and (gpu := _gpu(trace)[1]):
        facts["gpu"] = gpu
    facts |= {COMPILED: AS_KERNELS} if trace.is_compiled else {}
    return facts | _rank(trace.distributed) | _float32_setting(owned)


def _rank(info: Mapping[str, Any]) -> dict[str, str]:
    known = {key: info.get(key) for key in ("rank", "world_size")}
    facts = {key: str(number) for key, number in known.items() if type(number) is int and number >= 0}
    backend = info.get("backend")
    return facts | ({"backend": backend} if isinstance(backend, str) and backend else {})


def _float32_setting(owned: Ownership) -> dict[str, str]:
    return {float32_fact("cuda.matmul"): "tf32"} if multiplies_by_tf32(owned) else {}


def _gpu(trace: Trace) -> tuple[str, str]:
    """What the trace calls its GPU, and the part: where AMD's name says nothing, the one of as many units and bytes."""
    properties, used = trace.head.get("deviceProperties"), set(trace.work.device.tolist())
    listed = [each for each in properties if isinstance(each, dict)] if isinstance(properties, list) else []
    mine = [each for each in listed if isinstance(each.get("id"), int) and each["id"] in used] or listed
    names = {each["name"] for each in mine if isinstance(each.get("name"), str)}
    if len(names) != 1:
        return "", ""
    (name,) = names
    size = mine[0].get("totalGlobalMem")
    if mine[0].get("warpSize") != _WAVE or not isinstance(size, int) or (name and find_by_torch_name(name)):
        return name, name
    parts = [each for each in datasheets() if each.vendor == "AMD" and each.unit_count == mine[0].get("numSms")]
    fits = [each.name for each in parts if 0.9 < size / (each.dram_capacity_bytes or inf) < 1.1]
    return name, fits[0] if len(fits) == 1 else name


_WAVE: Final = 64  # threads that run together on AMD's chips for data centers
_FAR_NS: Final = 3_600 * 10**9  # no program that is profiled does nothing for an hour
_FEW: Final = 0.01  # share of the events: if so few are far away, the others are right
_REASONS: Final = 3  # so many reasons are named


def without_strays(trace: Trace) -> Trace:
    """The trace without the few events that are more than an hour away from all others, which are counted."""
    times = _times(trace)
    edges = np.flatnonzero(np.diff(times) > _FAR_NS) + 1
    if not len(edges):
        return trace
    bounds = [0, *edges.tolist(), len(times)]
    sizes = np.diff(bounds)
    largest = int(np.argmax(sizes))
    strays = len(times) - int(sizes[largest])
    if strays > max(1, _FEW * len(times)) or 2 * strays >= len(times):
        return trace
    first, last = int(times[bounds[largest]]), int(times[bounds[largest + 1] - 1])
    left_out = {**trace.left_out, "more than an hour away from all others: their clock was another": strays}
    return replace(
        trace,
        ops=trace.ops.between(first, last),
        calls=trace.calls.between(first, last),
        work=trace.work.between(first, last),
        ranges=trace.ranges.between(first - _FAR_NS, last + _FAR_NS),
        left_out=left_out,
    )


def notes_of(owned: Ownership) -> list[str]:
    """What was left out of the trace, and what of it is doubtful."""
    trace, name = owned.trace, owned.trace.path.name
    notes = [f"{count_of(events, 'event')} left out: {why}." for why, events in trace.left_out.items()]
    if trace.odd:
        odd = count_of(trace.odd, "event")
        notes.append(f"{odd} with fields of types that torch's profiler does not write: some count as unknown.")
    if trace.launches and not trace.has_device:
        notes.append(_only_launches(trace))
    printed, part = _gpu(trace)
    if printed != part:
        notes.append(f'its GPU "{printed}" has the units and the memory of {part}, which is taken.')
    if assumed := assumed_group(trace):
        notes.append(assumed)
    return [f"{name}: {note}" for note in (*notes, *_clock_notes(owned))]


def _only_launches(trace: Trace) -> str:
    return (
        f"{count_of(trace.launches, 'call')} launched work on a device, of which the trace has nothing: no op has a "
        "time. Record it with ProfilerActivity.CUDA."
    )


def _clock_notes(owned: Ownership) -> Iterator[str]:
    trace = owned.trace
    longest = int(np.diff(_times(trace)).max(initial=0))
    if longest > _FAR_NS:
        yield (
            f"For {Quantity(longest * 1e-9, 's')} nothing begins in the trace: it has two runs, or two clocks that "
            "differ by as much. The wall time and the idle time include that."
        )
    known = owned.call != UNKNOWN
    early = trace.calls.start[owned.call[known]] - trace.work.start[known]
    if (early > 0).any():
        begun = count_of(int((early > 0).sum()), "piece begins", "pieces begin")
        yield (
            f"Of {len(early):,} pieces of the device's work {begun} before the call that launched "
            f"it, by up to {Quantity(int(early.max()) * 1e-9, 's')}: the clocks of host and device differ. Durations "
            "are right; what lies between host and device (the wall time, idle at its ends) is not."
        )
    if instant := int((trace.work.length == 0).sum()):
        yield f"{count_of(instant, 'piece')} of the device's work took 0 s by its clock, which no work takes."


def _times(trace: Trace) -> Int64:
    return np.sort(np.concatenate([trace.ops.start, trace.calls.start, trace.work.start]))


def nothing_ran(trace: Trace) -> str:
    """Why there is nothing to analyse."""
    if not trace.events:
        return f"{trace.path}: the trace has no events: nothing ran while it was recorded"
    found = f"{trace.path} has {count_of(trace.events, 'event')}, but no op and no work of a device"
    if trace.launches:
        return f"{found}: {_only_launches(trace)}"
    if not trace.left_out:
        return f"{found}: nothing ran while it was recorded, or it ran in other threads than the one that profiled"
    most = sorted(trace.left_out.items(), key=lambda reason: -reason[1])[:_REASONS]
    return f"{found} ({', '.join(f'{why}: {events:,}' for why, events in most)}): give a trace of torch.profiler"
