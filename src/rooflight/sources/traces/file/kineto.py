"""Traces that torch.profiler exported, read event by event into columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from rooflight.records.visible import shortened
from rooflight.sources.traces.file.chunks import NO_ARGS, RawArgs, RawEvent, TraceChunks
from rooflight.sources.traces.file.kernel_dtypes import with_dtypes
from rooflight.sources.traces.file.trace import (
    COLLECTIVE,
    MODULE,
    UNKNOWN,
    CollectiveArgs,
    HostArgs,
    Trace,
    TraceBuilder,
    WorkKind,
    is_loader,
    own_line,
)

_HOST_OPS: Final = ("cpu_op", "Operator")
_CALLS: Final = (
    *("cuda_runtime", "cuda_driver", "Runtime", "Driver", "privateuse1_runtime", "privateuse1_driver"),
    *("xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime", "hpu_op"),
)
_ANNOTATIONS: Final = ("user_annotation", "python_function")
_OLD_ANNOTATIONS: Final = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.step#", "Optimizer.zero_grad#")
"""What torch's own annotations begin with, which torch before 1.13 lists among the ops."""
_WORK: Final[Mapping[str, WorkKind]] = {
    "kernel": WorkKind.KERNEL,
    "Kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.COPY,
    "Memcpy": WorkKind.COPY,
    "gpu_memset": WorkKind.FILL,
    "Memset": WorkKind.FILL,
    "mtia_ccp_events": WorkKind.KERNEL,
    "mtia_workloadd": WorkKind.KERNEL,
}
_OTHER_EVENTS: Final = frozenset(
    {
        *("gpu_user_annotation", "Trace", "cuda_sync", "cuda_event", "xpu_sync", "xpu_scope_profiler", "mtia_insight"),
        *("collective_comm", "external_correlation", "gpu_pm_counter", "mtia_counters", "hardware_counters"),
    }
)
_NODE: Final = re.compile(r"(?:^|[: ])(?:[A-Z]\w*Backward\d*|AccumulateGrad|CopySlices)$")
"""Autograd's nodes that run a backward, which torch before 1.9 does not number."""
_ODD: Final = {
    "cuda_profiler_range": "a range of CUPTI's counters, for which kernels run again: it has no time of a step"
}
_TASKS: Final = ((r"MEMCPY|SDMA", "gpu_memcpy"), (r"AI_|MIX_|AIC|AIV|HCCL|COMMUNICATION", "kernel"))
_NO_RANGES: Final = frozenset("MCiIstfPNODRcvV(),")  # Chrome's kinds of events that have no begin and end
_EXTERNAL: Final = 1 << 62  # above all correlations, which have 32 bits
_LAST_US: Final = 4e15  # such a time and such a duration are, in nanoseconds, together below 2^63


def load_trace(path: Path, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read a Kineto trace, plain or gzip. ``progress`` is called with the bytes read of the file, and its size.

    Raises ValueError for what is no trace, or a damaged one, and OSError.
    """
    chunks, builder = TraceChunks(path, progress), TraceBuilder()
    for events in chunks:
        builder.events += len(events)
        add_events(builder, events)
    if chunks.damaged:
        builder.events += chunks.damaged
        builder.left_out["damaged, or not an event at all"] = chunks.damaged
    return with_dtypes(builder.trace(path, chunks.head, chunks.odd))


def add_events(builder: TraceBuilder, events: Iterable[RawEvent]) -> None:
    """Add events to the columns of their kinds, and count those that are left out."""
    names, threads, left_out = builder.names, builder.threads, builder.left_out
    for event in events:
        if event.ph != "X":
            if event.ph not in _NO_RANGES:
                left_out["not a whole range (ph X), and not of a kind without a duration"] += 1
            continue
        category, name, args = event.cat or _category(event.args), event.name, event.args
        is_line = category == "python_function" and not (name.startswith(MODULE) or is_loader(name))
        if is_line and not own_line(name):
            continue
        name = shortened(name)
        began, duration = event.ts, event.dur
        if not (0 <= duration <= _LAST_US and -_LAST_US <= began <= _LAST_US):
            left_out[_why_untimed(began, duration)] += 1
            continue
        whole = int(began)  # times since 1970 have too many digits to be multiplied as floats
        start = whole * 1000 + round((began - whole) * 1e3)
        stop = start + round(duration * 1e3)
        if is_line:
            builder.lines.add(start, stop, threads[event.pid, _thread(event.tid)], names[name])
        elif category in _HOST_OPS and not name.startswith(_OLD_ANNOTATIONS):
            builder.ops.add(start, stop, threads[event.pid, _thread(event.tid)], names[name], *_op(builder, event))
        elif (kind := _WORK.get(category or "")) is not None:
            _add_work(builder, event, (start, stop, names[name], kind))
        elif category in _CALLS:
            kernel = names[args.kernel] if isinstance(args.kernel, str) else UNKNOWN
            thread = threads[event.pid, _thread(event.tid)]
            builder.calls.add(start, stop, thread, names[name], _correlation(args), kernel)
        elif category in _ANNOTATIONS or category in _HOST_OPS:
            thread = threads[event.pid, _thread(event.tid)]
            builder.ranges.add(start, stop, thread, names[name], _arguments(builder, args))
        elif category == "overhead":
            builder.overhead.add(start, stop, UNKNOWN, names[name])
        elif category not in _OTHER_EVENTS:
            left_out[_ODD.get(category) or f"category {category[:40]}" if category else "no category"] += 1


def _category(args: RawArgs) -> str | None:
    """Of events without a category: tasks of Ascend and their calls, kernels and calls of rocprof."""
    if isinstance(args.task, str):
        return next((category for pattern, category in _TASKS if re.search(pattern, args.task)), "cuda_sync")
    if args.begin_ns is not None and args.rocm_device is not None:
        return "kernel"
    return "cuda_runtime" if args.begin_ns is not None or args.connection is not None else None


def _op(builder: TraceBuilder, event: RawEvent) -> tuple[int, ...]:
    args, collective = event.args, UNKNOWN
    forward_thread = _known(args.forward_thread)
    if args.sequence_number is None and _NODE.search(event.name):
        forward_thread = 1
    if event.name == COLLECTIVE and args.collective:
        elements = _known(args.in_elements), _known(args.out_elements)
        group, size = args.group, _known(args.group_size)
        described = CollectiveArgs(args.collective, args.dtype, elements, group, size, args.group_ranks)
        collective = builder.collectives[described]
    return (
        _arguments(builder, args),
        _known(args.sequence_number),
        forward_thread,
        _known(args.record_function),
        collective,
    )


def _add_work(builder: TraceBuilder, event: RawEvent, known: tuple[int, int, int, WorkKind]) -> None:
    start, stop, name, kind = known
    args = event.args
    device, queue = (
        next((each for each in given if each is not None), event.tid)
        for given in ((args.device, args.rocm_device, event.pid), (args.stream, args.rocm_queue, args.task_stream))
    )
    device = _small(device)
    stream = builder.streams[device, _small(queue)]
    builder.work.add(start, stop, stream, name, _correlation(args), kind, device, _known(args.size))


def _arguments(builder: TraceBuilder, args: RawArgs) -> int:
    if args is NO_ARGS:
        return 0
    dims, types = bytes(args.dims or args.old_dims), bytes(args.types).strip(b"[]")
    types = b"[%b]" % types if types else b""
    if dims[:1] == b'"':  # of Ascend: "4,8;8,2", and "float;float"
        dims = b"[%b]" % b",".join(b"[%b]" % each for each in dims.strip(b'"').split(b";"))
        types = b'["%b"]' % types.strip(b'["]').replace(b";", b'","')
    return builder.arguments[HostArgs(dims, types, bytes(args.strides), bytes(args.values))]


def _correlation(args: RawArgs) -> int:
    """The number that a launch and its work have in common: where an older profiler of ROCm gives them an External id
    alone, that, which is none of an op. It is no correlation, so it is kept apart from those.
    """
    if args.correlation is not None:
        return args.correlation
    if args.connection is not None:
        return args.connection
    external = args.external_id if args.external_id is not None else args.old_external_id
    return UNKNOWN if external is None or external < 0 else external | _EXTERNAL


def _known(number: int | None) -> int:
    return UNKNOWN if number is None else number


def _small(number: int | str) -> int:
    return number if isinstance(number, int) and abs(number) < 1 << 31 else 0


def _why_untimed(began: float, duration: float) -> str:
    if not -_LAST_US <= began <= _LAST_US:
        return "no time at which it began"
    return "a duration below 0" if duration < 0 else "no duration"


def _thread(thread: int | str) -> int | str:
    """A thread's number; traces of 2021 give it as text in some events and as a number in others."""
    return int(thread) if isinstance(thread, str) and thread.isdecimal() else thread
