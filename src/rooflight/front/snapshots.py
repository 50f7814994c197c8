"""A snapshot of CUDA's allocator, alone or beside the memory that a session's step was seen to need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rooflight.front.sessions import analyze_file
from rooflight.records.account import NO_PLACE, Place
from rooflight.records.quantity import Quantity
from rooflight.records.report import Report, table
from rooflight.roofline.memory.use import BEFORE, MemoryUse
from rooflight.sources.traces.file.kinds import begin_of
from rooflight.sources.traces.file.snapshot import SUFFIXES, Snapshot, read_snapshots

_BEGIN: Final = re.compile(rb"\x80[\2-\5](?!\x8a\nl\xfc)|\s*(\{\s*\"segments\"|\[\s*\{[^{}]*\"total_size\")")
"""Of a pickle, but not one of torch.save, and of a snapshot in JSON."""


def is_snapshot(target: str) -> bool:
    """Whether a target names a pickle, or a snapshot in JSON."""
    path = Path(target)
    return path.is_file() and (path.suffix in SUFFIXES or bool(_BEGIN.match(begin_of(path))))


def report_of_snapshot(targets: Sequence[str], device: str | None, top: int) -> Report:
    """What was allocated at the peak, by line; beside it, where a second target is a session, what its step had alive.

    Raises ValueError for files that cannot be read.
    """
    path, *sessions = targets
    if len(sessions) > 1:
        raise ValueError(f"{path} is compared with one session at a time")
    found = read_snapshots(Path(path))
    if not found:
        raise ValueError(f"{path} has no memory in it: take the snapshot while the program holds some")
    fullest = max(found, key=lambda each: each.peak_bytes)
    memory = analyze_file(sessions[0], device).memory if sessions else None
    rows = _beside(fullest, memory)
    predicted = (
        ("recorded", "B", lambda row: row[2]),
        ("more", "B", lambda row: row[1] - row[2]),
    )  # fmt: skip
    text = f"At most {Quantity(fullest.peak_bytes, 'B')} were allocated on device {fullest.device}"
    if memory is not None:
        share = fullest.peak_bytes / memory.peak_bytes - 1 if memory.peak_bytes else 0.0
        text += f", {share:+.1%} against the {Quantity(memory.peak_bytes, 'B')} that the session's step needs"
    return Report(
        title=f"Memory snapshot: {Path(path).name}",
        conclusion=f"{text}; {Quantity(fullest.peak_reserved_bytes, 'B')} were reserved.",
        facts=tuple(_facts(found)),
        tables=(
            table(
                "snapshot",
                "Allocated at the peak, by line" if memory is None else "At the peak, by line: what differs most first",
                rows,
                ("line", "", lambda row: row[0].at or "(not recorded)"),
                ("snapshot", "B", lambda row: row[1]),
                *(predicted if memory is not None else ()),
                top=top,
            ),
        ),
        data=fullest,
    )


def _beside(snapshot: Snapshot, memory: MemoryUse | None) -> list[tuple[Place, int, int]]:
    """Lines with their bytes in the snapshot and in a session's step: the largest first, or what differs most. What
    stood before the step may have been made before the snapshot's history began: then it has no line there.
    """
    beside, seen = Counter[tuple[str, int]](), {_key(each.owner.where) for each in snapshot.rows}
    for row in memory.rows if memory is not None else ():
        key = _key(row.where)
        beside[_key(NO_PLACE) if row.op == BEFORE and key not in seen else key] += row.bytes
    rows = [(each.owner.where, each.bytes, beside.pop(_key(each.owner.where), 0)) for each in snapshot.rows]
    rows += [(Place(file=file, line=line), 0, size) for (file, line), size in beside.items()]
    return sorted(rows, key=lambda row: -abs(row[1] - row[2]))


def _key(where: Place) -> tuple[str, int]:
    return Path(where.file).name, where.line


def _facts(found: Sequence[Snapshot]) -> list[tuple[str, str]]:
    return [
        (
            f"device {each.device}",
            f"{Quantity(each.allocated_bytes, 'B')} of {Quantity(each.reserved_bytes, 'B')} reserved at the end; "
            f"{each.events:,} events",
        )
        for each in found
    ]
