"""Stretches of a session that share no memory with the rest, as steps do of which each has its own tensors: each is
fused by itself, alike ones once, so that a long session takes little time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from rooflight.records.session import COLUMN_TYPES, KEPT, NO_PARENT, STOOD, Int64, Session, touches_of
from rooflight.roofline.fusion.graph import Region

_LEAST: Final = 256
"""Records of a stretch, but the last: of shorter ones it takes longer to compare them."""


class Stretch(NamedTuple):
    """Records from ``start`` on as a session of their own, and ``key``, the same of all that fuse alike. Storage i of
    it is storage i + ``base`` of the whole.
    """

    start: int
    base: int
    session: Session
    key: bytes


class Copies(Sequence[Region]):
    """The regions of stretches, one after the other, each with the columns of those that it is like."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int, Sequence[Region]]] = []
        self._ends = [0]

    def add(self, stretch: Stretch, regions: Sequence[Region]) -> None:
        """The next stretch, whose regions these are, in its own numbers."""
        self._pieces.append((stretch.start, stretch.base, regions))
        self._ends.append(self._ends[-1] + len(regions))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        piece = int(np.searchsorted(self._ends, place, side="right")) - 1
        start, base, regions = self._pieces[piece]
        found = regions[place - self._ends[piece]]
        return Region(
            records=[record + start for record in found.records],
            reads={storage + base: size for storage, size in found.reads.items()},
            writes={storage + base: size for storage, size in found.writes.items()},
        )

    def columns(self) -> tuple[Int64, Int64, Any, Any]:
        """As those of a ``Fusion``."""
        known: dict[int, tuple[Any, ...]] = {}
        for _, _, regions in self._pieces:
            if id(regions) not in known:
                known[id(regions)] = columns_of(regions)
        found = [(start, *known[id(regions)]) for start, _, regions in self._pieces]
        records = np.concatenate([records + start for start, records, *_ in found])
        sizes, read, written = (np.concatenate([each[place] for each in found]) for place in (2, 3, 4))
        return records, sizes, read, written


def columns_of(regions: Sequence[Region]) -> tuple[Int64, Int64, Any, Any]:
    """All records, region by region, and of each region how many it has and the bytes that it reads and writes."""
    records = np.array([record for region in regions for record in region.records], dtype=np.int64)
    sizes = np.array([len(region.records) for region in regions], dtype=np.int64)
    read = np.array([region.bytes_read for region in regions], dtype=np.float64)
    return records, sizes, read, np.array([region.bytes_written for region in regions], dtype=np.float64)


def stretches(session: Session) -> Iterator[Stretch]:
    """The whole session in stretches; none where it has but one, or more is to be known of it than of its stretches."""
    lifetimes = session.lifetimes
    if len(session) < 2 * _LEAST or session.compiled or (lifetimes is not None and lifetimes.returned):
        return
    cuts = _cuts(session)
    if len(cuts) < 3:
        return
    bases = [_storages(session, start, end) for start, end in pairwise(cuts)]
    if sum(count for _, count in bases) > 2 * len(session.storage_bytes):
        return  # their numbers are mixed
    for (start, end), (base, count) in zip(pairwise(cuts), bases, strict=True):
        yield _stretch(session, slice(start, end), slice(base, base + count))


def _cuts(session: Session) -> list[int]:
    """Records in front of which no storage, and no composite, is used before and after; first and last of all too."""
    touches, parents, count = touches_of(session), session.columns.parent, len(session)
    used, inside = np.flatnonzero(touches.last >= 0), np.flatnonzero(parents != NO_PARENT)
    first = np.concatenate([touches.first[used], np.minimum(inside, parents[inside])])
    last = np.concatenate([touches.last[used], np.maximum(inside, parents[inside])])
    spanned = np.cumsum(np.bincount(first + 1, minlength=count + 2) - np.bincount(last + 1, minlength=count + 2))
    free = np.flatnonzero(spanned[: count + 1] == 0)
    cuts = [0]
    while (place := int(np.searchsorted(free, cuts[-1] + _LEAST))) < len(free):
        cuts.append(int(free[place]))
    if cuts[-1] != count:
        cuts.append(count)
    return cuts


def _touched(session: Session, start: int, end: int) -> Iterator[Any]:
    columns = session.columns
    yield columns.read_ids[columns.read_offsets[start] : columns.read_offsets[end]]
    yield columns.written_ids[columns.written_offsets[start] : columns.written_offsets[end]]


def _storages(session: Session, start: int, end: int) -> tuple[int, int]:
    """The first storage of a stretch, and how many there are up to its last."""
    ids = [each for each in _touched(session, start, end) if len(each)]
    base = min((int(each.min()) for each in ids), default=0)
    return base, max((int(each.max()) + 1 for each in ids), default=base) - base


def _stretch(session: Session, rows: slice, storages: slice) -> Stretch:
    columns = session.columns
    taken: dict[str, Any] = {}
    for name in COLUMN_TYPES:
        side, _, what = name.rpartition("_")
        offsets = getattr(columns, f"{side}_offsets") if side in ("read", "written") else None
        column = getattr(columns, name)
        if offsets is None:
            taken[name] = column[rows]
        elif what == "offsets":
            taken[name] = column[rows.start : rows.stop + 1] - column[rows.start]
        else:
            taken[name] = column[offsets[rows.start] : offsets[rows.stop]]
    taken["parent"] = np.where(taken["parent"] == NO_PARENT, NO_PARENT, taken["parent"] - rows.start)
    for name in ("read_ids", "written_ids"):
        taken[name] = taken[name] - storages.start
    lifetimes, sizes = session.lifetimes, session.storage_bytes[storages]
    compared = [each for name, each in taken.items() if name not in ("module", "phase", "function", "direction")]
    compared.append(sizes)
    if lifetimes is not None:
        count, freed = rows.stop - rows.start, lifetimes.freed[storages]
        late = np.where(freed >= len(session), count, 0)  # when else does not matter
        lifetimes = replace(
            lifetimes,
            kind=lifetimes.kind[storages],
            made=np.where(lifetimes.made[storages] == STOOD, STOOD, 0),
            freed=np.where(freed == KEPT, KEPT, late),
            local=lifetimes.local[storages],
            owner=lifetimes.owner[storages],
        )
        compared += [lifetimes.kind, lifetimes.made, lifetimes.freed, lifetimes.local]
    alone = replace(
        session, columns=replace(columns, **taken), storage_bytes=sizes, lifetimes=lifetimes, measurement=None
    )
    lengths = np.array([len(each) for each in compared])
    return Stretch(rows.start, storages.start, alone, b"".join(each.tobytes() for each in (lengths, *compared)))
