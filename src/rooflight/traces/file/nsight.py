"""Reports of Nsight Systems, exported to SQLite (``nsys export --type sqlite``), as traces.

Kernels, copies, fills and calls of CUDA are in tables of CUPTI's activities, ranges of NVTX in NVTX_EVENTS, names in
StringIds (https://docs.nvidia.com/nsight-systems, "SQLite Schema Reference"). Under
``torch.autograd.profiler.emit_nvtx(record_shapes=True)`` every op is a range whose name has its shapes. No dtype is
noted: the narrowest float type in the names of an op's kernels takes its place, so that a bound stays one.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from rooflight.traces.file.nesting import nested
from rooflight.traces.file.trace import (
    UNKNOWN,
    HostArgs,
    HostCalls,
    HostOps,
    Ranges,
    Spans,
    Trace,
    TraceColumns,
    Work,
    WorkKind,
)

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX: Final = "NVTX_EVENTS"
_RANGES: Final = (59, 60)  # NvtxPushPopRange, NvtxStartEndRange
_THREAD_BITS: Final = 24
_COPY_NAMES: Final[Mapping[int, str]] = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORIES: Final[Mapping[int, str]] = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_VERSION: Final = re.compile(r"_v\d+$|_ptsz$|_ptds$")
"""What the name of a call of CUDA has at its end besides: the version of the interface."""

_OP: Final = re.compile(
    r"^(?P<name>.+?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = (?P<id>\d+))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
"""A range of emit_nvtx (torch/csrc/profiler/util.cpp, getNvtxStr)."""

_FLOATS: Final = (
    ("c10::BFloat16", re.compile(r"bf16|bfloat16|nvjet_(?:sm\d+_)?t|b16816", re.IGNORECASE)),
    (
        "c10::Half",
        re.compile(r"c10::Half|__half|fp16|(?<![bt])f16|hgemm|h884|h1688|nvjet_(?:sm\d+_)?h", re.IGNORECASE),
    ),
    ("float", re.compile(r"\bfloat\b|f32|sgemm|s1688(?!6)|scudnn", re.IGNORECASE)),
    ("double", re.compile(r"\bdouble\b|f64|dgemm", re.IGNORECASE)),
)
"""C++'s float types as the names of kernels have them, the narrowest first."""


DTYPES_OF_KERNELS: Final = (
    "Nsight Systems notes no dtypes: of each op the narrowest float type in the names of its kernels is taken for all "
    "of its tensors, so that its bound may be lower than it is."
)


def load_nsight(path: Path) -> Trace:
    """Read an SQLite export of Nsight Systems.

    Raises ValueError for a file that is none, or is damaged, and OSError.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as database:
            return _Reader(database).trace(path)
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be read as a SQLite database: {error}") from error


class _Reader:
    """Sorts rows into columns."""

    def __init__(self, database: sqlite3.Connection) -> None:
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        self._database = database
        self._columns = {name: self._columns_of(name) for name in (_KERNELS, _GRAPHS, _COPIES, _FILLS, _CALLS, _NVTX)}
        self._left_out: Counter[str] = Counter()
        self._rows = 0
        self._strings = dict(self._read("StringIds", ("id", "value")))
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[int | str, int | str], int] = {}
        self._streams: dict[tuple[int, int], int] = {}
        self._correlations: dict[tuple[int, int], int] = {}
        self._arguments: dict[HostArgs, int] = {HostArgs(): 0}
        work = [self._columns[each] for each in (_KERNELS, _GRAPHS, _COPIES, _FILLS)]
        self._by_process = all("globalPid" in each for each in work if each)

    def trace(self, path: Path) -> Trace:
        """All that was read."""
        if not any(self._columns[each] for each in (_KERNELS, _GRAPHS, _COPIES, _FILLS)):
            raise ValueError(
                f"{path} is a SQLite database without work of a GPU ({_KERNELS}): profile with nsys profile "
                "--trace cuda,nvtx, and export with nsys export --type sqlite"
            )
        work, calls = self._work(), self._calls()
        ops, ranges = self._nvtx()
        trace = Trace(
            path=path,
            head={"deviceProperties": self._gpus()},
            names=tuple(self._names),
            threads=tuple(self._threads),
            streams=tuple(self._streams),
            arguments=tuple(self._arguments),
            collectives=(),
            ops=ops,
            calls=calls,
            ranges=ranges,
            work=work,
            overhead=Spans(**TraceColumns().arrays()),
            events=self._rows,
            left_out=dict(self._left_out),
        )
        return _with_dtypes(trace)

    def _work(self) -> Work:
        found = TraceColumns(["correlation", "external_id", "kind", "device", "size"])
        common = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        for row in self._spans(_KERNELS, (*common, "demangledName", "shortName", "name")):
            name = next((self._text(each) for each in row[6:] if each is not None), "kernel")
            self._add_work(found, row, WorkKind.KERNEL, name, UNKNOWN)
        for row in self._spans(_GRAPHS, (*common, "graphId")):
            self._add_work(found, row, WorkKind.KERNEL, f"CUDA graph {row[6]}", UNKNOWN)
        for row in self._spans(_COPIES, (*common, "bytes", "copyKind", "srcKind", "dstKind")):
            kind, source, target = _COPY_NAMES.get(row[7], "copy"), _MEMORIES.get(row[8]), _MEMORIES.get(row[9])
            between = f" ({source} -> {target})" if source and target else ""
            self._add_work(found, row, WorkKind.COPY, f"Memcpy {kind}{between}", _number(row[6]))
        for row in self._spans(_FILLS, (*common, "bytes")):
            self._add_work(found, row, WorkKind.FILL, "Memset (Device)", _number(row[6]))
        return Work(**found.arrays(kind=np.int8, device=np.int32))

    def _add_work(self, found: TraceColumns, row: Sequence[Any], kind: WorkKind, name: str, size: int) -> None:
        start, stop, device, stream, correlation, process = row[:6]
        device, stream = max(_number(device), 0), max(_number(stream), 0)
        number = self._streams.setdefault((device, stream), len(self._streams))
        launched = self._correlation(_number(process), _number(correlation))
        found.add(start, stop, number, self._name(name), launched, UNKNOWN, kind, device, size)

    def _calls(self) -> HostCalls:
        found = TraceColumns(["correlation", "kernel"])
        for start, stop, thread, correlation, name in self._spans(
            _CALLS, ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            text = _VERSION.sub("", self._text(name))
            process = _number(thread) >> _THREAD_BITS << _THREAD_BITS
            launched = self._correlation(process, _number(correlation))
            found.add(start, stop, self._thread(thread), self._name(text), launched, UNKNOWN)
        return HostCalls(**found.arrays(kernel=np.int32))

    def _nvtx(self) -> tuple[HostOps, Ranges]:
        ops = TraceColumns(["external_id", "args", "sequence", "forward_thread", "record_function", "collective"])
        ranges = TraceColumns(["args"])
        kinds = "eventType" in self._columns[_NVTX]
        for start, stop, thread, text, text_id, kind in self._spans(
            _NVTX, ("start", "end", "globalTid", "text", "textId", "eventType")
        ):
            if kinds and kind not in _RANGES:
                continue
            name = text if isinstance(text, str) else self._text(text_id)
            told = _OP.match(name)
            if told is None or not (name.startswith("aten::") or told["seq"] or told["id"] or told["sizes"]):
                ranges.add(start, stop, self._thread(thread), self._name(name), 0)
                continue
            args = self._arguments.setdefault(_noted(told["sizes"]), len(self._arguments))
            sequence = int(told["seq"]) if told["seq"] else UNKNOWN
            backward = int("Backward" in told["name"])
            own = self._name(told["name"])
            number = int(told["id"] or UNKNOWN)
            ops.add(start, stop, self._thread(thread), own, number, args, sequence, backward, UNKNOWN, UNKNOWN)
        return HostOps(**ops.arrays(args=np.int32, collective=np.int32)), Ranges(**ranges.arrays(args=np.int32))

    def _spans(self, table: str, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Rows that begin and end, the first two of the columns; None for columns that the table lacks."""
        for row in self._read(table, wanted):
            self._rows += 1
            if not (isinstance(row[0], int) and isinstance(row[1], int)):
                self._left_out["no end"] += 1
            elif row[1] < row[0]:
                self._left_out["a duration below 0"] += 1
            else:
                yield row

    def _read(self, table: str, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        known = self._columns.get(table) or self._columns_of(table)
        if not known:
            return
        if missing := [name for name in wanted[:2] if name not in known]:
            raise ValueError(f"its table {table} has no column {missing[0]}: it is not of Nsight Systems")
        columns = ", ".join(f'"{name}"' if name in known else "NULL" for name in wanted)
        yield from self._database.execute(f'SELECT {columns} FROM "{table}"')

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(str(row[1]) for row in self._database.execute(f'PRAGMA table_info("{table}")'))

    def _gpus(self) -> list[dict[str, Any]]:
        rows = self._read("TARGET_INFO_GPU", ("id", "name", "cuDevice"))
        return [{"id": device if isinstance(device, int) else number, "name": name} for number, name, device in rows]

    def _text(self, number: Any) -> str:
        return str(self._strings.get(number, "")) if isinstance(number, int) else str(number or "")

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _thread(self, number: Any) -> int:
        process, thread = divmod(_number(number), 1 << _THREAD_BITS)
        return self._threads.setdefault((process, thread), len(self._threads))

    def _correlation(self, process: int, correlation: int) -> int:
        """A number of its own for each launch: processes number theirs alike."""
        if correlation == UNKNOWN:
            return UNKNOWN
        key = (process if self._by_process else 0, correlation)
        return self._correlations.setdefault(key, len(self._correlations))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else UNKNOWN


def _noted(sizes: str | None) -> HostArgs:
    """What the name of a range notes of an op's arguments; where its lists are cut, nothing."""
    if not sizes:
        return HostArgs()
    try:
        dims = json.loads(sizes)
    except ValueError:
        return HostArgs()
    return HostArgs(dims=json.dumps(dims, separators=(",", ":")).encode())


def _with_dtypes(trace: Trace) -> Trace:
    """The trace with a dtype for the tensors of each op whose shapes are known: that of its kernels."""
    if not len(trace.ops):
        return trace
    by_op: dict[int, set[int]] = defaultdict(set)
    launched = nested(trace)
    ops_of_calls = dict(zip(trace.calls.correlation.tolist(), launched.call_op.tolist(), strict=True))
    for correlation, kernel in zip(trace.work.correlation.tolist(), trace.work.name.tolist(), strict=True):
        op = ops_of_calls.get(correlation, UNKNOWN)
        while op != UNKNOWN:
            by_op[op].add(kernel)
            op = int(launched.parent[op])
    arguments: dict[HostArgs, int] = {each: number for number, each in enumerate(trace.arguments)}
    numbers = trace.ops.args.copy()
    for op, kernels in by_op.items():
        args = trace.arguments[numbers[op]]
        kind = float_type(trace.names[kernel] for kernel in kernels)
        if args.dims and kind:
            types = [kind if _is_tensor(dims) else "" for dims in json.loads(args.dims)]
            typed = replace(args, types=json.dumps(types, separators=(",", ":")).encode())
            numbers[op] = arguments.setdefault(typed, len(arguments))
    return replace(trace, arguments=tuple(arguments), ops=replace(trace.ops, args=numbers))


def _is_tensor(dims: Any) -> bool:
    return isinstance(dims, list) and bool(dims) and all(isinstance(size, int) for size in dims)


def float_type(kernels: Iterator[str]) -> str:
    """The narrowest of C++'s float types that the names of kernels have, empty where they have none."""
    names = list(kernels)
    return next((kind for kind, pattern in _FLOATS if any(map(pattern.search, names))), "")
