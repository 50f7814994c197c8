"""How much memory a recorded step takes: at its peak and over time, by what it is for, and who made what is alive."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.account import Place
from rooflight.records.document import Fields
from rooflight.records.quantity import Quantity
from rooflight.records.record import STEP, Direction, Held, StorageKind, outside_modules
from rooflight.records.report import Axis, Line, Mark, Series, Table, table
from rooflight.records.session import KEPT, NO_PARENT, STOOD, Int64, Lifetimes, Session, Touches, touches_of
from rooflight.roofline.distinct import distinct_rows
from rooflight.roofline.groups import plain_name
from rooflight.roofline.memory.allocator import Allocator, Block
from rooflight.roofline.memory.savings import Saving, batch_factor, savings

BEFORE: Final = "(before the step)"
"""What made a storage that was there before the step."""

UNSEEN: Final = "(no recorded op)"
"""What made a storage that came to be without an op: by ``torch.tensor(data)``, or by resizing one."""

_POINTS: Final = 200
_NUMBER_IN_PATH = re.compile(r"(?<![^.])\d+(?![^.])")
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_CHART_WIDTH: Final = 32
_LITTLE_GROWTH: Final = 1 << 16  # bytes an iteration
_MANY_ITERATIONS: Final = 1_000_000
_LEAST: Final = "The recording did not follow when memory is freed: this is the least that the step needs."
_UNFOLLOWED: Final = {"input": "from before the step", "temporary": "made in the step"}


class KindBytes(Fields, frozen=True, kw_only=True):
    """Bytes alive, by what they are for: one field for each ``StorageKind``, which is an index as well."""

    input: int
    parameter: int
    gradient: int
    optimizer_state: int
    activation: int
    temporary: int
    other: int

    def __getitem__(self, kind: StorageKind) -> int:
        return int(getattr(self, kind.key))


class MemoryPoint(KindBytes, frozen=True, kw_only=True):
    """Bytes alive while a record ran: the fullest of its stretch of the step."""

    record: int


class Alive(Fields, frozen=True, kw_only=True):
    """Storages alive at the peak that are alike: their kind, the ``op`` and the line ``where`` that made them, who held
    them at the end of the step, and whether an op of the step ``touched`` them.

    ``module`` is a qualified name with ``*`` for its numbers, so that the same of every layer is one entry: of the
    module whose op made it or, for what stood before, first used it. ``layer`` is the class of that module. ``bytes``
    are of all ``count`` together.
    """

    bytes: int
    kind: str
    holder: str
    where: Place
    touched: bool
    count: int = 1
    op: str = ""
    module: str = ""
    layer: str = ""
    phase: str = ""


class MemoryFigures(Fields, frozen=True, kw_only=True):
    """Bytes of storages by their sizes.

    ``peak_bytes`` is the most that is alive in any ``phase`` of the script that was followed, ``step_bytes`` that of
    the recorded step, while one record, ``peak_record``, runs (-1 in an empty session), with the record's results, and
    without memory that its kernel allocates and frees. ``rows`` are what is alive then. ``allocated_bytes`` is the peak
    in blocks of CUDA's allocator, ``reserved_bytes`` what it takes of the device for them: low and high, what is needed
    at the least, and with blocks that stay unused. ``savings`` are changes that need less, and ``batch_factor`` is how
    many times the batch of the step fits. ``growth_bytes`` is what an iteration leaves behind (``growth`` by line and
    holder; None: not followed), ``iterations_until_full`` how often that fits the device. ``standing_bytes`` were
    allocated before the first record. ``device_bytes`` is what the device has. ``timeline`` are points of the step, the
    peak among them. ``followed``: the session has the kind of each storage and when it was freed. Otherwise each
    storage is assumed to live from the op that made it to the last that used it, which is the least that the step
    needs, and all storages from before the step count as inputs. ``compiled_least_bytes``: what compiled code needs at
    the least, if it computes no product twice: what stood before, and what was made and must live where backward passes
    begin and end. Of programs that are not compiled, the former alone.
    """

    followed: bool
    peak_bytes: int
    step_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    growth_bytes: int | None
    iterations_until_full: int | None
    phase: str
    compiled_least_bytes: int
    standing_bytes: int
    device_bytes: int | None
    peak_record: int
    by_kind: KindBytes
    timeline: tuple[MemoryPoint, ...]
    rows: tuple[Alive, ...]
    growth: tuple[Held, ...] = ()
    savings: tuple[Saving, ...] = ()
    batch_factor: float | None = None


class MemoryUse(MemoryFigures, frozen=True, kw_only=True, eq=False):
    """The memory of a step. ``bytes_alive[i, kind]`` are the bytes of a ``StorageKind`` alive while record i runs."""

    bytes_alive: Int64

    def profile(self, kind: StorageKind | None, width: int) -> list[int]:
        """The most bytes of a kind (None for all together) in each of ``width`` stretches of the step."""
        bytes_alive = self.bytes_alive.sum(axis=1) if kind is None else self.bytes_alive[:, kind]
        count = len(bytes_alive)
        edges = [place * count // width for place in range(width + 1)]
        return [int(bytes_alive[start : max(end, start + 1)].max(initial=0)) for start, end in pairwise(edges)]


def memory_use(
    session: Session,
    device_bytes: int | None = None,
    kept: Iterable[tuple[int, int]] = (),
    costs: Sequence[OpCost | Uncosted] = (),
) -> MemoryUse:
    """The memory of a session's step: as it was followed, or from when each storage is touched first and last. ``kept``
    is that of its ``Fusion``: what must live, by record. With the ``costs`` of its signatures: what would need less.
    """
    touches = touches_of(session)
    lifetimes = _touched_lifetimes(session, touches) if session.lifetimes is None else session.lifetimes
    sizes, stood = session.storage_bytes, lifetimes.made == STOOD
    bytes_alive = _bytes_alive(sizes, lifetimes, len(session))
    standing_bytes = int(sizes[stood].sum())
    totals = bytes_alive.sum(axis=1)
    peak_record = int(totals.argmax()) if len(totals) else -1
    step_bytes = int(totals[peak_record]) if len(totals) else standing_bytes
    figures = _of_script(session, device_bytes, step_bytes, *_blocks(sizes, lifetimes))
    figures["rows"] = figures["rows"] or _alive(session, lifetimes, touches, peak_record)
    stands = [(n, sizes[stood & ((lifetimes.freed == KEPT) | (lifetimes.freed > record))].sum()) for record, n in kept]
    before = [sizes[stood & (lifetimes.kind == kind)].sum() for kind in StorageKind]
    return MemoryUse(
        followed=session.lifetimes is not None,
        **figures,
        step_bytes=step_bytes,
        compiled_least_bytes=max([standing_bytes, *(n + int(standing) for n, standing in stands)]),
        savings=savings(session, costs) if len(costs) else (),
        batch_factor=batch_factor(session, device_bytes) if device_bytes else None,
        standing_bytes=standing_bytes,
        device_bytes=device_bytes,
        peak_record=peak_record,
        by_kind=KindBytes(**_by_kind(bytes_alive[peak_record] if len(totals) else before)),
        timeline=tuple(_points(bytes_alive, totals)),
        bytes_alive=bytes_alive,
    )


def _of_script(
    session: Session, device_bytes: int | None, step_bytes: int, allocated: int, reserved: int
) -> dict[str, Any]:
    """The figures of the phase that needs most: of the step, or of another that the script was seen in."""
    script = session.run.memory if session.run is not None else None
    fullest = max(script.phases if script is not None else (), key=lambda each: each.allocated_bytes, default=None)
    peak, phase = step_bytes, STEP
    rows: tuple[Alive, ...] = ()
    if fullest is not None and fullest.phase != STEP and fullest.allocated_bytes > allocated:
        peak = allocated = fullest.allocated_bytes
        reserved, phase = max(reserved, fullest.reserved_bytes), fullest.phase
        rows = tuple(
            Alive(
                bytes=each.bytes,
                kind=StorageKind.OTHER.key,
                holder=each.owner.holder,
                where=each.owner.where,
                touched=False,
            )
            for each in sorted(fullest.rows, key=lambda each: -each.bytes)
        )
    grown = sum(each.bytes for each in script.growth) if script is not None and script.followed else None
    left = max(0, device_bytes - allocated) if device_bytes is not None else None
    return {
        "peak_bytes": peak,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "low_bytes": peak,
        "high_bytes": reserved,
        "growth_bytes": grown,
        "iterations_until_full": left // grown if grown and left is not None else None,
        "phase": phase,
        "growth": script.growth if script is not None else (),
        "rows": rows,
    }


def compiled_peak(session: Session, stored: Collection[int]) -> int:
    """The peak in bytes where of what the step makes only the storages ``stored`` are written to memory; what is made
    and used inside one kernel takes none (``CompiledWork.stored``). Needs lifetimes that were followed.
    """
    assert session.lifetimes is not None
    lifetimes = session.lifetimes
    written = lifetimes.made == STOOD
    written[list(stored)] = True
    totals = _bytes_alive(np.where(written, session.storage_bytes, 0), lifetimes, len(session)).sum(axis=1)
    return int(totals.max(initial=0))


def _by_kind(sizes: Int64 | Sequence[int]) -> dict[str, int]:
    return {kind.key: int(sizes[kind]) for kind in StorageKind}


def _points(bytes_alive: Int64, totals: Int64) -> Iterable[MemoryPoint]:
    edges = np.unique(np.linspace(0, len(totals), min(_POINTS, len(totals)) + 1).astype(np.int64))
    for start, end in pairwise(edges):
        record = int(start + totals[start:end].argmax())
        yield MemoryPoint(record=record, **_by_kind(bytes_alive[record]))


def _touched_lifetimes(session: Session, touches: Touches) -> Lifetimes:
    """The least that is possible: storages come with the op that makes them and go with the last that uses them."""
    touched = touches.last >= 0
    stood = touched & (touches.first_read <= touches.first_written)
    made = np.where(stood, STOOD, touches.first_written).astype(np.int32)
    freed = np.where(stood | ~touched, KEPT, touches.last + 1).astype(np.int32)
    direction = np.append(session.columns.direction, np.int8(Direction.FORWARD))
    kind = np.full(len(made), StorageKind.TEMPORARY, dtype=np.int8)
    forward = direction[touches.first_written] == Direction.FORWARD
    kind[forward & (direction[touches.last] == Direction.BACKWARD)] = StorageKind.ACTIVATION
    kind[stood] = StorageKind.INPUT
    nothing = np.zeros(len(kind), dtype=np.int32)
    return Lifetimes(kind=kind, made=made, freed=freed, local=nothing.astype(np.bool_), owner=nothing)


def _blocks(sizes: Int64, lifetimes: Lifetimes) -> tuple[int, int]:
    """The most bytes that CUDA's allocator counts as allocated and as reserved, for storages made and freed so."""
    allocator, blocks = Allocator(), dict[int, Block]()
    born = np.flatnonzero(sizes > 0)
    gone = born[lifetimes.freed[born] != KEPT]
    events = [(made, 1, number) for number, made in zip(born.tolist(), lifetimes.made[born].tolist(), strict=True)]
    events += [(freed, 0, number) for number, freed in zip(gone.tolist(), lifetimes.freed[gone].tolist(), strict=True)]
    for _, comes, number in sorted(events):
        if comes:
            blocks[number] = allocator.allocate(int(sizes[number]))
        elif number in blocks:
            allocator.release(blocks.pop(number))
    return allocator.peak, allocator.peak_reserved


def _bytes_alive(sizes: Int64, lifetimes: Lifetimes, count: int) -> Int64:
    change = np.zeros((count + 1, len(StorageKind)), dtype=np.int64)
    kind, freed = lifetimes.kind, lifetimes.freed
    gone = freed != KEPT
    np.add.at(change, (np.maximum(lifetimes.made, 0), kind), sizes)
    np.subtract.at(change, (freed[gone], kind[gone]), sizes[gone])
    np.cumsum(change, axis=0, out=change)
    return change[:count]


def _alive(session: Session, lifetimes: Lifetimes, touches: Touches, record: int) -> tuple[Alive, ...]:
    """What is alive while a record runs, alike storages together, the largest first."""
    made, freed = lifetimes.made, lifetimes.freed
    chosen = np.flatnonzero((made <= record) & ((freed == KEPT) | (freed > record)) & (session.storage_bytes > 0))
    if record < 0 or not len(chosen):
        return ()
    columns, stood = session.columns, made[chosen] == STOOD
    seen = stood | (touches.first_written[chosen] == made[chosen])
    # what stood before belongs where it was first used; a part of a composite to the composite
    place = np.where(stood, touches.first[chosen], np.where(seen, made[chosen], NO_PARENT))
    parents = np.append(columns.parent, NO_PARENT)
    while (inside := parents[place] != NO_PARENT).any():
        place = np.where(inside, parents[place], place)
    inside_step = (place != NO_PARENT) & (place < len(session))
    at = np.where(inside_step, place, 0)
    facts = [lifetimes.kind[chosen], stood, inside_step]
    facts += [np.where(inside_step, column[at], 0) for column in (columns.direction, columns.module)]
    made_by = (columns.signature, columns.phase, columns.place)
    facts += [np.where(inside_step & ~stood, column[at], 0) for column in made_by]
    facts += [lifetimes.owner[chosen], touches.last[chosen] >= 0]
    alike, which, counts = distinct_rows(facts)
    sizes = np.zeros(len(alike), dtype=np.int64)
    np.add.at(sizes, which, session.storage_bytes[chosen])
    paths = [_NUMBER_IN_PATH.sub("*", module.path) for module in session.modules]
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for each, more, times in zip(alike.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        kind, before, known, direction, module, signature, phase_number, line, owner, touched = each
        op, path, layer, phase = (BEFORE if before else UNSEEN), "", "", ""
        if known:
            way = Direction(direction)
            path, layer = paths[module] or outside_modules(way), session.modules[module].class_name
            if not before:
                op, phase = session.signatures[signature].name, session.phases[phase_number] or way.label
        whose = lifetimes.owners[owner]
        where = session.places[line] if known and not before else whose.where
        key = kind, op, path, layer, phase, whose.holder, where, bool(touched)
        nbytes, count = found.get(key, (0, 0))
        found[key] = nbytes + more, count + times
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], -item[1][1], *item[0][:3]))
    return tuple(
        Alive(bytes=nbytes, count=count, kind=StorageKind(kind).key, op=op, module=path, layer=layer, phase=phase,
              holder=holder, where=where, touched=touched)
        for (kind, op, path, layer, phase, holder, where, touched), (nbytes, count) in ordered
    )  # fmt: skip


def memory_fact(memory: MemoryFigures, *, compiled: bool = False) -> str:
    """Peak and what stands of it, in a line; of a ``compiled`` program, whose peak is not known, the least."""
    peak, standing = Quantity(memory.peak_bytes, "B"), Quantity(memory.standing_bytes, "B")
    known = "peak" if memory.followed else "at least"
    least = Quantity(memory.compiled_least_bytes, "B")
    eager = f"compiled at least {least}; run eagerly " if compiled else ""
    return f"{eager}{known} {peak}, of which {standing} was allocated before the step"


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
    peak = memory.peak_bytes
    if not peak:
        return
    kinds = [kind for kind in StorageKind if memory.bytes_alive[:, kind].any() or memory.by_kind[kind]]
    yield table(
        "memory_at_peak",
        "Memory at the peak",
        [*kinds, None],
        ("kind", "", lambda kind: "all" if kind is None else _label(kind.key, memory)),
        ("bytes", "B", lambda kind: peak if kind is None else memory.by_kind[kind]),
        ("share", "%", lambda kind: 1.0 if kind is None else memory.by_kind[kind] / peak),
        ("over the step", "", lambda kind: sparkline(memory.profile(kind, _CHART_WIDTH), peak)),
        optional=("over the step",),
        note="" if memory.followed else _LEAST,
    )
    known = any(group.holder or group.where.line for group in memory.rows)
    owned = [
        ("at", "", lambda group: group.where.at or None),
        ("held by", "", lambda group: group.holder or None),
    ] * known
    yield table(
        "alive_at_peak",
        "Alive at the peak",
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
    kept = f"; kept by `{first.holder}`, {first.where.at}" if first.holder else f"; made at {first.where.at}"
    return f"Memory grows by {Quantity(grown, 'B')} an iteration{full}{kept}."


def memory_series(memory: MemoryFigures) -> Iterable[Series]:
    """Bytes alive over the step, stacked by kind; nothing for a step without storages."""
    kinds = [kind for kind in StorageKind if any(point[kind] for point in memory.timeline)]
    if not kinds:
        return
    records = tuple(float(point.record) for point in memory.timeline)
    yield Series(
        id="memory",
        title="Memory over the step",
        x=Axis(name="op, in the order recorded"),
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
