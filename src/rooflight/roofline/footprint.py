"""How much memory a recorded step needs at least, from when each storage is first and last touched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.records.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """``standing_bytes`` were there before the step: parameters, optimizer state, inputs. ``peak_bytes`` adds the most
    that temporaries held at once, each from the op that made it to the last op that used it.
    """

    standing_bytes: int
    peak_bytes: int


def footprint_of(session: Session) -> Footprint:
    """The least memory the session's step needs: what frees later than it could is not counted."""
    columns, count = session.columns, len(session)
    storages = len(session.storage_bytes)
    if not storages:
        return Footprint(standing_bytes=0, peak_bytes=0)
    first_read = _first(columns.read_ids, columns.read_offsets, storages, count)
    first_written = _first(columns.written_ids, columns.written_offsets, storages, count)
    last = np.maximum(
        _last(columns.read_ids, columns.read_offsets, storages),
        _last(columns.written_ids, columns.written_offsets, storages),
    )
    standing = (first_read <= first_written) & (last >= 0)
    made = ~standing & (last >= 0)
    sizes = session.storage_bytes
    change = np.zeros(count + 2, dtype=np.int64)
    np.add.at(change, first_written[made], sizes[made])
    np.add.at(change, last[made] + 1, -sizes[made])
    standing_bytes = int(sizes[standing].sum())
    return Footprint(standing_bytes=standing_bytes, peak_bytes=standing_bytes + int(np.cumsum(change).max()))


def _owners(offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _first(ids: np.ndarray, offsets: np.ndarray, storages: int, never: int) -> np.ndarray:
    first = np.full(storages, never, dtype=np.int64)
    np.minimum.at(first, ids, _owners(offsets))
    return first


def _last(ids: np.ndarray, offsets: np.ndarray, storages: int) -> np.ndarray:
    last = np.full(storages, -1, dtype=np.int64)
    np.maximum.at(last, ids, _owners(offsets))
    return last
