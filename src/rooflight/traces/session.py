"""A session made of a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rooflight.records.float32 import fact_name
from rooflight.records.from_records import session_of
from rooflight.records.quantity import count_of
from rooflight.records.record import OpRecord
from rooflight.records.session import Flags, Measurement, Session
from rooflight.traces.clues import NOTHING, Clues, find_clues
from rooflight.traces.nesting import nested
from rooflight.traces.ownership import Ownership, accounted_ops, owners
from rooflight.traces.places import Place, Places, phase_of
from rooflight.traces.precision import multiplies_by_tf32, precisions_of
from rooflight.traces.replays import Replays, join_replays, work_by_replay
from rooflight.traces.signatures import Call, find_signatures, is_level
from rooflight.traces.timeline import timeline_of, window
from rooflight.traces.trace import COLLECTIVE, UNKNOWN, Trace, load_trace


def read_trace(
    path: str | PathLike[str],
    capture: str | PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Session:
    """The session in a trace that torch.profiler exported (Kineto JSON, plain or gzip), with the times of its kernels.

    Its ops are those that a recording of the program would have, as far as the trace tells: their results follow from
    running each kind of call once on meta tensors. An op that cannot be run is kept with its time and counts as
    uncosted. A trace does not tell which op read what another wrote, so that the fused and the program bound leave out
    bytes between ops. ``capture`` is the trace of the capture of the graphs that were replayed: their kernels then
    belong to the ops whose launches were captured. ``progress`` is called with the bytes read of a file, and its size.

    Raises ValueError for a file that is no trace or is damaged, for a trace without ops, and for a capture that fits
    none of the replays; OSError.
    """
    trace = load_trace(Path(path), progress)
    if not len(trace.ops) and not trace.has_device:
        raise ValueError(f"{path}: the trace has no ops and no work of a device: nothing ran while it was recorded")
    nesting = nested(trace)
    levels = _levels(trace)
    owned = owners(trace, nesting, levels)
    replays = join_replays(trace, Path(capture), progress) if capture is not None else None
    if replays is not None:
        owned = owned.without(replays.joined)
    if trace.has_device:
        ops = np.unique(owned.accounted[owned.accounted != UNKNOWN])
        ops = ops[np.argsort(trace.ops.start[ops], kind="stable")]
        seconds = _device_seconds(trace, owned)
    else:
        ops = accounted_ops(trace, nesting, levels)
        seconds = {op: (trace.ops.stop[op] - trace.ops.start[op]) * 1e-9 for op in ops.tolist()}
    clues = find_clues(trace, nesting, owned, ops.tolist())
    places = Places(trace, nesting)
    runs = [
        _Run(_call(trace, op, clues.get(op, NOTHING)), places.place(op), float(seconds[op]), int(trace.ops.start[op]))
        for op in ops.tolist()
    ]
    environment = _environment(trace, owned)
    notes = _notes(trace)
    if replays is not None:
        notes.append(replays.note)
        at_capture = owners(replays.trace, replays.nesting, _levels(replays.trace))
        environment |= _float32_setting(replays.trace, at_capture)
        runs = sorted([*runs, *_replayed_runs(replays, at_capture)], key=lambda run: run.start)
    found = find_signatures(run.call for run in runs)
    records = [
        OpRecord(
            signature=found[run.call],
            module=run.place.module,
            phase=run.place.phase,
            direction=run.place.direction,
            times_s=(run.seconds,),
        )
        for run in runs
    ]
    session = session_of(records, environment=environment, notes=notes)
    return session.with_measurement(
        Measurement(
            wall_samples_s=np.array([np.diff(window(trace))[0] * 1e-9]),
            op_samples_s=np.array([[run.seconds for run in runs]], dtype=np.float64),
            op_starts_s=np.array([[run.start - window(trace)[0] for run in runs]], dtype=np.float64) * 1e-9,
            timeline=timeline_of(trace, owned, _have_shapes(trace, clues), replays.joined if replays else None),
            clock="kernels in the trace" if trace.has_device else "ops in the trace",
        )
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of an op: the device's time for it, and when it began, in nanoseconds of the trace's clock."""

    call: Call
    place: Place
    seconds: float
    start: int


def _replayed_runs(replays: Replays, owned: Ownership) -> list[_Run]:
    """The runs of a graph's ops, once for each replay. Modules are those of the capture, phases those of the replay."""
    trace, nesting = replays.trace, replays.nesting
    worked = work_by_replay(replays, owned.accounted)
    ops = sorted({op for _, op in worked})
    clues, places = find_clues(trace, nesting, owned, ops), Places(trace, nesting)
    calls = {op: _call(trace, op, clues.get(op, NOTHING)) for op in ops}
    found = {op: places.place(op) for op in ops}
    return [
        _Run(calls[op], replace(found[op], phase=phase_of(replays.names[replay])), seconds, start)
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


def _call(trace: Trace, op: int, clues: Clues) -> Call:
    return Call(trace.names[trace.ops.name[op]], trace.arguments[trace.ops.args[op]], clues)


def _device_seconds(trace: Trace, owned: Ownership) -> Mapping[int, float]:
    """The device's time for each op, the sum of its kernels, copies and fills."""
    found: dict[int, float] = defaultdict(float)
    durations = (trace.work.stop - trace.work.start) * 1e-9
    for op, seconds in zip(owned.accounted.tolist(), durations.tolist(), strict=True):
        if op != UNKNOWN:
            found[op] += seconds
    return found


def _environment(trace: Trace, owned: Ownership) -> dict[str, str]:
    facts = {"device_kind": "cuda" if trace.has_device else "cpu", "target": trace.path.name}
    properties = trace.head.get("deviceProperties")
    if trace.has_device and (gpu := _gpu(properties, set(trace.work.device.tolist()))):
        facts["gpu"] = gpu
    return facts | _float32_setting(trace, owned)


def _float32_setting(trace: Trace, owned: Ownership) -> dict[str, str]:
    """The precision of float32 products, where a kernel tells it."""
    allowed = multiplies_by_tf32(trace, precisions_of(trace, owned))
    return {fact_name("cuda.matmul"): "tf32"} if allowed else {}


def _gpu(properties: Any, used: set[int]) -> str | None:
    """The name of the GPU, as its driver gives it; that of the device in use where a trace lists several."""
    if not isinstance(properties, list):
        return None
    listed = [each for each in properties if isinstance(each, dict) and isinstance(each.get("name"), str)]
    mine = [each for each in listed if each.get("id") in used] or listed
    names = {each["name"] for each in mine}
    return names.pop() if len(names) == 1 else None


def _notes(trace: Trace) -> list[str]:
    return [f"{trace.path.name}: {count_of(events, 'event')} left out: {why}" for why, events in trace.left_out.items()]
