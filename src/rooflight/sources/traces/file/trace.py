"""Trace: the events of a profile in columns, by what they are, and which span lies in which."""

from __future__ import annotations

import re
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np

from rooflight.records.account import Place, shown_path
from rooflight.records.session import Flags, Int8, Int32, Int64

UNKNOWN: Final = -1
"""A number that the trace does not give."""

MODULE: Final = "nn.Module: "
"""What names of Python frames of a module's call begin with."""

COLLECTIVE: Final = "record_param_comms"
"""The host event that describes a collective: its tensors, dtype and group."""

_FRAME: Final = re.compile(r"^(?!torch/|<)(?P<file>[^()]*?(?P<name>\w+)\.py)\((?P<line>\d+)\): (?P<function>.+)")
"""A Python frame of a file that is not torch's."""

LOADER_FRAME: Final = "torch/utils/data/dataloader.py("
"""What names of Python frames of the data loader have."""

_COMPILED: Final = re.compile(r"CompiledFxGraph|Torch-Compiled Region|^triton_(poi|red|per|for|spl|tem)_")


class WorkKind(IntEnum):
    """What a device did."""

    KERNEL = 0
    COPY = 1
    FILL = 2


@dataclass(frozen=True, slots=True)
class HostArgs:
    """The profiler's description of a host op's arguments, as JSON text, empty where it has none: shapes, dtypes,
    strides and the values of settings, in the order of the op's schema. In the place of the type of a list of tensors
    can be the list of their dtypes.
    """

    dims: bytes = b""
    types: bytes = b""
    strides: bytes = b""
    values: bytes = b""


@dataclass(frozen=True, slots=True)
class CollectiveArgs:
    """The profiler's description of a collective. ``elements`` are those of the input and the output of this rank."""

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

    @property
    def length(self) -> Int64:
        """Nanoseconds that each took."""
        return self.stop - self.start

    def where(self, chosen: Flags | Int32 | Int64) -> Self:
        """The chosen ones, by flags or places."""
        return replace(self, **{column.name: getattr(self, column.name)[chosen] for column in fields(self)})

    def between(self, first: int, last: int) -> Self:
        """Those that begin between two moments, both included."""
        return self.where((self.start >= first) & (self.start <= last))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOps(Spans):
    """Ops and other ranges that torch's profiler recorded on the host. ``args`` is a number in ``Trace.arguments``,
    ``collective`` one in ``Trace.collectives`` or ``UNKNOWN``; ``sequence`` is autograd's number, which an op and its
    backward have in common, and ``forward_thread`` above 0 makes it that of the backward;
    ``record_function`` is that of the op's node in an execution trace.
    """

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
    ``kernel`` is a number in ``Trace.names``: that of the kernel launched, which ROCm's traces have, else ``UNKNOWN``.
    """

    correlation: Int64
    kernel: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Spans):
    """What devices did: kernels, copies and fills. ``thread`` is a number in ``Trace.streams``, ``size`` in bytes."""

    correlation: Int64
    kind: Int8
    device: Int32
    size: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One trace file. ``ranges`` are annotations of the user and the profiler, calls of modules, and Python's waits for
    a batch. ``overhead`` is the profiler's own time, and that of loading kernels. ``left_out`` counts events by the
    reason for which they are not here; ``odd`` events are here without some of their fields, which were not of the
    types that the profiler writes. ``guesses_dtypes``: those of tensors follow from the names of kernels.
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
    lines: Spans
    events: int
    left_out: Mapping[str, int]
    odd: int = 0
    guesses_dtypes: bool = False

    @property
    def has_device(self) -> bool:
        """Whether any device did anything."""
        return len(self.work) > 0

    @property
    def launches(self) -> int:
        """How many of the host's calls launched work on a device."""
        return int(self.named(self.calls, lambda name: "launch" in name.lower()).sum())

    @property
    def is_compiled(self) -> bool:
        """Whether code of torch.compile ran: names of annotations around it, or of kernels that Inductor wrote."""
        return any(map(_COMPILED.search, self.names))

    @property
    def window(self) -> tuple[int, int]:
        """When the first event began and the last one ended, in nanoseconds."""
        some = [spans for spans in (self.ops, self.calls, self.ranges, self.work) if len(spans)]
        return min(int(spans.start.min()) for spans in some), max(int(spans.stop.max()) for spans in some)

    @property
    def distributed(self) -> Mapping[str, Any]:
        """What the trace says of its rank, the backend and the groups; empty where it says nothing."""
        info = self.head.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    def op_name(self, op: int) -> str:
        """The name of an op, by its place among the ops."""
        return self.names[int(self.ops.name[op])]

    def named(self, spans: Spans, fits: Callable[[str], object]) -> Flags:
        """Which spans have a name that fits."""
        return np.array([bool(fits(name)) for name in self.names], dtype=np.bool_)[spans.name]

    def with_arguments(self, changed: Mapping[int, HostArgs]) -> Trace:
        """The trace with other arguments of some ops."""
        arguments, numbers = {each: number for number, each in enumerate(self.arguments)}, self.ops.args.copy()
        for op, args in changed.items():
            numbers[op] = arguments.setdefault(args, len(arguments))
        return replace(self, arguments=tuple(arguments), ops=replace(self.ops, args=numbers))


def is_loader(name: str) -> bool:
    """Whether a range is a wait for the next batch: torch's annotation of it, or the Python frame."""
    return name.startswith("enumerate(DataLoader)") or (
        LOADER_FRAME in name and name.endswith((": __next__", ": _next_data"))
    )


def own_line(name: str) -> Place | None:
    """Of a Python frame's name its place; None of torch's own frames, of Python's library and of what is no frame of a
    file.
    """
    found = _FRAME.match(name)
    if found is None or "/lib/python" in name or re.split(r"[/.]", name, maxsplit=1)[0] in sys.stdlib_module_names:
        return None
    return Place(file=shown_path(found["file"]), line=int(found["line"]), function=found["function"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """``parent[i]`` is the innermost op around op i on its thread, ``order`` has parents before what is inside them.
    ``call_op[i]`` is the innermost op open when call i began. ``UNKNOWN`` where there is none.
    """

    parent: Int32
    order: Int32
    call_op: Int32

    def around(self, op: int) -> Iterator[int]:
        """An op and those around it, the innermost first."""
        while op != UNKNOWN:
            yield op
            op = int(self.parent[op])


def nested(trace: Trace) -> Nesting:
    """How the host's ops and calls lie in each other."""
    parent, order = parents_of(trace.ops)
    return Nesting(parent=parent, order=order, call_op=enclosing(trace.ops, parent, order, trace.calls))


def parents_of(spans: Spans) -> tuple[Int32, Int32]:
    """The innermost span around each on its thread, and an order with parents before what is inside them. Of spans that
    begin at the same time the longer is outside; of equal ones the earlier in the file.
    """
    order = np.lexsort((np.arange(len(spans)), -spans.stop, spans.start, spans.thread)).astype(np.int32)
    parent = np.full(len(spans), UNKNOWN, dtype=np.int32)
    stops, threads, starts = spans.stop.tolist(), spans.thread.tolist(), spans.start.tolist()
    opened: list[int] = []
    thread = None
    for index in order.tolist():
        if threads[index] != thread:
            thread = threads[index]
            opened.clear()
        start = starts[index]
        while opened and stops[opened[-1]] <= start:
            opened.pop()
        if opened:
            parent[index] = opened[-1]
        opened.append(index)
    return parent, order


def enclosing(outer: Spans, parent: Int32, order: Int32, inner: Spans) -> Int32:
    """The innermost span of ``outer`` that was open on the thread of each of ``inner`` when it began."""
    found = np.full(len(inner), UNKNOWN, dtype=np.int32)
    for thread in np.unique(inner.thread).tolist():
        mine = np.flatnonzero(inner.thread == thread)
        around = order[outer.thread[order] == thread]  # sorted by start
        if not len(around):
            continue
        at = np.searchsorted(outer.start[around], inner.start[mine], side="right") - 1
        begun = np.where(at >= 0, around[np.maximum(at, 0)], UNKNOWN)
        waiting = mine
        while len(waiting):  # the last begun may be over: then what is around it
            over = (begun != UNKNOWN) & (outer.stop[begun] <= inner.start[waiting])
            found[waiting[~over]] = begun[~over]
            waiting, begun = waiting[over], parent[begun[over]]
    return found


class Numbers(dict[Any, int]):
    """Numbers of things, in the order of their first appearance."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = number = len(self)
        return number


_Kind = TypeVar("_Kind", bound=Spans)
_TYPES: Final = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64}


class Columns(Generic[_Kind]):
    """The growing columns of one kind of spans."""

    def __init__(self, kind: type[_Kind]) -> None:
        self._kind, self._rows = kind, array("q")

    def add(self, *values: int) -> None:
        """Add a span by the values of its columns, in the order of the kind's fields."""
        self._rows.extend(values)

    def spans(self) -> _Kind:
        """All that were added."""
        columns = fields(self._kind)
        table = np.asarray(self._rows).reshape(-1, len(columns))
        return self._kind(**{each.name: table[:, at].astype(_TYPES[str(each.type)]) for at, each in enumerate(columns)})


class TraceBuilder:
    """Collects events in columns. What many of them have in common (names, threads, arguments) gets numbers."""

    def __init__(self) -> None:
        self.names, self.threads, self.streams, self.collectives = Numbers(), Numbers(), Numbers(), Numbers()
        self.arguments = Numbers({HostArgs(): 0})
        self.ops, self.calls, self.ranges = Columns(HostOps), Columns(HostCalls), Columns(Ranges)
        self.work, self.overhead, self.lines = Columns(Work), Columns(Spans), Columns(Spans)
        self.left_out: Counter[str] = Counter()
        self.events = 0

    def trace(self, path: Path, head: Mapping[str, Any], odd: int = 0) -> Trace:
        """All that was collected."""
        return Trace(
            path=path,
            head=head,
            names=tuple(self.names),
            threads=tuple(self.threads),
            streams=tuple(self.streams),
            arguments=tuple(self.arguments),
            collectives=tuple(self.collectives),
            ops=self.ops.spans(),
            calls=self.calls.spans(),
            ranges=self.ranges.spans(),
            work=self.work.spans(),
            overhead=self.overhead.spans(),
            lines=self.lines.spans(),
            events=self.events,
            left_out=dict(self.left_out),
            odd=odd,
        )
