"""Reports of Nsight Systems, exported to SQLite (``nsys export --type sqlite``), as traces.

Kernels, copies, fills and calls of CUDA are in tables of CUPTI's activities, ranges of NVTX in NVTX_EVENTS, names in
StringIds (https://docs.nvidia.com/nsight-systems, "SQLite Schema Reference"). Under
``torch.autograd.profiler.emit_nvtx(record_shapes=True)`` every op is a range whose name has its shapes. No dtype is
there: the narrowest float type in the names of an op's kernels takes its place, so that a bound stays one.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rooflight.records.visible import shortened
from rooflight.sources.traces.file.kernel_dtypes import with_dtypes
from rooflight.sources.traces.file.trace import UNKNOWN, HostArgs, Numbers, Trace, TraceBuilder, WorkKind

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_WORK: Final = (_KERNELS, _GRAPHS, _COPIES, _FILLS)
_COMMON: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX: Final = "NVTX_EVENTS"
_LAST_NS: Final = 4 * 10**18  # of a time; the difference of two is below 2^63
_RANGES: Final = (59, 60)  # NvtxPushPopRange, NvtxStartEndRange
_THREAD_BITS: Final = 24
_COPY_NAMES: Final[Mapping[int, str]] = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORIES: Final[Mapping[int, str]] = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_VERSION: Final = re.compile(r"_v\d+$|_ptsz$|_ptds$")
"""What the name of a call of CUDA has at its end besides: the version of the interface."""

_OP: Final = re.compile(
    r"^(?P<name>.+?)(?:, seq = (?P<seq>-?\d{1,18}))?(?:, op_id = (?P<id>\d+))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
"""A range of emit_nvtx (torch/csrc/profiler/util.cpp, getNvtxStr)."""


def load_nsight(path: Path) -> Trace:
    """Read an SQLite export of Nsight Systems.

    Raises ValueError for a file that is none, or is damaged, and OSError.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as database:
            return _Reader(database).trace(path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a SQLite export of Nsight Systems: {error}") from error


class _Reader:
    def __init__(self, database: sqlite3.Connection) -> None:
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        self._database, self._builder = database, TraceBuilder()
        self._columns = {name: self._columns_of(name) for name in (*_WORK, _CALLS, _NVTX)}
        self._strings = dict(self._read("StringIds", ("id", "value")))
        self._correlations = Numbers()  # one for each launch: processes number theirs alike
        self._by_process = all("globalPid" in self._columns[each] for each in _WORK if self._columns[each])

    def trace(self, path: Path) -> Trace:
        if not any(self._columns[each] for each in _WORK):
            raise ValueError(
                f"{path} is a SQLite database without work of a GPU ({_KERNELS}): profile with nsys profile "
                "--trace cuda,nvtx, and export with nsys export --type sqlite"
            )
        self._add_work()
        self._add_calls()
        self._add_nvtx()
        rows = self._read("TARGET_INFO_GPU", ("id", "name", "cuDevice"))
        gpus = [{"id": device if isinstance(device, int) else number, "name": name} for number, name, device in rows]
        return with_dtypes(self._builder.trace(path, {"deviceProperties": gpus}))

    def _add_work(self) -> None:
        for row in self._spans(_KERNELS, (*_COMMON, "demangledName", "shortName", "name")):
            name = next((self._text(each) for each in row[6:] if each is not None), "kernel")
            self._add_piece(row, WorkKind.KERNEL, name)
        for row in self._spans(_GRAPHS, (*_COMMON, "graphId")):
            self._add_piece(row, WorkKind.KERNEL, f"CUDA graph {row[6]}")
        for row in self._spans(_COPIES, (*_COMMON, "bytes", "copyKind", "srcKind", "dstKind")):
            kind, source, target = _COPY_NAMES.get(row[7], "copy"), _MEMORIES.get(row[8]), _MEMORIES.get(row[9])
            between = f" ({source} -> {target})" if source and target else ""
            self._add_piece(row, WorkKind.COPY, f"Memcpy {kind}{between}", _number(row[6]))
        for row in self._spans(_FILLS, (*_COMMON, "bytes")):
            self._add_piece(row, WorkKind.FILL, "Memset (Device)", _number(row[6]))

    def _add_piece(self, row: Sequence[Any], kind: WorkKind, name: str, size: int = UNKNOWN) -> None:
        start, stop, device, stream, correlation, process = row[:6]
        device = device if _number(device) in range(1 << 31) else 0
        stream = self._builder.streams[device, max(_number(stream), 0)]
        launch = self._launch(_number(process), _number(correlation))
        self._builder.work.add(start, stop, stream, self._builder.names[shortened(name)], launch, kind, device, size)

    def _add_calls(self) -> None:
        for start, stop, thread, correlation, name in self._spans(
            _CALLS, ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            number = self._builder.names[shortened(_VERSION.sub("", self._text(name)))]
            launch = self._launch(_number(thread) >> _THREAD_BITS << _THREAD_BITS, _number(correlation))
            self._builder.calls.add(start, stop, self._thread(thread), number, launch, UNKNOWN)

    def _add_nvtx(self) -> None:
        names, arguments = self._builder.names, self._builder.arguments
        has_kinds = "eventType" in self._columns[_NVTX]
        for start, stop, thread, text, text_id, kind in self._spans(
            _NVTX, ("start", "end", "globalTid", "text", "textId", "eventType")
        ):
            if has_kinds and kind not in _RANGES:
                continue
            name, on = text if isinstance(text, str) else self._text(text_id), self._thread(thread)
            op = _OP.match(name)
            if op is None or not (name.startswith("aten::") or op["seq"] or op["id"] or op["sizes"]):
                self._builder.ranges.add(start, stop, on, names[shortened(name)], 0)
                continue
            args, sequence = arguments[_args(op["sizes"])], int(op["seq"] or UNKNOWN)
            backward = int("Backward" in op["name"])
            own = names[shortened(op["name"])]
            self._builder.ops.add(start, stop, on, own, args, sequence, backward, UNKNOWN, UNKNOWN)

    def _spans(self, table: str, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for row in self._read(table, wanted):
            self._builder.events += 1
            if not (isinstance(row[0], int) and isinstance(row[1], int)):
                self._builder.left_out["no end"] += 1
            elif row[1] < row[0]:
                self._builder.left_out["a duration below 0"] += 1
            elif max(-row[0], row[1]) > _LAST_NS:
                self._builder.left_out["a time that no clock has"] += 1
            else:
                yield row

    def _read(self, table: str, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        known = self._columns.get(table) or self._columns_of(table)
        if not known:
            return
        if missing := [name for name in wanted[:2] if name not in known]:
            raise sqlite3.DatabaseError(f"its table {table} has no column {missing[0]}")
        columns = ", ".join(f'"{name}"' if name in known else "NULL" for name in wanted)
        yield from self._database.execute(f'SELECT {columns} FROM "{table}"')

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(str(row[1]) for row in self._database.execute(f'PRAGMA table_info("{table}")'))

    def _text(self, number: Any) -> str:
        return str(self._strings.get(number, "")) if isinstance(number, int) else str(number or "")

    def _thread(self, number: Any) -> int:
        return self._builder.threads[divmod(_number(number), 1 << _THREAD_BITS)]

    def _launch(self, process: int, correlation: int) -> int:
        if correlation == UNKNOWN:
            return UNKNOWN
        return self._correlations[process if self._by_process else 0, correlation]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else UNKNOWN


def _args(sizes: str | None) -> HostArgs:
    if not sizes:
        return HostArgs()
    try:
        dims = json.loads(sizes)
    except (ValueError, RecursionError):
        return HostArgs()
    return HostArgs(dims=json.dumps(dims, separators=(",", ":")).encode())
