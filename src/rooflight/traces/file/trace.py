"""Trace: the events of a profile in columns, by what they are."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from rooflight.records.session import Flags, Int8, Int32, Int64
from rooflight.traces.file.chunks import NO_ARGS, RawArgs, RawEvent, TraceChunks

UNKNOWN: Final = -1
"""A number that the trace does not give."""

MODULE: Final = "nn.Module: "
"""What names of Python frames of a module's call begin with."""

COLLECTIVE: Final = "record_param_comms"
"""The host event that describes a collective: its tensors, dtype and group."""


LOADER_FRAME: Final = "torch/utils/data/dataloader.py("
"""What names of Python frames of the data loader have."""


class WorkKind(IntEnum):
    """What a device did."""

    KERNEL = 0
    COPY = 1
    FILL = 2


_HOST_OPS: Final = ("cpu_op", "Operator")
_CALLS: Final = (
    *("cuda_runtime", "cuda_driver", "Runtime", "Driver", "privateuse1_runtime", "privateuse1_driver"),
    *("xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime"),
)
_ANNOTATIONS: Final = ("user_annotation", "python_function")
_OLD_ANNOTATIONS: Final = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.step#", "Optimizer.zero_grad#")
"""What torch's own annotations begin with, which torch before 1.13 notes among the ops."""
_WORK: Final[Mapping[str, WorkKind]] = {
    "kernel": WorkKind.KERNEL,
    "Kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.COPY,
    "Memcpy": WorkKind.COPY,
    "gpu_memset": WorkKind.FILL,
    "Memset": WorkKind.FILL,
}
_OVERHEAD: Final = "overhead"
_OTHER_EVENTS: Final = frozenset(
    {
        *("gpu_user_annotation", "Trace", "cuda_sync", "cuda_event", "cuda_profiler_range"),
        *("collective_comm", "external_correlation", "gpu_pm_counter"),
    }
)
_NO_RANGES: Final = frozenset("MCiIstfPNODRcvV(),")  # Chrome's kinds of events that have no begin and end
_LONGEST_NAME: Final = 8192  # those of templates have some thousand characters
_LAST_US: Final = 4e15  # such a time and such a duration are, in nanoseconds, together below 2^63


@dataclass(frozen=True, slots=True)
class HostArgs:
    """What the profiler noted of a host op's arguments, as JSON text, empty where it noted nothing: shapes, dtypes,
    strides and the values of settings, in the order of the op's schema. In the place of the type of a list of tensors
    can be the list of their dtypes.
    """

    dims: bytes = b""
    types: bytes = b""
    strides: bytes = b""
    values: bytes = b""


@dataclass(frozen=True, slots=True)
class CollectiveArgs:
    """What the profiler noted of a collective. ``elements`` are those of the input and the output of this rank."""

    name: str
    dtype: str
    elements: tuple[int, int]
    group: str
    group_size: int
    ranks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Events with a begin and an end, in nanoseconds of the trace's clock. ``name`` is a number in ``Trace.names``,
    ``thread`` one in ``Trace.threads``.
    """

    start: Int64
    stop: Int64
    thread: Int32
    name: Int32

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: Flags) -> Spans:
        """The chosen ones."""
        return Spans(
            start=self.start[chosen], stop=self.stop[chosen], thread=self.thread[chosen], name=self.name[chosen]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOps(Spans):
    """Ops and other ranges that torch's profiler noted on the host. ``args`` is a number in ``Trace.arguments``,
    ``collective`` one in ``Trace.collectives`` or ``UNKNOWN``; ``sequence`` is autograd's number, which an op and its
    backward have in common, and ``forward_thread`` above 0 makes it that of the backward;
    ``record_function`` is that of the op's node in an execution trace.
    """

    external_id: Int64
    args: Int32
    sequence: Int64
    forward_thread: Int64
    record_function: Int64
    collective: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Spans):
    """Annotations and calls of modules. ``args`` is a number in ``Trace.arguments``: those of NCCL's annotations are
    the tensors of a collective.
    """

    args: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls(Spans):
    """Calls of the device's runtime or driver; work on the device has the correlation of the call that launched it.
    ``kernel`` is a number in ``Trace.names``: that of the kernel launched, which ROCm notes, else ``UNKNOWN``.
    """

    correlation: Int64
    kernel: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Spans):
    """What devices did: kernels, copies and fills. ``thread`` is a number in ``Trace.streams``, ``size`` in bytes."""

    correlation: Int64
    external_id: Int64
    kind: Int8
    device: Int32
    size: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One trace file. ``ranges`` are annotations of the user and the profiler, calls of modules, and Python's waits for
    a batch. ``overhead`` is what the profiler noted of itself and of loading kernels. ``left_out`` counts events by the
    reason for which they are not here; ``odd`` events are here without some of their fields, which were not of the
    types that the profiler writes.
    """

    path: Path
    head: Mapping[str, Any]
    names: tuple[str, ...]
    threads: tuple[tuple[int | str, int | str], ...]
    streams: tuple[tuple[int, int], ...]
    arguments: tuple[HostArgs, ...]
    collectives: tuple[CollectiveArgs, ...]
    ops: HostOps
    calls: HostCalls
    ranges: Ranges
    work: Work
    overhead: Spans
    events: int
    left_out: Mapping[str, int]
    odd: int = 0

    @property
    def has_device(self) -> bool:
        """Whether any device did anything."""
        return len(self.work) > 0


@dataclass(slots=True)
class _Table:
    """Numbers of things, in the order of their first appearance."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def number(self, thing: Any) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))


class TraceColumns:
    """Growing columns of one kind of event, ``more`` besides begin, end, thread and name."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        self.start, self.stop = array("q"), array("q")
        self.thread, self.name = array("i"), array("i")
        self.more = {column: array("q") for column in more}

    def add(self, start: int, stop: int, thread: int, name: int, *more: int) -> None:
        """Add an event; ``more`` are its values in the further columns, in their order."""
        self.start.append(start)
        self.stop.append(stop)
        self.thread.append(thread)
        self.name.append(name)
        for column, value in zip(self.more.values(), more, strict=True):
            column.append(value)

    def arrays(self, **types: Any) -> dict[str, Any]:
        """The columns as arrays, int64 where ``types`` does not say another."""
        types = {"thread": np.int32, "name": np.int32} | types
        named = {"start": self.start, "stop": self.stop, "thread": self.thread, "name": self.name, **self.more}
        return {
            key: np.frombuffer(column, dtype=column.typecode).astype(types.get(key, np.int64))
            if len(column)
            else np.empty(0, dtype=types.get(key, np.int64))
            for key, column in named.items()
        }


class TraceReader:
    """Sorts events into columns."""

    def __init__(self) -> None:
        self._names, self._threads, self._streams = _Table(), _Table(), _Table()
        self._arguments, self._collectives = _Table(), _Table()
        self._arguments.number(HostArgs())
        self._ops = TraceColumns(["external_id", "args", "sequence", "forward_thread", "record_function", "collective"])
        self._calls = TraceColumns(["correlation", "kernel"])
        self._ranges = TraceColumns(["args"])
        self._work = TraceColumns(["correlation", "external_id", "kind", "device", "size"])
        self._overhead = TraceColumns()
        self._left_out: Counter[str] = Counter()
        self._events = 0

    def add(self, events: Sequence[RawEvent]) -> None:
        """Sort a list of events."""
        self._events += len(events)
        for event in events:
            if event.ph != "X":
                if event.ph not in _NO_RANGES:
                    self._left_out["not a whole range (ph X), and not of a kind without a duration"] += 1
                continue
            category, name, args = event.cat, event.name, event.args
            if category == "python_function" and not (name.startswith(MODULE) or is_loader(name)):
                continue
            if len(name) > _LONGEST_NAME:
                name = event.name = f"{name[:_LONGEST_NAME]}… ({len(name):,} characters)"
            began, duration = event.ts, event.dur
            if not (0 <= duration <= _LAST_US and -_LAST_US <= began <= _LAST_US):
                self._left_out[_why_untimed(began, duration)] += 1
                continue
            whole = int(began)  # times since 1970 have too many digits to be multiplied as floats
            start = whole * 1000 + round((began - whole) * 1e3)
            stop = start + round(duration * 1e3)
            if category in _HOST_OPS and not name.startswith(_OLD_ANNOTATIONS):
                self._add_op(event, start, stop)
            elif (kind := _WORK.get(category or "")) is not None:
                self._add_work(event, kind, start, stop)
            elif category in _CALLS:
                thread = self._threads.number((event.pid, _thread(event.tid)))
                kernel = self._names.number(args.kernel) if isinstance(args.kernel, str) else UNKNOWN
                self._calls.add(start, stop, thread, self._names.number(name), _known(args.correlation), kernel)
            elif category in _ANNOTATIONS or category in _HOST_OPS:
                thread = self._threads.number((event.pid, _thread(event.tid)))
                self._ranges.add(start, stop, thread, self._names.number(name), self._noted(args))
            elif category == _OVERHEAD:
                self._overhead.add(start, stop, UNKNOWN, self._names.number(name))
            elif category not in _OTHER_EVENTS:
                self._left_out[f"category {category[:40]}" if category else "no category"] += 1

    def _add_op(self, event: RawEvent, start: int, stop: int) -> None:
        args = event.args
        collective = UNKNOWN
        if event.name == COLLECTIVE and args.collective:
            collective = self._collectives.number(_collective(args))
        self._ops.add(
            start,
            stop,
            self._threads.number((event.pid, _thread(event.tid))),
            self._names.number(event.name),
            _known(args.external_id),
            self._noted(args),
            _known(args.sequence_number),
            _known(args.forward_thread),
            _known(args.record_function),
            collective,
        )

    def _noted(self, args: RawArgs) -> int:
        if args is NO_ARGS:
            return 0
        return self._arguments.number(
            HostArgs(bytes(args.dims), bytes(args.types), bytes(args.strides), bytes(args.values))
        )

    def _add_work(self, event: RawEvent, kind: WorkKind, start: int, stop: int) -> None:
        args = event.args
        device = _small(event.pid if args.device is None else args.device)
        stream = _small(event.tid if args.stream is None else args.stream)
        external = args.external_id if args.external_id is not None else args.old_external_id
        self._work.add(
            start,
            stop,
            self._streams.number((device, stream)),
            self._names.number(event.name),
            _known(args.correlation),
            _known(external),
            kind,
            device,
            _known(args.size),
        )

    def trace(self, path: Path, head: Mapping[str, Any], damaged: int = 0, odd: int = 0) -> Trace:
        """What was read. ``damaged`` events could not be, of ``odd`` ones some fields."""
        if damaged:
            self._left_out["damaged, or not an event at all"] = damaged
        return Trace(
            path=path,
            head=head,
            names=tuple(self._names.numbers),
            threads=tuple(self._threads.numbers),
            streams=tuple(self._streams.numbers),
            arguments=tuple(self._arguments.numbers),
            collectives=tuple(self._collectives.numbers),
            ops=HostOps(**self._ops.arrays(args=np.int32, collective=np.int32)),
            calls=HostCalls(**self._calls.arrays(kernel=np.int32)),
            ranges=Ranges(**self._ranges.arrays(args=np.int32)),
            work=Work(**self._work.arrays(kind=np.int8, device=np.int32)),
            overhead=Spans(**self._overhead.arrays()),
            events=self._events + damaged,
            left_out=dict(self._left_out),
            odd=odd,
        )


def load_trace(path: Path, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read a Kineto trace, plain or gzip. ``progress`` is called with the bytes read of the file, and its size.

    Raises ValueError for what is no trace, or a damaged one, and OSError.
    """
    chunks, reader = TraceChunks(path, progress), TraceReader()
    for events in chunks:
        reader.add(events)
    return reader.trace(path, chunks.head, chunks.damaged, chunks.odd)


def window(trace: Trace) -> tuple[int, int]:
    """When the first event of the trace began and the last one ended, in nanoseconds of its clock."""
    both = [spans for spans in (trace.ops, trace.calls, trace.ranges, trace.work) if len(spans)]
    return min(int(spans.start.min()) for spans in both), max(int(spans.stop.max()) for spans in both)


def is_loader(name: str) -> bool:
    """Whether a range is a wait for the next batch: torch's annotation of it, or the Python frame."""
    return name.startswith("enumerate(DataLoader)") or (
        LOADER_FRAME in name and name.endswith((": __next__", ": _next_data"))
    )


def _known(number: int | None) -> int:
    return UNKNOWN if number is None else number


def _small(number: int | str) -> int:
    """A number of a device or a stream, 0 for what is none."""
    return number if isinstance(number, int) and abs(number) < 1 << 31 else 0


def _why_untimed(began: float, duration: float) -> str:
    if not -_LAST_US <= began <= _LAST_US:
        return "no time at which it began"
    return "a duration below 0" if duration < 0 else "no duration"


def _thread(thread: int | str) -> int | str:
    """A thread's number; traces of 2021 give it as text in some events and as a number in others."""
    return int(thread) if isinstance(thread, str) and thread.isdecimal() else thread


def _collective(args: RawArgs) -> CollectiveArgs:
    return CollectiveArgs(
        name=args.collective,
        dtype=args.dtype,
        elements=(_known(args.in_elements), _known(args.out_elements)),
        group=args.group,
        group_size=_known(args.group_size),
        ranks=args.group_ranks,
    )
