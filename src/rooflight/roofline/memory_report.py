"""What a report shows of memory: its fact, its tables and its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rooflight.devices.spec import DeviceSpec
from rooflight.records.document import Fields
from rooflight.records.quantity import Quantity
from rooflight.records.record import StorageKind
from rooflight.records.report import Column, Table
from rooflight.records.series import Axis, Line, Mark, Series
from rooflight.roofline.memory import Alive, MemoryUse
from rooflight.roofline.op_names import plain_name

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_CHART_WIDTH: Final = 32
_LEAST: Final = "The recording did not follow when memory is freed: this is the least that the step needs."
_UNFOLLOWED: Final = {StorageKind.INPUT: "from before the step", StorageKind.TEMPORARY: "made in the step"}


class KindBytes(Fields, frozen=True, kw_only=True):
    """Bytes alive, by what they are for."""

    input: int
    parameter: int
    gradient: int
    optimizer_state: int
    activation: int
    temporary: int


class MemoryPoint(KindBytes, frozen=True, kw_only=True):
    """Bytes alive while a record ran: the fullest of its stretch of the step."""

    record: int


class AliveData(Fields, frozen=True, kw_only=True):
    """Storages alive at the peak, of one kind, made by one op in one place."""

    bytes: int
    count: int
    kind: str
    op: str
    module: str
    layer: str
    phase: str


class MemoryData(Fields, frozen=True, kw_only=True):
    """The memory of a step; ``device_bytes`` is what the device has."""

    peak_bytes: int
    standing_bytes: int
    device_bytes: int | None
    followed: bool
    peak_record: int
    by_kind: KindBytes
    timeline: tuple[MemoryPoint, ...]
    alive: tuple[AliveData, ...]


def memory_fact(memory: MemoryUse) -> str:
    """Peak and what stands of it, in a line."""
    peak, standing = Quantity(memory.peak_bytes, "B"), Quantity(memory.standing_bytes, "B")
    return f"{'peak' if memory.followed else 'at least'} {peak}, of which {standing} was allocated before the step"


def memory_shortage(memory: MemoryUse, device: DeviceSpec) -> str:
    """How much memory the device lacks for the step, in a sentence; empty where it has enough or none is known."""
    peak, capacity = memory.peak_bytes, device.dram_capacity_bytes
    if capacity is None or peak <= capacity:
        return ""
    over, times = Quantity(peak - capacity, "B"), peak / capacity
    return (
        f"The step does not fit: it needs at least {Quantity(peak, 'B')}, {device.name} has {Quantity(capacity, 'B')}: "
        f"{over} too much ({times:.1f} devices' worth)."
    )


def memory_tables(memory: MemoryUse, top: int) -> Iterable[Table]:
    """The peak by kind, with its course over the step, and the ``top`` groups of what is alive at the peak."""
    if not memory.peak_bytes:
        return
    kinds = [kind for kind in StorageKind if memory.timeline[:, kind].any() or memory.by_kind[kind]]
    rows = [
        (
            _label(kind, memory),
            memory.by_kind[kind],
            memory.by_kind[kind] / memory.peak_bytes,
            sparkline(memory.profile(kind, _CHART_WIDTH), memory.peak_bytes),
        )
        for kind in kinds
    ]
    course = sparkline(memory.profile(None, _CHART_WIDTH), memory.peak_bytes)
    rows.append(("all", memory.peak_bytes, 1.0, course))
    yield Table(
        id="memory_at_peak",
        title="Memory at the peak",
        columns=(Column("kind"), Column("bytes", "B"), Column("share", "%"), Column("over the step")),
        rows=tuple(rows),
        optional=("over the step",),
        note="" if memory.followed else _LEAST,
    )
    yield Table(
        id="alive_at_peak",
        title="Alive at the peak",
        columns=(
            Column("kind"),
            Column("bytes", "B"),
            Column("count"),
            Column("made by"),
            Column("where"),
            Column("phase"),
        ),
        rows=tuple(
            (
                _label(group.kind, memory),
                group.bytes,
                group.count,
                plain_name(group.op),
                _where(group),
                group.phase or None,
            )
            for group in memory.alive
        ),
        top=top,
        optional=("phase", "count"),
    )


def memory_series(memory: MemoryUse) -> Iterable[Series]:
    """Bytes alive over the step, stacked by kind; nothing for a step without storages."""
    points = memory.points()
    kinds = [kind for kind in StorageKind if any(point.by_kind[kind] for point in points)]
    if not kinds:
        return
    records = tuple(float(point.record) for point in points)
    yield Series(
        id="memory",
        title="Memory over the step",
        x=Axis(name="op, in the order recorded"),
        y=Axis(name="alive", unit="B"),
        lines=tuple(
            Line(
                name=_label(kind, memory),
                x=records,
                y=tuple(float(point.by_kind[kind]) for point in points),
                mark=Mark.AREA,
            )
            for kind in kinds
        ),
        note="" if memory.followed else _LEAST,
    )


def memory_data(memory: MemoryUse, device_bytes: int | None) -> MemoryData:
    """The machine-readable whole, in bytes."""
    return MemoryData(
        peak_bytes=memory.peak_bytes,
        standing_bytes=memory.standing_bytes,
        device_bytes=device_bytes,
        followed=memory.followed,
        peak_record=memory.peak_record,
        by_kind=KindBytes(**_by_key(memory.by_kind)),
        timeline=tuple(MemoryPoint(record=point.record, **_by_key(point.by_kind)) for point in memory.points()),
        alive=tuple(
            AliveData(
                bytes=group.bytes,
                count=group.count,
                kind=_key(group.kind),
                op=group.op,
                module=group.module,
                layer=group.layer,
                phase=group.phase,
            )
            for group in memory.alive
        ),
    )


def sparkline(values: Sequence[int], most: int) -> str:
    """A bar a value, of eight heights up to ``most``; a dot where there is nothing."""
    steps = len(_BLOCKS)
    return "".join(
        _BLOCKS[min(steps - 1, max(0, -(-value * steps // most) - 1))] if value > 0 and most > 0 else "·"
        for value in values
    )


def _label(kind: StorageKind, memory: MemoryUse) -> str:
    return kind.label if memory.followed else _UNFOLLOWED.get(kind, kind.label)


def _by_key(by_kind: Mapping[StorageKind, int]) -> dict[str, int]:
    return {_key(kind): size for kind, size in by_kind.items()}


def _key(kind: StorageKind) -> str:
    return kind.name.lower()


def _where(group: Alive) -> str | None:
    return f"{group.module} ({group.layer})" if group.layer and group.module else group.module or group.layer or None
