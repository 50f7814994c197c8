"""What a report says of memory: its fact, its tables and its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rooflight.records.quantity import Quantity
from rooflight.records.record import StorageKind
from rooflight.records.report import Table
from rooflight.roofline.memory import Alive, MemoryUse
from rooflight.roofline.op_names import plain_name

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_CHART_WIDTH: Final = 32
_UNWATCHED: Final = {StorageKind.INPUT: "stood before", StorageKind.TEMPORARY: "made and used up"}


def memory_fact(memory: MemoryUse) -> str:
    """Peak and what stands of it, in a line."""
    peak, standing = Quantity(memory.peak_bytes, "B"), Quantity(memory.standing_bytes, "B")
    return f"{'peak' if memory.watched else 'at least'} {peak}, of which {standing} stands before the step"


def memory_tables(memory: MemoryUse, top: int) -> Iterable[Table]:
    """The peak by kind, with its course over the step, and the ``top`` groups of what is alive at the peak."""
    if not memory.peak_bytes:
        return
    kinds = [kind for kind in StorageKind if memory.timeline[:, kind].any() or memory.by_kind[kind]]
    rows = [
        (
            _label(kind, memory),
            Quantity(memory.by_kind[kind], "B"),
            Quantity(memory.by_kind[kind] / memory.peak_bytes, "%"),
            sparkline(memory.profile(kind, _CHART_WIDTH), memory.peak_bytes),
        )
        for kind in kinds
    ]
    course = sparkline(memory.profile(None, _CHART_WIDTH), memory.peak_bytes)
    rows.append(("all", Quantity(memory.peak_bytes, "B"), Quantity(1.0, "%"), course))
    yield Table(
        title="Memory at the peak",
        columns=("kind", "bytes", "share", "over the step"),
        rows=tuple(rows),
        optional=("over the step",),
        note="" if memory.watched else "Nobody watched when memory is freed: this is the least that the step needs.",
    )
    yield Table(
        title="Alive at the peak",
        columns=("kind", "bytes", "count", "made by", "where", "phase"),
        rows=tuple(
            (
                _label(group.kind, memory),
                Quantity(group.bytes, "B"),
                group.count,
                plain_name(group.op),
                _where(group),
                group.phase or None,
            )
            for group in memory.alive[:top]
        ),
        optional=("phase", "count"),
        left_out=max(0, len(memory.alive) - top),
    )


def memory_data(memory: MemoryUse, device_bytes: int | None) -> dict[str, Any]:
    """The machine-readable whole, in bytes."""
    return {
        "peak_bytes": memory.peak_bytes,
        "standing_bytes": memory.standing_bytes,
        "device_bytes": device_bytes,
        "watched": memory.watched,
        "peak_record": memory.peak_record,
        "by_kind": {_key(kind): size for kind, size in memory.by_kind.items()},
        "timeline": [
            {"record": point.record, **{_key(kind): size for kind, size in point.by_kind.items()}}
            for point in memory.points()
        ],
        "alive": [
            {
                "bytes": group.bytes,
                "count": group.count,
                "kind": _key(group.kind),
                "op": group.op,
                "module": group.module,
                "layer": group.layer,
                "phase": group.phase,
            }
            for group in memory.alive
        ],
    }


def sparkline(values: Sequence[int], most: int) -> str:
    """A bar a value, of eight heights up to ``most``; a dot where there is nothing."""
    steps = len(_BLOCKS)
    return "".join(
        _BLOCKS[min(steps - 1, max(0, -(-value * steps // most) - 1))] if value > 0 and most > 0 else "·"
        for value in values
    )


def _label(kind: StorageKind, memory: MemoryUse) -> str:
    return kind.label if memory.watched else _UNWATCHED.get(kind, kind.label)


def _key(kind: StorageKind) -> str:
    return kind.name.lower()


def _where(group: Alive) -> str:
    return f"{group.module} ({group.layer})" if group.layer and group.module else group.module or group.layer or "–"
