"""How much memory a recorded step takes: at its peak and over time, by what it is for, and who made what is alive."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from rooflight.records.record import Direction, StorageKind, outside_modules
from rooflight.records.session import KEPT, NO_PARENT, STOOD, Int32, Int64, Lifetimes, Session
from rooflight.records.touches import Touches, touches_of

BEFORE: Final = "(before the step)"
"""What made a storage that was there before the step."""

UNSEEN: Final = "(no recorded op)"
"""What made a storage that came to be without an op: by ``torch.tensor(data)``, or by resizing one."""

_POINTS: Final = 200
_NUMBER_IN_PATH = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Storages alive at the peak that are alike: their kind, the ``op`` that made them, and where.

    ``module`` is a qualified name with ``*`` for its numbers, so that the same of every layer is one entry: of the
    module whose op made it or, for what stood before, first used it. ``layer`` is the class of that module. ``bytes``
    are of all ``count`` together.
    """

    bytes: int
    count: int
    kind: StorageKind
    op: str
    module: str
    layer: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Bytes alive while a record ran, by kind."""

    record: int
    by_kind: Mapping[StorageKind, int]

    @property
    def bytes(self) -> int:
        """All that was alive."""
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of storages by their sizes: an allocator rounds up, keeps some back and adds its own.

    ``peak_bytes`` is the most that is alive while one record, ``peak_record``, runs (-1 in an empty session), with the
    record's results, and without memory that its kernel allocates and frees. ``standing_bytes`` were allocated before
    the first record. ``timeline[i, kind]`` are the bytes of a ``StorageKind`` alive while record i runs. ``followed``:
    the session has the kind of each storage and when it was freed. Otherwise each storage is assumed to live from the
    op that made it to the last that used it, which is the least that the step needs, and all storages from before the
    step count as inputs.
    """

    followed: bool
    peak_bytes: int
    standing_bytes: int
    peak_record: int
    by_kind: Mapping[StorageKind, int]
    timeline: Int64
    alive: tuple[Alive, ...]

    def points(self, most: int = _POINTS) -> tuple[Point, ...]:
        """The timeline cut into at most so many stretches, the fullest record of each; the peak is one of them."""
        totals = self.timeline.sum(axis=1)
        edges = np.unique(np.linspace(0, len(totals), min(most, len(totals)) + 1).astype(np.int64))
        fullest = [int(start + totals[start:end].argmax()) for start, end in pairwise(edges)]
        return tuple(Point(record=record, by_kind=self._by_kind(record)) for record in fullest)

    def _by_kind(self, record: int) -> dict[StorageKind, int]:
        return {kind: int(self.timeline[record, kind]) for kind in StorageKind}

    def profile(self, kind: StorageKind | None, width: int) -> list[int]:
        """The most bytes of a kind (None for all together) in each of ``width`` stretches of the step."""
        bytes_alive = self.timeline.sum(axis=1) if kind is None else self.timeline[:, kind]
        count = len(bytes_alive)
        edges = [place * count // width for place in range(width + 1)]
        return [int(bytes_alive[start : max(end, start + 1)].max(initial=0)) for start, end in pairwise(edges)]


def memory_use(session: Session) -> MemoryUse:
    """The memory of a session's step: as it was followed, or from when each storage is touched first and last."""
    touches = touches_of(session)
    lifetimes = _touched_lifetimes(session, touches) if session.lifetimes is None else session.lifetimes
    sizes, stood = session.storage_bytes, lifetimes.made == STOOD
    timeline = _timeline(sizes, lifetimes, len(session))
    standing_bytes = int(sizes[stood].sum())
    totals = timeline.sum(axis=1)
    peak_record = int(totals.argmax()) if len(totals) else -1
    before = [sizes[stood & (lifetimes.kind == kind)].sum() for kind in StorageKind]
    return MemoryUse(
        followed=session.lifetimes is not None,
        peak_bytes=int(totals[peak_record]) if len(totals) else standing_bytes,
        standing_bytes=standing_bytes,
        peak_record=peak_record,
        by_kind={kind: int(timeline[peak_record, kind] if len(totals) else before[kind]) for kind in StorageKind},
        timeline=timeline,
        alive=_alive(session, lifetimes, touches, peak_record),
    )


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
    return Lifetimes(kind=kind, made=made, freed=freed, local=np.zeros(len(kind), dtype=np.bool_))


def _timeline(sizes: Int64, lifetimes: Lifetimes, count: int) -> Int64:
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
    labels = _Labels(session)
    stood = made[chosen] == STOOD
    seen = stood | (touches.first_written[chosen] == made[chosen])
    # what stood before belongs where it was first used
    place = np.where(stood, touches.first[chosen], np.where(seen, made[chosen], len(session)))
    place = labels.accountable(place)
    keys = [
        lifetimes.kind[chosen],
        np.where(stood, -1, labels.op[place]),
        labels.module[place],
        labels.direction[place],
        np.where(stood, -1, labels.phase[place]),
    ]
    # one number a storage: numpy sorts rows of numbers ten times slower
    shifted = [np.asarray(key, dtype=np.int64) + 1 for key in keys]
    limits = tuple(int(key.max()) + 1 for key in shifted)
    numbers, inverse, counts = np.unique(np.ravel_multi_index(shifted, limits), return_inverse=True, return_counts=True)
    groups = np.stack(np.unravel_index(numbers, limits)) - 1
    sizes = np.zeros(len(counts), dtype=np.int64)
    np.add.at(sizes, inverse.ravel(), session.storage_bytes[chosen])
    found = [
        labels.alive(group, size, count)
        for group, size, count in zip(groups.T.tolist(), sizes.tolist(), counts.tolist(), strict=True)
    ]
    return tuple(sorted(found, key=lambda alive: (-alive.bytes, -alive.count, alive.kind, alive.op, alive.module)))


class _Labels:
    """Small numbers by record for what storages are grouped by, with one entry more, for no record at all."""

    def __init__(self, session: Session) -> None:
        columns = session.columns
        ops: dict[str, int] = {}
        modules: dict[tuple[str, str], int] = {}
        by_signature = [ops.setdefault(op.name, len(ops)) for op in session.signatures]
        by_module = [
            modules.setdefault((_NUMBER_IN_PATH.sub("*", module.path), module.class_name), len(modules))
            for module in session.modules
        ]
        self._ops, self._modules = [*ops, UNSEEN], [*modules, ("", "")]
        self._phases = session.phases
        self.op = self._column(by_signature, columns.signature, len(ops))
        self.module = self._column(by_module, columns.module, len(modules))
        self.phase = self._column(list(range(len(session.phases))), columns.phase, -1)
        self.direction = np.append(columns.direction, -1).astype(np.int64)
        self._parent = columns.parent

    def _column(self, numbers: list[int], column: Int32, nothing: int) -> Int64:
        return np.append(np.array(numbers, dtype=np.int64)[column], nothing)

    def accountable(self, records: Int64) -> Int64:
        """The records that account for these: of a part of a composite, the composite."""
        parent = np.append(self._parent, NO_PARENT)
        while (inside := parent[records] != NO_PARENT).any():
            records = np.where(inside, parent[records], records)
        return records

    def alive(self, group: list[int], size: int, count: int) -> Alive:
        """The storages of one group, by its numbers."""
        kind, op, module, direction, phase = group
        path, layer = self._modules[module]
        known = Direction(direction) if direction >= 0 else None
        if not path:
            path = "" if known is None else outside_modules(known)
        named = self._phases[phase] if phase >= 0 else ""
        made_in = named or (known.label if known is not None and op >= 0 else "")
        return Alive(
            bytes=size,
            count=count,
            kind=StorageKind(kind),
            op=BEFORE if op < 0 else self._ops[op],
            module=path,
            layer=layer,
            phase=made_in,
        )
