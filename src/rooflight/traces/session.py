"""A session made of a trace, with notes of what the trace lacks and which of its times cannot be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from rooflight.records.assembly import session_of
from rooflight.records.dtypes import float32_fact
from rooflight.records.measurement import Measurement
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import Flags, Int32, Int64, Session
from rooflight.records.signature import OpSignature
from rooflight.traces.file.discovery import is_database
from rooflight.traces.file.nesting import nested
from rooflight.traces.file.nsight import DTYPES_OF_KERNELS, load_nsight
from rooflight.traces.file.trace import COLLECTIVE, UNKNOWN, Spans, Trace, load_trace
from rooflight.traces.ops.collectives import assumed_group
from rooflight.traces.ops.context import NOTHING, Clues, find_clues, multiplies_by_tf32, precisions_of
from rooflight.traces.ops.engines import EngineFacts, Facts
from rooflight.traces.ops.execution_trace import Operands, join_execution, with_storages
from rooflight.traces.ops.model_config import Model, read_model
from rooflight.traces.ops.signatures import RUNS_NOTHING, Call, find_signatures, is_level
from rooflight.traces.ownership import Ownership, Places, accounted_ops, owners, phase_of
from rooflight.traces.time.replays import Replays, join_replays, work_by_replay
from rooflight.traces.time.steps import NO_STEPS, Run, Runs, marked_steps, repeated, step_notes, times_of_ops
from rooflight.traces.time.timeline import all_of, kernels_by_name, timeline_of

_FAR_NS: Final = 3_600 * 10**9  # no program that is profiled does nothing for an hour
_FEW: Final = 0.01  # share of the events: if so few are far away, the others are right

_Some = TypeVar("_Some", bound=Spans)


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
        ops=_between(trace.ops, first, last),
        calls=_between(trace.calls, first, last),
        work=_between(trace.work, first, last),
        ranges=_between(trace.ranges, first - _FAR_NS, last + _FAR_NS),
        left_out=left_out,
    )


def clock_doubts(trace: Trace, call_of: Int32) -> Iterator[str]:
    """What is wrong with the times of a trace; ``call_of[k]`` is the call that launched work k."""
    times = _times(trace)
    longest = int(np.diff(times).max(initial=0))
    if longest > _FAR_NS:
        yield (
            f"For {Quantity(longest * 1e-9, 's')} nothing begins in the trace: it has two runs, or two clocks that "
            "differ by as much. The wall time and the idle time include that."
        )
    known = call_of != UNKNOWN
    early = trace.calls.start[call_of[known]] - trace.work.start[known]
    if (early > 0).any():
        begun = count_of(int((early > 0).sum()), "piece begins", "pieces begin")
        yield (
            f"Of {len(early):,} pieces of the device's work {begun} before the call that launched "
            f"it, by up to {Quantity(int(early.max()) * 1e-9, 's')}: the clocks of host and device differ. Durations "
            "are right; what lies between host and device (the wall time, idle at its ends) is not."
        )
    if instant := int((trace.work.stop == trace.work.start).sum()):
        yield f"{count_of(instant, 'piece')} of the device's work took 0 s by its clock, which no work takes."


def _times(trace: Trace) -> Int64:
    return np.sort(np.concatenate([trace.ops.start, trace.calls.start, trace.work.start]))


def _between(spans: _Some, first: int, last: int) -> _Some:
    chosen: Flags = (spans.start >= first) & (spans.start <= last)
    if chosen.all():
        return spans
    columns: dict[str, Any] = {each.name: getattr(spans, each.name)[chosen] for each in fields(spans)}
    return replace(spans, **columns)


_REASONS: Final = 3  # so many reasons are named


def missing(trace: Trace, call_of: Int32) -> list[str]:
    """What was left out of the trace, and what of it is doubtful; ``call_of[k]`` is the call that launched work k."""
    name = trace.path.name
    notes = [f"{name}: {count_of(events, 'event')} left out: {why}." for why, events in trace.left_out.items()]
    if trace.odd:
        odd = count_of(trace.odd, "event")
        notes.append(f"{name}: {odd} with fields of types that torch's profiler does not write: some count as unknown.")
    launches = sum("launch" in trace.names[number].lower() for number in trace.calls.name.tolist())
    if launches and not trace.has_device:
        notes.append(
            f"{name}: {count_of(launches, 'call')} launched work on a device, of which the trace has nothing: times "
            "are those of the host. Record it with ProfilerActivity.CUDA."
        )
    if assumed := assumed_group(trace):
        notes.append(f"{name}: {assumed}")
    notes += [f"{name}: {doubt}" for doubt in clock_doubts(trace, call_of)]
    return notes


def nothing_ran(trace: Trace) -> str:
    """Why there is nothing to analyse."""
    if not trace.events:
        return f"{trace.path}: the trace has no events: nothing ran while it was recorded"
    found = f"{trace.path} has {count_of(trace.events, 'event')}, but no op and no work of a device"
    if not trace.left_out:
        return f"{found}: nothing ran while it was recorded"
    most = sorted(trace.left_out.items(), key=lambda reason: -reason[1])[:_REASONS]
    return f"{found} ({', '.join(f'{why}: {events:,}' for why, events in most)}): give a trace of torch.profiler"


_MODEL_UNUSED: Final = (
    "The model's config changed nothing: no op of the trace is a serving engine's that leaves out what it has."
)


def read_trace(
    path: str | PathLike[str],
    capture: str | PathLike[str] | None = None,
    *,
    model: Model | None = None,
    execution_trace: str | PathLike[str] | None = None,
    whole: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Session:
    """The session in a trace that torch.profiler exported (Kineto JSON, plain or gzip), or in a report that Nsight
    Systems exported to SQLite, with the times of its kernels.

    Its ops are those that a recording of the program would have, as far as the trace tells: their results follow from
    running each kind of call once on meta tensors. An op that cannot be run is kept with its time and counts as
    uncosted. A trace does not tell which op read what another wrote, so that the fused and the program bound leave out
    bytes between ops; the ``execution_trace`` that torch's observer wrote of the same run does. ``capture`` is the
    trace of the capture of the graphs that were replayed: their kernels then belong to the ops whose launches were
    captured. ``model`` is the config of the model that a serving engine ran, from which follows what its ops do not
    tell: a mapping, the path of a config.json, or a preset. With ``whole``, all ops of the trace are one step, whatever
    steps the profiler marked. ``progress`` is called with the bytes read of a file, and its size.

    Raises ValueError for a file that is no trace or is damaged, for a trace without ops, for a capture that fits none
    of the replays, for a model that is no config, and for an execution trace of another run; OSError.
    """
    known = read_model(model) if model is not None else None
    trace = _loaded(Path(path), progress)
    operands: Mapping[int, Operands] = {}
    if execution_trace is not None:
        joined = join_execution(trace, Path(execution_trace))
        trace, operands = joined.trace, joined.operands
    nesting = nested(trace)
    levels = _levels(trace)
    owned = owners(trace, nesting, levels)
    replays = join_replays(trace, Path(capture), progress) if capture is not None else None
    if replays is not None:
        owned = owned.without(replays.joined)
    if trace.has_device:
        ops = np.unique(owned.accounted[owned.accounted != UNKNOWN])
    else:
        ops = accounted_ops(trace, nesting, levels)
    if operands:  # what allocates and views memory launches nothing, and tells where it came from
        ops = np.union1d(ops, accounted_ops(trace, nesting, levels))
    clues = find_clues(trace, nesting, owned, ops.tolist())
    clues |= {
        op: replace(clues.get(op, NOTHING), shared=operands[op].shared, results=operands[op].results)
        for op in ops.tolist()
        if op in operands
    }
    engine = EngineFacts(trace, nesting, owned, known)
    places = Places(trace, nesting)
    found = _host_runs(trace, owned, ops.tolist(), clues, places, engine, operands)
    environment, notes = _environment(trace, owned), missing(trace, owned.call)
    worked = [(trace, owned, all_of(trace))]
    engines = [engine]
    if replays is not None:
        notes.append(replays.note)
        at_capture = owners(replays.trace, replays.nesting, _levels(replays.trace))
        environment |= _float32_setting(replays.trace, at_capture)
        engines.append(EngineFacts(replays.trace, replays.nesting, at_capture, known))
        found += _replayed_runs(replays, at_capture, engines[-1])
        worked = [(trace, owned, ~replays.joined), (replays.trace, at_capture, all_of(replays.trace))]
    notes += [DTYPES_OF_KERNELS] * (len(trace.ops) > 0 and is_database(trace.path)) + [_MODEL_UNUSED] * (
        known is not None and not any(each.model_told for each in engines)
    )
    signatures = find_signatures(run.call for run in found)
    runs = Runs.of((run for run in found if _ran(trace, run, signatures[run.call])), signatures)
    steps = NO_STEPS if whole else marked_steps(trace, owned)
    alike = repeated(trace, steps, runs)
    notes += step_notes(trace, runs, alike)
    shown = alike.runs[alike.shown]
    records = runs.records(shown)
    storage_bytes: list[int] = []
    if operands:
        records, storage_bytes, lacking = with_storages(records, [runs.operands[run] for run in shown.tolist()])
        if lacking:
            notes.append(f"{count_of(lacking, 'op')} of the trace without memory in {Path(execution_trace or '').name}")
    session = session_of(records, storage_bytes=storage_bytes, environment=environment, notes=notes)
    # signatures that other steps alone have are kept, for what the timeline says of the whole trace
    session = replace(session, signatures=tuple(dict.fromkeys((*session.signatures, *runs.signatures))))
    timeline = timeline_of(
        trace,
        nesting,
        owned,
        places,
        steps,
        shown=alike.numbers,
        calls=Counter(steps.of(runs.launched).tolist()),
        has_shapes=_have_shapes(trace, clues),
        replayed=~worked[0][2],
    )
    return session.with_measurement(
        Measurement(
            wall_samples_s=np.array([end - begin for begin, end in alike.walls], dtype=np.float64) * 1e-9,
            op_samples_s=np.array([runs.seconds[row] for row in alike.runs], dtype=np.float64),
            op_starts_s=np.array(
                [runs.start[row] - begin for row, (begin, _) in zip(alike.runs, alike.walls, strict=True)],
                dtype=np.float64,
            )
            * 1e-9,
            timeline=timeline
            and replace(timeline, signature_s=runs.seconds_of(session.signatures), kernels=kernels_by_name(worked)),
            clock="kernels in the trace" if trace.has_device else "ops in the trace",
        )
    )


def _loaded(file: Path, progress: Callable[[int, int], None] | None) -> Trace:
    """The trace in a file, of whichever profiler. Raises ValueError where nothing ran."""
    trace = without_strays(load_nsight(file) if is_database(file) else load_trace(file, progress))
    if not len(trace.ops) and not trace.has_device:
        raise ValueError(nothing_ran(trace))
    return trace


def _ran(trace: Trace, run: Run, op: OpSignature) -> bool:
    """Whether a run is one of an op: on a device it did something, or torch runs the call as an op."""
    return op.incomplete != RUNS_NOTHING or (trace.has_device and run.seconds > 0)


def _host_runs(
    trace: Trace,
    owned: Ownership,
    ops: Sequence[int],
    clues: Mapping[int, Clues],
    places: Places,
    engine: EngineFacts,
    operands: Mapping[int, Operands],
) -> list[Run]:
    """The runs of the ops that the host ran."""
    start, seconds = times_of_ops(trace, owned)
    return [
        Run(
            call=_call(trace, op, clues.get(op, NOTHING), engine.of(op, _around(engine, places, op))),
            place=places.place(op),
            seconds=float(seconds[op]),
            start=int(start[op] if seconds[op] else trace.ops.start[op]),
            launched=int(trace.ops.start[op]),
            thread=int(trace.ops.thread[op]),
            operands=operands.get(op),
        )
        for op in ops
    ]


def _around(engine: EngineFacts, places: Places, op: int) -> Sequence[str]:
    """The annotations around an op of an engine; others do not need them."""
    return places.annotations(op) if engine.concerns(op) else ()


def _replayed_runs(replays: Replays, owned: Ownership, engine: EngineFacts) -> list[Run]:
    """The runs of a graph's ops, once for each replay. Modules are those of the capture, phases those of the replay."""
    trace, nesting = replays.trace, replays.nesting
    worked = work_by_replay(replays, owned.accounted)
    ops = sorted({op for _, op in worked})
    clues, places = find_clues(trace, nesting, owned, ops), Places(trace, nesting)
    found = {op: places.place(op) for op in ops}
    return [
        Run(
            call=_call(trace, op, clues.get(op, NOTHING), engine.of(op, replays.names[replay])),
            place=replace(found[op], phase=phase_of(replays.names[replay])),
            seconds=seconds,
            start=start,
            launched=replays.launched[replay][0],
            thread=replays.launched[replay][1],
        )
        for (replay, op), (seconds, start) in worked.items()
    ]


def _levels(trace: Trace) -> Flags:
    """Which ops of the host a recorder would see."""
    known: dict[tuple[int, int], bool] = {}
    found = []
    for name, args in zip(trace.ops.name.tolist(), trace.ops.args.tolist(), strict=True):
        if (name, args) not in known:
            is_collective = trace.has_device and trace.names[name] == COLLECTIVE
            known[name, args] = is_collective or is_level(Call(trace.names[name], trace.arguments[args]))
        found.append(known[name, args])
    return np.array(found, dtype=np.bool_)


def _have_shapes(trace: Trace, clues: Mapping[int, Clues]) -> Flags:
    """Whether the profiler noted shapes, by op, in its event or, of a collective, elsewhere."""
    noted = np.array([bool(args.dims and args.types) for args in trace.arguments], dtype=np.bool_)
    found = noted[trace.ops.args]
    found[[op for op, told in clues.items() if told.collective is not None]] = True
    return found


def _call(trace: Trace, op: int, clues: Clues, facts: Facts) -> Call:
    told = replace(clues, facts=facts) if facts else clues
    return Call(trace.names[trace.ops.name[op]], trace.arguments[trace.ops.args[op]], told)


def _environment(trace: Trace, owned: Ownership) -> dict[str, str]:
    facts = {"device_kind": "cuda" if trace.has_device else "cpu", "target": trace.path.name}
    properties = trace.head.get("deviceProperties")
    if trace.has_device and (gpu := _gpu(properties, set(trace.work.device.tolist()))):
        facts["gpu"] = gpu
    return facts | _rank(trace.head) | _float32_setting(trace, owned)


def _rank(head: Mapping[str, Any]) -> dict[str, str]:
    """Which rank of how many the trace is of, where it is of a distributed program."""
    info = head.get("distributedInfo")
    if not isinstance(info, dict):
        return {}
    known = {key: info.get(key) for key in ("rank", "world_size")}
    facts = {key: str(number) for key, number in known.items() if _is_number(number)}
    backend = info.get("backend")
    return facts | ({"backend": backend} if isinstance(backend, str) and backend else {})


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _float32_setting(trace: Trace, owned: Ownership) -> dict[str, str]:
    """The precision of float32 products, where a kernel tells it."""
    allowed = multiplies_by_tf32(trace, precisions_of(trace, owned))
    return {float32_fact("cuda.matmul"): "tf32"} if allowed else {}


def _gpu(properties: Any, used: set[int]) -> str | None:
    """The name of the GPU, as its driver gives it; that of the device in use where a trace lists several."""
    if not isinstance(properties, list):
        return None
    listed = [each for each in properties if isinstance(each, dict) and isinstance(each.get("name"), str)]
    mine = [each for each in listed if isinstance(each.get("id"), int) and each["id"] in used] or listed
    names = {each["name"] for each in mine}
    return names.pop() if len(names) == 1 else None
