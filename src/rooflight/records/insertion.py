"""Insert records into a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflight.records.session import NO_PARENT, NOWHERE, Columns, Int32, Int64, Lifetimes, Measurement, Session
from rooflight.records.signature import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the program a record belongs, by the numbers of the session's tables."""

    module: int
    phase: int
    direction: int
    function: int

    @classmethod
    def of(cls, session: Session, record: int) -> Place:
        """That of a record."""
        columns = session.columns
        return cls(
            module=int(columns.module[record]),
            phase=int(columns.phase[record]),
            direction=int(columns.direction[record]),
            function=int(columns.function[record]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """A record to insert in front of record ``before``, or at the end. It writes the storage ``written`` and has the
    module, phase, direction and function of ``place``.
    """

    before: int
    place: Place
    signature: OpSignature
    written: int


def with_insertions(session: Session, insertions: Sequence[Insertion]) -> Session:
    """The session with these records inserted. Its other records keep their order, lifetimes and times; the new ones
    have no times.
    """
    if not insertions:
        return session
    new = sorted(insertions, key=lambda insertion: insertion.before)
    places = np.array([insertion.before for insertion in new], dtype=np.int64)
    numbers: dict[OpSignature, int] = {op: number for number, op in enumerate(session.signatures)}
    signatures = [numbers.setdefault(insertion.signature, len(numbers)) for insertion in new]
    return replace(
        session,
        signatures=tuple(numbers),
        columns=_columns(session.columns, new, places, signatures),
        lifetimes=None if session.lifetimes is None else _lifetimes(session.lifetimes, new, places),
        measurement=None if session.measurement is None else _measurement(session.measurement, places),
    )


def _columns(columns: Columns, new: Sequence[Insertion], places: Int64, signatures: Sequence[int]) -> Columns:
    belongs = [insertion.place for insertion in new]
    parent = columns.parent.astype(np.int64)
    parent = np.where(parent == NO_PARENT, NO_PARENT, parent + np.searchsorted(places, parent, side="right"))
    return Columns(
        signature=np.insert(columns.signature, places, np.array(signatures, dtype=np.int32)),
        module=np.insert(columns.module, places, [place.module for place in belongs]),
        phase=np.insert(columns.phase, places, [place.phase for place in belongs]),
        function=np.insert(columns.function, places, [place.function for place in belongs]),
        direction=np.insert(columns.direction, places, [place.direction for place in belongs]),
        parent=np.insert(parent, places, NO_PARENT).astype(np.int32),
        read_offsets=_offsets(columns.read_offsets, places, 0),
        read_ids=columns.read_ids,
        read_starts=columns.read_starts,
        written_offsets=_offsets(columns.written_offsets, places, 1),
        written_ids=np.insert(
            columns.written_ids,
            columns.written_offsets[places],
            np.array([insertion.written for insertion in new], dtype=np.int32),
        ),
        written_starts=np.insert(columns.written_starts, columns.written_offsets[places], NOWHERE),
    )


def _offsets(offsets: Int64, places: Int64, count: int) -> Int64:
    counts = np.insert(np.diff(offsets), places, count)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _lifetimes(lifetimes: Lifetimes, new: Sequence[Insertion], places: Int64) -> Lifetimes:
    """A storage allocated right before a record is allocated after the one inserted there, unless that one writes it;
    one freed, before it.
    """

    def moved(records: Int32, side: str) -> Int32:
        shift = np.searchsorted(places, records, side="right" if side == "right" else "left")
        return np.where(records < 0, records, records + shift).astype(np.int32)

    made = moved(lifetimes.made, "right")
    written = [insertion.written for insertion in new]
    np.minimum.at(made, written, (places + np.arange(len(places))).astype(np.int32))
    return replace(lifetimes, made=made, freed=moved(lifetimes.freed, "left"))


def _measurement(measurement: Measurement, places: Int64) -> Measurement:
    samples, starts = measurement.op_samples_s, measurement.op_starts_s
    return replace(
        measurement,
        op_samples_s=np.insert(samples, places, np.nan, axis=1),
        op_starts_s=np.insert(starts, places, np.nan, axis=1) if len(starts) else starts,
    )
