"""Databases as ``nsys export --type sqlite`` writes them, by the published schema, as far as Rooflight reads it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 77 << 24
THREAD = PROCESS | 5

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
    isDiscrete INTEGER,
    l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER,
    pwGpuId INTEGER, uuid TEXT, cuDevice INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    graphId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    graphExecId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    value INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
"""


class NsightReport:
    """A report to which events are added, times in µs."""

    def __init__(self, gpu: str = "NVIDIA H100 80GB HBM3") -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = [("TARGET_INFO_GPU", {"vmId": 0, "id": 0, "name": gpu})]
        self._strings: dict[str, int] = {}

    def text(self, value: str) -> int:
        """The number of a string."""
        return self._strings.setdefault(value, len(self._strings))

    def add(self, table: str, start: float, stop: float | None, **values: Any) -> None:
        """A row of a table."""
        end = None if stop is None else round(stop * 1e3)
        self.rows.append((table, {"start": round(start * 1e3), "end": end, **values}))

    def range(self, name: str, start: float, stop: float | None, *, thread: int = THREAD, named: bool = False) -> None:
        """A range of NVTX; ``named``: registered as a string, as torch's are not."""
        text = {"textId": self.text(name)} if named else {"text": name}
        self.add("NVTX_EVENTS", start, stop, eventType=59, globalTid=thread, **text)

    def launch(
        self, start: float, correlation: int, *, thread: int = THREAD, name: str = "cudaLaunchKernel_v7000"
    ) -> None:
        """A call of 1 µs that launches work."""
        place = {"globalTid": thread, "correlationId": correlation}
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start,
            start + 1,
            eventClass=0,
            nameId=self.text(name),
            returnValue=0,
            **place,
        )

    def kernel(
        self, start: float, stop: float, correlation: int, name: str, *, device: int = 0, pid: int = PROCESS
    ) -> None:
        """A kernel."""
        names = {"demangledName": self.text(name), "shortName": self.text(name.split("<", maxsplit=1)[0])}
        place = {"deviceId": device, "contextId": 1, "streamId": 7, "correlationId": correlation, "globalPid": pid}
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", start, stop, **names, **place)

    def copy(self, start: float, stop: float, correlation: int, **values: Any) -> None:
        """A copy of a megabyte from pageable memory of the host."""
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation, "globalPid": PROCESS}
        what = {"bytes": 1 << 20, "copyKind": 1, "srcKind": 0, "dstKind": 2}
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", start, stop, **place, **what | values)

    def write(self, path: Path, without: tuple[str, ...] = ()) -> Path:
        """The database, without some of the tables."""
        with closing(sqlite3.connect(path)) as database:
            database.executescript(SCHEMA)
            database.executemany(
                "INSERT INTO StringIds VALUES (?, ?)", [(n, text) for text, n in self._strings.items()]
            )
            for table, values in self.rows:
                columns, marks = ", ".join(values), ", ".join("?" * len(values))
                database.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))
            for table in without:
                database.execute(f"DROP TABLE {table}")
            database.commit()
        return path
