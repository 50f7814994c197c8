"""Sessions made from single records, and records inserted into a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from rooflight.records.account import NO_PLACE, Place
from rooflight.records.measurement import Measurement
from rooflight.records.record import ModuleEntry, OpRecord
from rooflight.records.session import NO_PARENT, NOWHERE, Columns, Int32, Int64, Lifetimes, Session
from rooflight.records.signature import OpSignature

Entry = TypeVar("Entry", OpSignature, ModuleEntry, Place, str)


def session_of(
    records: Iterable[OpRecord],
    *,
    storage_bytes: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    wall_samples_s: Sequence[float] = (),
    clock: str = "",
) -> Session:
    """The session of records in the order in which they ran, the reverse of ``Session.records``.

    ``storage_bytes[i]`` is the size of storage i; ``reads`` and ``writes`` have such numbers. Records without storages
    are costed like any other, but the fused and the program bound then lack the bytes that pass between them.
    ``times_s`` has one sample per measured step, the same number in each record that was timed; ``wall_samples_s`` are
    the times of whole steps, and ``clock`` names the clock.

    Raises ValueError for records with different numbers of samples, for storages and parents that do not exist, and for
    starts that do not match the storages.
    """
    listed = list(records)
    _check(listed, len(storage_bytes))
    signatures: dict[OpSignature, int] = {}
    modules: dict[ModuleEntry, int] = {}
    phases: dict[str, int] = {}
    functions: dict[str, int] = {}
    places: dict[Place, int] = {NO_PLACE: 0}
    session = Session(
        columns=Columns(
            signature=_numbers(signatures, [record.signature for record in listed]),
            module=_numbers(modules, [record.module for record in listed]),
            phase=_numbers(phases, [record.phase for record in listed]),
            function=_numbers(functions, [record.function for record in listed]),
            place=_numbers(places, [record.place for record in listed]),
            direction=np.array([record.direction for record in listed], dtype=np.int8),
            parent=np.array([NO_PARENT if r.parent is None else r.parent for r in listed], dtype=np.int32),
            read_offsets=_offsets([record.reads for record in listed]),
            read_ids=np.array([i for record in listed for i in record.reads], dtype=np.int32),
            read_starts=_starts([(record.reads, record.read_starts) for record in listed]),
            written_offsets=_offsets([record.writes for record in listed]),
            written_ids=np.array([i for record in listed for i in record.writes], dtype=np.int32),
            written_starts=_starts([(record.writes, record.write_starts) for record in listed]),
        ),
        signatures=tuple(signatures),
        modules=tuple(modules),
        phases=tuple(phases),
        functions=tuple(functions),
        places=tuple(places),
        storage_bytes=np.array(storage_bytes, dtype=np.int64),
        environment=dict(environment or {}),
        notes=tuple(notes),
    )
    steps = max((len(record.times_s) for record in listed), default=0)
    if not steps and not len(wall_samples_s):
        return session
    samples = [record.times_s or (np.nan,) * steps for record in listed]
    return session.with_measurement(
        Measurement(
            wall_samples_s=np.array(wall_samples_s, dtype=np.float64),
            op_samples_s=np.array(samples, dtype=np.float64).reshape(len(listed), steps).T,
            clock=clock,
        )
    )


def _check(records: Sequence[OpRecord], storages: int) -> None:
    steps = {len(record.times_s) for record in records if record.times_s}
    if len(steps) > 1:
        raise ValueError(f"records have {min(steps)} to {max(steps)} times: give each the same number, or none")
    for number, record in enumerate(records):
        if beyond := [i for i in (*record.reads, *record.writes) if not 0 <= i < storages]:
            raise ValueError(f"record {number} touches storage {beyond[0]}: storage_bytes has {storages} sizes")
        for ids, starts in ((record.reads, record.read_starts), (record.writes, record.write_starts)):
            if starts and (len(starts) != len(ids) or min(starts) < NOWHERE):
                raise ValueError(f"record {number}: give a start of 0 or more for each storage it touches, or none")
        if record.parent is not None and not (0 <= record.parent < len(records) and record.parent != number):
            raise ValueError(f"record {number} has parent {record.parent}: there is no such other record")


def _numbers(table: dict[Entry, int], entries: Sequence[Entry]) -> Int32:
    return np.array([table.setdefault(entry, len(table)) for entry in entries], dtype=np.int32)


def _offsets(ids: Sequence[tuple[int, ...]]) -> Int64:
    return np.cumsum([0, *map(len, ids)]).astype(np.int64)


def _starts(touched: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Int64:
    return np.array([start for ids, starts in touched for start in starts or (NOWHERE,) * len(ids)], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where in the program a record belongs, by the numbers of the session's tables."""

    module: int
    phase: int
    direction: int
    function: int
    place: int = 0

    @classmethod
    def of(cls, session: Session, record: int) -> Scope:
        """That of a record."""
        return cls(**{each.name: int(getattr(session.columns, each.name)[record]) for each in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """A record to insert in front of record ``before``, or at the end. It writes the storage ``written`` and has the
    module, phase, direction, function and line of ``place``.
    """

    before: int
    place: Scope
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
        columns=_columns_with(session.columns, new, places, signatures),
        lifetimes=None if session.lifetimes is None else _lifetimes_with(session.lifetimes, new, places),
        measurement=None if session.measurement is None else _measurement_with(session.measurement, places),
    )


def _columns_with(columns: Columns, new: Sequence[Insertion], places: Int64, signatures: Sequence[int]) -> Columns:
    parent = columns.parent.astype(np.int64)
    parent = np.where(parent == NO_PARENT, NO_PARENT, parent + np.searchsorted(places, parent, side="right"))
    return Columns(
        signature=np.insert(columns.signature, places, np.array(signatures, dtype=np.int32)),
        **{
            each.name: np.insert(getattr(columns, each.name), places, [getattr(one.place, each.name) for one in new])
            for each in fields(Scope)
        },
        parent=np.insert(parent, places, NO_PARENT).astype(np.int32),
        read_offsets=_offsets_with(columns.read_offsets, places, 0),
        read_ids=columns.read_ids,
        read_starts=columns.read_starts,
        written_offsets=_offsets_with(columns.written_offsets, places, 1),
        written_ids=np.insert(
            columns.written_ids,
            columns.written_offsets[places],
            np.array([insertion.written for insertion in new], dtype=np.int32),
        ),
        written_starts=np.insert(columns.written_starts, columns.written_offsets[places], NOWHERE),
    )


def _offsets_with(offsets: Int64, places: Int64, count: int) -> Int64:
    counts = np.insert(np.diff(offsets), places, count)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _lifetimes_with(lifetimes: Lifetimes, new: Sequence[Insertion], places: Int64) -> Lifetimes:
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


def _measurement_with(measurement: Measurement, places: Int64) -> Measurement:
    names = ("op_samples_s", "op_starts_s", "op_own_s")
    columns = {name: getattr(measurement, name) for name in names}
    return replace(
        measurement,
        **{
            name: np.insert(column, places, np.nan, axis=1) if column.shape[1] else column
            for name, column in columns.items()
        },
    )
