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
from rooflight.records.record import EVALUATION, STEP, Direction, Held, PhaseMemory, StorageKind, outside_modules
from rooflight.records.session import (
    KEPT,
    NO_PARENT,
    STOOD,
    Int64,
    Lifetimes,
    Session,
    Touches,
    owners,
    touches_of,
)
from rooflight.roofline.distinct import distinct_rows
from rooflight.roofline.memory.allocator import Allocator, Block
from rooflight.roofline.memory.savings import Saving, batch_factor, savings

BEFORE: Final = "(before the step)"
"""What made a storage that was there before the step."""

UNSEEN: Final = "(no recorded op)"
"""What made a storage that came to be without an op: by ``torch.tensor(data)``, or by resizing one."""

_OF_TORCH: Final = ("aten::", "prim", "c10d", "_c10d", "higher_order::", "inductor::", "rooflight::", "profiler::")
_POINTS: Final = 200
_NUMBER_IN_PATH = re.compile(r"(?<![^.])\d+(?![^.])")
_AS_FULL: Final = 0.98  # of a phase: a recorded part of it that shows what is alive
_MUCH_CACHED: Final = 0.02  # of what is reserved


class KindBytes(Fields, frozen=True, kw_only=True):
    """Bytes alive, by what they are for: one field for each ``StorageKind``, which is an index as well."""

    data: int
    parameter: int
    gradient: int
    optimizer_state: int
    activation: int
    temporary: int
    other: int
    buffer: int
    cache: int

    def __getitem__(self, kind: StorageKind) -> int:
        return int(getattr(self, kind.key))


class MemoryPoint(KindBytes, frozen=True, kw_only=True):
    """Bytes alive while a record ran, the fullest of its stretch of the step; ``phase`` is that of the record."""

    record: int
    phase: str


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

    - ``peak_bytes``: the most that is alive in any ``phase`` of the script that was followed (of all ``phases``);
      ``rows`` are what is alive then. ``allocated_bytes`` is the same in blocks of CUDA's allocator, ``reserved_bytes``
      what it takes of the device for them.
    - ``low_bytes`` and ``high_bytes``: what is needed at the least, and with blocks that stay unused or, if more, while
      a custom op runs that copies what it reads and writes (``inside_custom_ops_bytes``; 0: there is none).
    - ``step_bytes``: the peak of the recorded step, while one record, ``peak_record``, runs (-1 in an empty session),
      with its results, and without memory that its kernel allocates and frees; ``by_kind`` and ``timeline`` are of it.
    - ``standing_bytes`` were allocated before the first record. ``device_bytes`` is what the device has;
      ``resident_bytes`` the most that the script's process had in the host's memory (0: not known).
    - ``growth_bytes``: what an iteration leaves behind (``growth`` by line and holder; None: not followed), and
      ``iterations_until_full`` how often that fits the device.
    - ``savings``: changes that need less. ``batch_factor``: how many times the batch of the step fits.
    - ``followed``: the session has the kind of each storage and when it was freed. Otherwise each is assumed to live
      from the op that made it to the last that used it, which is the least that the step needs, and all storages from
      before the step count as data.
    - ``compiled_least_bytes``: what compiled code needs at the least, if it computes no product twice: what stood
      before, and what was made and must live where backward passes begin and end. Of other programs the former alone.
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
    inside_custom_ops_bytes: int = 0
    growth: tuple[Held, ...] = ()
    phases: tuple[PhaseMemory, ...] = ()
    resident_bytes: int = 0
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
    allocated, reserved = _blocks(sizes, lifetimes)
    figures = _of_script(session, device_bytes, step_bytes, allocated, reserved)
    inside = _inside_custom_ops(session, totals)
    figures["rows"] = _rows_beside(session, figures) or _alive(session, lifetimes, touches, peak_record)
    stands = [(n, sizes[stood & ((lifetimes.freed == KEPT) | (lifetimes.freed > record))].sum()) for record, n in kept]
    before = [sizes[stood & (lifetimes.kind == kind)].sum() for kind in StorageKind]
    return MemoryUse(
        followed=session.lifetimes is not None,
        **figures,
        step_bytes=step_bytes,
        compiled_least_bytes=max([standing_bytes, *(n + int(standing) for n, standing in stands)]),
        savings=(*(savings(session, costs) if len(costs) else ()), *_emptied(figures, reserved)),
        batch_factor=batch_factor(session, device_bytes) if device_bytes else None,
        high_bytes=max(figures["reserved_bytes"], inside),
        inside_custom_ops_bytes=inside,
        standing_bytes=standing_bytes,
        device_bytes=device_bytes,
        peak_record=peak_record,
        by_kind=KindBytes(**_by_kind(bytes_alive[peak_record] if len(totals) else before)),
        timeline=tuple(_points(session, bytes_alive, totals)),
        bytes_alive=bytes_alive,
    )


def _of_script(
    session: Session, device_bytes: int | None, step_bytes: int, allocated: int, reserved: int
) -> dict[str, Any]:
    """The figures of the phase that needs most: of the step, or of another that the script was seen in."""
    script = session.run.memory if session.run is not None else None
    phases = script.phases if script is not None else ()
    fullest = max(phases, key=lambda each: each.allocated_bytes, default=None)
    peak, phase = step_bytes, STEP
    rows: tuple[Alive, ...] = ()
    if fullest is not None and fullest.phase != STEP and fullest.allocated_bytes > allocated:
        peak = allocated = fullest.allocated_bytes
        phase = fullest.phase
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
        "reserved_bytes": max([reserved, *(each.reserved_bytes for each in phases)]),
        "low_bytes": peak,
        "growth_bytes": grown,
        "iterations_until_full": left // grown if grown and left is not None else None,
        "phase": phase,
        "phases": phases,
        "resident_bytes": script.resident_bytes if script is not None else 0,
        "growth": script.growth if script is not None else (),
        "rows": rows,
    }


def _rows_beside(session: Session, figures: dict[str, Any]) -> tuple[Alive, ...]:
    """What is alive at the peak where that is of another phase: by what was recorded of that, else by lines alone."""
    if session.evaluation is not None and figures["phase"] == EVALUATION:
        evaluation = memory_use(session.evaluation)
        if evaluation.step_bytes > _AS_FULL * figures["peak_bytes"]:
            return evaluation.rows
    rows: tuple[Alive, ...] = figures["rows"]
    return rows


def _emptied(figures: dict[str, Any], own_reserved: int) -> Iterable[Saving]:
    """What ``empty_cache()`` between phases would give back: blocks that are of a size that only another phase needs.
    The step reserves ``own_reserved`` bytes, where nothing was cached before.
    """
    others = [each.allocated_bytes for each in figures["phases"] if each.phase != STEP]
    less = figures["reserved_bytes"] - max([own_reserved, *others])
    if others and less >= _MUCH_CACHED * figures["reserved_bytes"]:
        change = "torch.cuda.empty_cache() between phases, of what is reserved"
        yield Saving(id="empty-cache", change=change, saved_bytes=less, peak_bytes=figures["peak_bytes"])


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


def _inside_custom_ops(session: Session, totals: Int64) -> int:
    """The most that is alive while a custom op runs, if it makes a copy of all that it reads and writes; 0 if none."""
    custom = np.array([not op.name.startswith(_OF_TORCH) for op in session.signatures], dtype=np.bool_)
    columns, sizes = session.columns, session.storage_bytes
    touched = np.zeros(len(session), dtype=np.int64)
    for ids, offsets in ((columns.read_ids, columns.read_offsets), (columns.written_ids, columns.written_offsets)):
        np.add.at(touched, owners(offsets), sizes[ids])
    running = custom[columns.signature] & (columns.parent == NO_PARENT)
    return int((totals + touched)[running].max(initial=0))


def _by_kind(sizes: Int64 | Sequence[int]) -> dict[str, int]:
    return {kind.key: int(sizes[kind]) for kind in StorageKind}


def _points(session: Session, bytes_alive: Int64, totals: Int64) -> Iterable[MemoryPoint]:
    edges = np.unique(np.linspace(0, len(totals), min(_POINTS, len(totals)) + 1).astype(np.int64))
    for start, end in pairwise(edges):
        record = int(start + totals[start:end].argmax())
        phase = session.phases[session.columns.phase[record]] or Direction(session.columns.direction[record]).label
        yield MemoryPoint(record=record, phase=phase, **_by_kind(bytes_alive[record]))


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
    kind[stood] = StorageKind.DATA
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
