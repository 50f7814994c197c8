"""Databases as ``nsys export --type sqlite`` writes them, by the published schema, as far as Rooflight reads it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 77 << 24
THREAD = PROCESS | 5

ACTIVITY = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
TABLES = {
    "StringIds": "id, value",
    "TARGET_INFO_GPU": "vmId, id, name, busLocation, smCount, totalMemory, cuDevice",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{ACTIVITY}, demangledName, shortName, mangledName, gridX, graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{ACTIVITY}, graphId, graphExecId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{ACTIVITY}, bytes, copyKind, srcKind, dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{ACTIVITY}, value, bytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "NVTX_EVENTS": "start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId",
}


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
        what = {"globalTid": thread, "correlationId": correlation, "nameId": self.text(name)}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start, start + 1, eventClass=0, returnValue=0, **what)

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
            for table, columns in TABLES.items():
                database.execute(f"CREATE TABLE {table} ({columns})")
            strings = [(number, text) for text, number in self._strings.items()]
            database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings)
            for table, values in self.rows:
                columns, marks = ", ".join(values), ", ".join("?" * len(values))
                database.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))
            for table in without:
                database.execute(f"DROP TABLE {table}")
            database.commit()
        return path
