"""Kernels as rocprof, rocprofv3 and RPD write them, in CSV, JSON or SQLite: tables with columns of other names."""

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

from rooflight.sources.traces.file.chunks import RawEvent
from rooflight.sources.traces.file.kinds import begin_of
from rooflight.sources.traces.file.kineto import add_events
from rooflight.sources.traces.file.trace import Trace, TraceBuilder

_TABLES: Final = ("kernels", "memory_copies", "op", "A", "COPY")
_COLUMNS: Final = (  # without capitals and marks
    ("starttimestamp", "beginns", "start"),
    ("endtimestamp", "endns", "end"),
    ("kernelname", "name", "description", "optype"),
    ("agentid", "agentabsindex", "gpuid"),
    ("streamid", "queueid"),
)
_AGENTS: Final = "SELECT product_name FROM rocpd_info_agent WHERE type = 'GPU'"


def load_rocm(path: Path) -> Trace:
    """Read a profile of AMD's tools. Raises ValueError for a damaged one, OSError."""
    builder, gpus = TraceBuilder(), list[str]()
    try:
        events = [_event(row) for row in _rows(path, gpus)]
    except (sqlite3.Error, csv.Error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is a damaged profile of rocprof: {error}") from error
    builder.events = len(events)
    add_events(builder, events)
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
                yield {**each, **about, "name": names.get(about["kernel_id"])}


def _event(row: Mapping[str, Any]) -> RawEvent:
    facts = {re.sub(r"[^a-z]", "", key.lower()): value for key, value in row.items() if key}
    found = [next((facts[key] for key in keys if facts.get(key) not in (None, "")), "") for keys in _COLUMNS]
    start, stop, device, queue = (int((re.findall(r"\d{1,18}", str(found[at])) or [-1])[0]) for at in (0, 1, 3, 4))
    category = "gpu_memcpy" if re.search("(?i)copy", f"{facts.get('optype')} {found[2]}") else "kernel"
    took = stop - start if start > 0 else -1  # which is left out, and counted
    return RawEvent("X", category, str(found[2]), device, queue, start / 1e3, took / 1e3)
