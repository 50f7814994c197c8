"""Which records of a session read and write each storage first, and touch it last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.records.session import Int32, Int64, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Touches:
    """Numbers of records, one per storage. Never is ``len(session)`` as a first, and -1 as a last."""

    first_read: Int64
    first_written: Int64
    last: Int64

    @property
    def first(self) -> Int64:
        """The first record that reads or writes it."""
        return np.minimum(self.first_read, self.first_written)


def touches_of(session: Session) -> Touches:
    """The touches of every storage, those by children of composites included."""
    columns, storages, count = session.columns, len(session.storage_bytes), len(session)
    readers, writers = owners(columns.read_offsets), owners(columns.written_offsets)
    last = np.full(storages, -1, dtype=np.int64)
    np.maximum.at(last, columns.read_ids, readers)
    np.maximum.at(last, columns.written_ids, writers)
    return Touches(
        first_read=_first(columns.read_ids, readers, storages, count),
        first_written=_first(columns.written_ids, writers, storages, count),
        last=last,
    )


def owners(offsets: Int64) -> Int64:
    """The record that each flat entry of a column belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _first(ids: Int32, records: Int64, storages: int, never: int) -> Int64:
    first = np.full(storages, never, dtype=np.int64)
    np.minimum.at(first, ids, records)
    return first
