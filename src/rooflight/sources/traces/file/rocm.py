"""Profiles of AMD's tools: kernels as rocprof, rocprofv3 and RPD write them, in CSV, JSON or SQLite.

The tables differ in the names of their columns, which ``_COLUMNS`` lists without capitals and marks.
"""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rooflight.records.visible import shortened
from rooflight.sources.traces.file.kinds import begin_of
from rooflight.sources.traces.file.trace import UNKNOWN, Trace, TraceBuilder, WorkKind

_BEGIN: Final = re.compile(
    rb'\s*\{\s*"rocprofiler-sdk-tool"|[^\n{]*Kernel_?Name[^\n]*(Start_Timestamp|BeginNs)'
    rb"|(?s:SQLite format 3.*(rocpd_|KernelName))"
)
_LOOKED_AT: Final = 1 << 20
_TABLES: Final = ("kernels", "memory_copies", "op", "A", "COPY")
_COLUMNS: Final = (
    ("starttimestamp", "beginns", "start"),
    ("endtimestamp", "endns", "end"),
    ("kernelname", "name", "description", "optype"),
    ("agentid", "agentabsindex", "gpuid"),
    ("streamid", "queueid"),
)
_AGENTS: Final = "SELECT product_name FROM rocpd_info_agent WHERE type = 'GPU'"
_LAST_NS: Final = 4 * 10**18


def is_rocm(path: Path) -> bool:
    """Whether a file begins as those of AMD's tools do."""
    return path.is_file() and _BEGIN.match(begin_of(path, _LOOKED_AT)) is not None


def load_rocm(path: Path) -> Trace:
    """Read a profile of AMD's tools; one without a kernel has no work. Raises ValueError for a damaged one, OSError."""
    builder, gpus = TraceBuilder(), list[str]()
    try:
        for row in _rows(path, gpus):
            _add(builder, {re.sub(r"[^a-z]", "", key.lower()): value for key, value in row.items() if key})
    except (sqlite3.Error, csv.Error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is a damaged profile of rocprof: {error}") from error
    return builder.trace(path, {"deviceProperties": [{"name": name} for name in gpus]})


def _rows(path: Path, gpus: list[str]) -> Iterator[Mapping[str, Any]]:
    if begin_of(path, 6) == b"SQLite":
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as database:
            database.row_factory = sqlite3.Row
            known = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            gpus += [name for (name,) in database.execute(_AGENTS)] if "rocpd_info_agent" in known else []
            for table in (each for each in _TABLES if each in known):
                yield from map(dict, database.execute(f'SELECT * FROM "{table}"'))
    elif path.suffix == ".csv":
        with path.open(newline="", errors="replace") as file:
            yield from csv.DictReader(file)
    else:
        for process in json.loads(path.read_bytes())["rocprofiler-sdk-tool"]:
            gpus += [each["product_name"] for each in process.get("agents", ()) if each.get("type") == 2]
            names = {each["kernel_id"]: each["formatted_kernel_name"] for each in process["kernel_symbols"]}
            for each in process["buffer_records"].get("kernel_dispatch", ()):
                about = each["dispatch_info"]
                yield {"start": each["start_timestamp"], "end": each["end_timestamp"], "queue_id": about["queue_id"],
                       "agent_id": about["agent_id"]["handle"], "name": names.get(about["kernel_id"])}  # fmt: skip


def _add(builder: TraceBuilder, row: Mapping[str, Any]) -> None:
    found = [next((row[key] for key in keys if row.get(key) not in (None, "")), None) for keys in _COLUMNS]
    start, stop, device, queue = (_number(found[place]) for place in (0, 1, 3, 4))
    builder.events += 1
    if not 0 < start <= stop <= _LAST_NS:
        builder.left_out["no time from a begin to an end"] += 1
        return
    name = shortened(str(found[2] or "kernel"))
    kind = WorkKind.COPY if re.search("copy", f"{row.get('optype')} {name}", re.IGNORECASE) else WorkKind.KERNEL
    device %= 1 << 31
    stream = builder.streams[device, max(queue, 0)]
    builder.work.add(start, stop, stream, builder.names[name], UNKNOWN, kind, device, UNKNOWN)


def _number(value: Any) -> int:
    digits = re.search(r"\d{1,18}", str(value))
    return int(digits[0]) if digits else 0
