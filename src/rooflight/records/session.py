"""Session: the records of a run, in columns, and where they were taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.record import Direction, ModuleEntry, OpRecord, phase_name
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.records.timeline import Timeline
from rooflight.records.visible import visible

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Float64 = NDArray[np.float64]
Flags = NDArray[np.bool_]

NO_PARENT = -1
BUSY_SHARE = 0.05
"""If other programs take at least this share of the CPU during a measurement, reports doubt its roofs and times."""
SAME_STEP = 0.9
"""Share of calls that a timed step must have in common with the recorded one to count as the same step."""
NOWHERE = -1
"""Entry of a column of starts: it is not known where in its storage the tensor begins."""
KEPT = -1
"""Entry of ``Lifetimes.freed`` for a storage that was never freed."""
STOOD = -1
"""Entry of ``Lifetimes.made`` for a storage that was allocated before the first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One entry per executed op. The ids of the storages that ops touch are flat; n + 1 offsets cut them into ops.

    The starts have one entry per id: where in that storage the tensor that was touched begins, in elements; ``NOWHERE``
    where that is not known.
    """

    signature: Int32
    module: Int32
    phase: Int32
    function: Int32
    direction: Int8
    parent: Int32
    read_offsets: Int64
    read_ids: Int32
    read_starts: Int64
    written_offsets: Int64
    written_ids: Int32
    written_starts: Int64

    def __len__(self) -> int:
        return len(self.signature)

    def __repr__(self) -> str:
        return f"Columns({count_of(len(self), 'record')})"

    def named_arrays(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Each column with its name, in a fixed order."""
        for column in fields(self):
            yield column.name, getattr(self, column.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times of a recorded step, taken in passes of their own.

    ``wall_samples_s`` are whole steps with no instrument running; ``op_samples_s`` has one row per profiled step and
    one column per record, NaN for a record without a time; ``op_starts_s``, of the same shape or without rows, has when
    each began, counted from the start of its step; ``clock`` names the clock.

    ``others_share`` is the share of the CPU, of 1, that other programs took while whole steps were timed.
    ``same_calls`` is the share of calls, of the same op on the same shapes, that the recorded step and the timed one
    have in common. Both are None where they are not known. ``timeline`` is what the device did meanwhile, None where
    that was not measured.
    """

    wall_samples_s: Float64
    op_samples_s: Float64
    clock: str
    op_starts_s: Float64 = field(default_factory=lambda: np.empty((0, 0)))
    others_share: float | None = None
    same_calls: float | None = None
    timeline: Timeline | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much of the CPU that the times may be theirs."""
        return self.others_share is not None and self.others_share >= BUSY_SHARE

    @property
    def of_the_session(self) -> bool:
        """Whether the timed step is the recorded one, as far as is known; if not, no bound is compared with it."""
        return self.same_calls is None or self.same_calls >= SAME_STEP

    def __repr__(self) -> str:
        steps, wall = count_of(len(self.wall_samples_s), "step"), self.wall_s
        median = "" if wall is None else f", median {Quantity(wall, 's')}"
        return visible(f"Measurement({steps}{median}, {self.clock})")

    @property
    def wall_s(self) -> float | None:
        """Median time of a whole step."""
        return float(np.median(self.wall_samples_s)) if len(self.wall_samples_s) else None

    @property
    def op_s(self) -> Float64:
        """Median time of each record, NaN where there is none."""
        samples = self.op_samples_s
        if samples.shape[0] == 0:
            return np.full(samples.shape[1], np.nan)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.median(samples, axis=0), dtype=np.float64)


def other_step(measurement: Measurement) -> str:
    """In a sentence, how a timed step differs from the recorded one; empty where it is the recorded one."""
    if measurement.of_the_session:
        return ""
    found = measurement.same_calls
    if not found:
        return (
            "the timed step and the recorded one have no call in common: it is another step, its shapes change from "
            "run to run, or its ops ran in another thread or process, where a recording does not see them; its time is "
            "not compared with the bound"
        )
    return (
        f"the timed step and the recorded one have only {percent(found)} of their calls in common: it is another step, "
        "or its shapes change from run to run; its time is not compared with the bound"
    )


class Returned(NamedTuple):
    """A tensor that a call of an outermost module returned: it begins so many elements into this storage."""

    storage: int
    start: int
    tensor: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """The ``kind`` of each storage (a ``StorageKind``), and when it was allocated and freed. ``made[i]`` is the number
    of the first record that ran after storage i was allocated, or ``STOOD`` if it was allocated before the recording;
    ``freed[i]`` is how many records had run when it was freed, or ``KEPT`` if it never was. ``local[i]``: it was
    allocated in a call of an outermost module and freed before that returned, so that the caller never had it.
    ``returned``: what such calls returned; if that has objects other than lists, tuples and dicts, also all that the
    call allocated and left. Storages that no record touches, such as those of unused parameters, are included. A
    gradient that autograd would add to in place, were it not recorded, counts as freed before the record that does so.
    """

    kind: Int8
    made: Int32
    freed: Int32
    local: Flags
    returned: tuple[Returned, ...] = ()

    def __repr__(self) -> str:
        return f"Lifetimes({count_of(len(self.kind), 'storage')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A recorded run. Immutable: measuring or merging makes a new session.

    ``signatures``, ``modules``, ``phases`` and ``functions`` are the tables that the columns index;
    ``storage_bytes[i]`` is the size of storage i. ``lifetimes``, None unless the recording followed memory, has the
    kind of each storage and when it was freed. ``environment`` describes the machine it ran on.
    """

    signatures: tuple[OpSignature, ...]
    modules: tuple[ModuleEntry, ...]
    phases: tuple[str, ...]
    columns: Columns
    storage_bytes: Int64
    functions: tuple[str, ...] = ("",)
    lifetimes: Lifetimes | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    measurement: Measurement | None = None

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        where = self.environment.get("device_kind", "")
        place = self.environment.get({"cuda": "gpu"}.get(where, where), where)
        wall = self.measurement.wall_s if self.measurement else None
        parts = [
            count_of(int(self.counted.sum()), "op"),
            count_of(len(self._phases_seen()), "phase"),
            *([f"recorded on {place}"] if place else []),
            *([f"measured {Quantity(wall, 's')}"] if wall is not None else []),
        ]
        return visible(f"Session({', '.join(parts)})")

    def _phases_seen(self) -> set[str]:
        """The phases that ops ran in, under their names in reports; outside named phases these are directions."""
        columns = self.columns
        pairs = np.unique(columns.phase[self.counted] * len(Direction) + columns.direction[self.counted]).tolist()
        others = any(self.phases[pair // len(Direction)] for pair in pairs)
        return {
            phase_name(self.phases[pair // len(Direction)], Direction(pair % len(Direction)), others=others)
            for pair in pairs
        }

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which records totals count: those without a parent."""
        return np.asarray(self.columns.parent == NO_PARENT)

    @property
    def records(self) -> Iterator[OpRecord]:
        """The records one by one; for a million of them use the columns."""
        return (self.record(index) for index in range(len(self)))

    def record(self, index: int) -> OpRecord:
        """One record. Raises IndexError beyond the last."""
        columns = self.columns
        reads = columns.read_ids[columns.read_offsets[index] : columns.read_offsets[index + 1]]
        writes = columns.written_ids[columns.written_offsets[index] : columns.written_offsets[index + 1]]
        parent = int(columns.parent[index])
        samples = self.measurement.op_samples_s[:, index] if self.measurement else ()
        return OpRecord(
            signature=self.signatures[columns.signature[index]],
            module=self.modules[columns.module[index]],
            phase=self.phases[columns.phase[index]],
            direction=Direction(int(columns.direction[index])),
            function=self.functions[columns.function[index]],
            reads=tuple(int(i) for i in reads),
            writes=tuple(int(i) for i in writes),
            read_starts=_starts(columns.read_starts, columns.read_offsets, index),
            write_starts=_starts(columns.written_starts, columns.written_offsets, index),
            parent=None if parent == NO_PARENT else parent,
            times_s=tuple(float(s) for s in samples),
        )

    def with_measurement(self, measurement: Measurement) -> Session:
        """The same session with times. Raises ValueError if the samples are of another number of records."""
        if measurement.op_samples_s.shape[1] != len(self):
            raise ValueError(
                f"times of {count_of(measurement.op_samples_s.shape[1], 'record')} for a session of {len(self)}"
            )
        if len(measurement.op_starts_s) and measurement.op_starts_s.shape != measurement.op_samples_s.shape:
            raise ValueError("the starts of ops do not belong to the same steps as their times")
        return replace(self, measurement=measurement)

    def save(self, path: str | Path) -> Path:
        """Write the session to one compressed file, all of it or nothing. Returns the path."""
        from rooflight.records.archive import save

        return save(self, Path(path))


def _starts(starts: Int64, offsets: Int64, index: int) -> tuple[int, ...]:
    found: tuple[int, ...] = tuple(starts[offsets[index] : offsets[index + 1]].tolist())
    return () if all(start == NOWHERE for start in found) else found
