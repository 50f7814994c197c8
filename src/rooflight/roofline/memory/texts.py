"""What people read of the memory of a step: tables, a picture, and sentences on what is too much and what grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from rooflight.records.quantity import Quantity
from rooflight.records.record import EVALUATION, STEP, StorageKind
from rooflight.records.report import Axis, Line, Mark, Series, Table, table
from rooflight.records.timeline import Run
from rooflight.roofline.groups import plain_name
from rooflight.roofline.memory.savings import Saving
from rooflight.roofline.memory.use import Alive, MemoryFigures, MemoryPoint, MemoryUse

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_CHART_WIDTH: Final = 32
_LEAST_SECTION: Final = 0.05
_LITTLE_GROWTH: Final = 1 << 16  # bytes an iteration
_MANY_ITERATIONS: Final = 1_000_000
_LEAST: Final = "The recording did not follow when memory is freed: this is the least that the step needs."
_UNFOLLOWED: Final = {"data": "from before the step", "temporary": "made in the step"}


def memory_fact(memory: MemoryFigures, *, compiled: bool = False) -> str:
    """Peak and what stands of it, in a line; of a ``compiled`` program, whose peak is not known, the least."""
    peak, standing = Quantity(memory.step_bytes, "B"), Quantity(memory.standing_bytes, "B")
    other = "" if memory.phase == STEP else f"; {Quantity(memory.peak_bytes, 'B')} {during(memory.phase)}"
    known = "peak" if memory.followed else "at least"
    least = Quantity(memory.compiled_least_bytes, "B")
    eager = f"compiled at least {least}; run eagerly " if compiled else ""
    resident = f"; the process had {Quantity(memory.resident_bytes, 'B')}" if memory.resident_bytes else ""
    return f"{eager}{known} {peak}, of which {standing} was allocated before the step{other}{resident}"


def during(phase: str) -> str:
    """``in an evaluation``, ``between steps``."""
    return {EVALUATION: "in an evaluation", "other calls": "in other calls", STEP: "in a step"}.get(phase, phase)


def memory_shortage(memory: MemoryFigures, device: str, *, compiled: bool = False) -> str:
    """How much memory the device lacks for the step, in a sentence; empty where it has enough or none is known. Of a
    ``compiled`` program only the least that it needs is known.
    """
    peak, capacity, least = memory.peak_bytes, memory.device_bytes, memory.compiled_least_bytes
    if capacity is None or peak <= capacity:
        return ""
    if compiled and least <= capacity:
        return (
            f"Run eagerly, the ops need {Quantity(peak, 'B')}, and {device} has {Quantity(capacity, 'B')}; compiled "
            f"code needs at least {Quantity(least, 'B')}, so whether the step fits is not known."
        )
    peak = least if compiled else peak
    over, times = Quantity(peak - capacity, "B"), peak / capacity
    worth = f" ({times:.1f} devices' worth)" if times >= 1.05 else ""
    how = ", even compiled" if compiled else ""
    what = "step" if memory.phase == STEP else "script"
    return (
        f"The {what} does not fit{how}: it needs at least {Quantity(peak, 'B')}, {device} has "
        f"{Quantity(capacity, 'B')}: {over} too much{worth}."
    )


def memory_tables(memory: MemoryUse, top: int) -> Iterable[Table]:
    """The peak by kind, with its course over the step, and the ``top`` groups of what is alive at the peak."""
    peak = memory.step_bytes
    if not peak:
        return
    kinds = [kind for kind in StorageKind if memory.bytes_alive[:, kind].any() or memory.by_kind[kind]]
    yield table(
        "memory_at_peak",
        "Memory at the peak of the step",
        [*kinds, None],
        ("kind", "", lambda kind: "all" if kind is None else _label(kind.key, memory)),
        ("bytes", "B", lambda kind: peak if kind is None else memory.by_kind[kind]),
        ("share", "%", lambda kind: 1.0 if kind is None else memory.by_kind[kind] / peak),
        ("over the step", "", lambda kind: sparkline(memory.profile(kind, _CHART_WIDTH), peak)),
        optional=("over the step",),
        note="" if memory.followed else _LEAST,
    )
    if len(memory.phases) > 1:
        yield table(
            "memory_phases",
            "Memory by phase of the script",
            memory.phases,
            ("phase", "", lambda each: each.phase),
            ("allocated", "B", lambda each: each.allocated_bytes),
            ("reserved", "B", lambda each: each.reserved_bytes),
            ("fullest at", "", lambda each: each.where.at or None),
            note="The most in each, op by op.",
        )
    known = any(group.holder or group.where.line for group in memory.rows)
    owned = [
        ("at", "", lambda group: group.where.at or None),
        ("held by", "", lambda group: group.holder or None),
    ] * known
    yield table(
        "alive_at_peak",
        "Alive at the peak" if memory.phase == STEP else f"Alive at the peak, {during(memory.phase)}",
        memory.rows,
        ("kind", "", lambda group: _label(group.kind, memory)),
        ("bytes", "B", lambda group: group.bytes),
        ("count", "", lambda group: group.count),
        ("made by", "", lambda group: plain_name(group.op) or None),
        *owned,
        ("where", "", _where),
        ("phase", "", lambda group: group.phase or None),
        top=top,
        optional=("phase", "count", *(name for name, *_ in owned)),
    )
    if memory.savings:
        yield _savings_table(memory)


def _savings_table(memory: MemoryUse) -> Table:
    return table(
        "memory_savings",
        "What would need less memory",
        memory.savings,
        ("change", "", lambda each: each.change),
        ("saves", "B", lambda each: each.saved_bytes),
        ("peak", "B", lambda each: each.peak_bytes),
        ("costs", "", _price),
    )


def growth_text(memory: MemoryFigures, device: str = "") -> str:
    """What an iteration leaves behind, who keeps it, and when the device is full; empty where that is little."""
    grown, left = memory.growth_bytes or 0, memory.iterations_until_full
    if grown < _LITTLE_GROWTH or (left is not None and left > _MANY_ITERATIONS):
        return ""
    first = memory.growth[0].owner
    full = f": {device} is full after about {left:,}" if left is not None and device else ""
    where = first.where.at
    kept = f"; kept by `{first.holder}`" if first.holder else "; made" if where else ""
    kept += where and (f", {where}" if first.holder else f" at {where}")
    return f"Memory grows by {Quantity(grown, 'B')} an iteration{full}{kept}."


def missed_text(run: Run | None) -> str:
    """That an evaluation was not reached, and is not in the account; empty where none is known."""
    at = run.memory.missed.at if run is not None and run.memory is not None else ""
    return f"No evaluation was reached ({at}): its memory is not in the account." if at else ""


def memory_series(memory: MemoryFigures) -> Iterable[Series]:
    """Bytes alive over the step, stacked by kind; nothing for a step without storages."""
    kinds = [kind for kind in StorageKind if any(point[kind] for point in memory.timeline)]
    if not kinds:
        return
    records = tuple(float(point.record) for point in memory.timeline)
    yield Series(
        id="memory",
        title="Memory over the step",
        x=Axis(name="op, in the order recorded", sections=tuple(_sections(memory.timeline))),
        y=Axis(name="alive", unit="B"),
        lines=tuple(
            Line(
                name=_label(kind.key, memory),
                x=records,
                y=tuple(float(point[kind]) for point in memory.timeline),
                mark=Mark.AREA,
            )
            for kind in kinds
        ),
        note="" if memory.followed else _LEAST,
    )


def _sections(points: Sequence[MemoryPoint]) -> Iterable[tuple[float, str]]:
    """Where phases of a twentieth of the step or more begin, and their names."""
    last = ""
    for phase, group in groupby(points, lambda point: point.phase):
        inside = list(group)
        if phase != last and len(inside) >= len(points) * _LEAST_SECTION:
            last = phase
            yield float(inside[0].record), phase


def sparkline(values: Sequence[int], most: int) -> str:
    """A bar a value, of eight heights up to ``most``; a dot where there is nothing."""
    steps = len(_BLOCKS)
    return "".join(
        _BLOCKS[min(steps - 1, max(0, -(-value * steps // most) - 1))] if value > 0 and most > 0 else "·"
        for value in values
    )


def _label(kind: str, memory: MemoryFigures) -> str:
    named = kind.replace("_", " ")
    return named if memory.followed else _UNFOLLOWED.get(kind, named)


def _price(saving: Saving) -> str | None:
    flops = f"{Quantity(saving.flops, 'FLOP')} more" if saving.flops else ""
    moved = f"{Quantity(saving.moved_bytes, 'B')} to and from the host" if saving.moved_bytes else ""
    return flops or moved or None


def _where(group: Alive) -> str | None:
    return f"{group.module} ({group.layer})" if group.layer and group.module else group.module or group.layer or None
