"""Session: the records of a run, in columns, and where they were taken."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.records.account import NO_PLACE, Place
from rooflight.records.document import encoded
from rooflight.records.files import whole_file
from rooflight.records.measurement import Measurement
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import NO_OWNER, Direction, ModuleEntry, OpRecord, Owner, phase_name
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.records.timeline import HostTime, Run, Timeline
from rooflight.records.visible import visible

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Flags = NDArray[np.bool_]

NO_PARENT = -1
NOWHERE = -1
"""Entry of a column of starts: it is not known where in its storage the tensor begins."""
KEPT = -1
"""Entry of ``Lifetimes.freed`` for a storage that was never freed."""
STOOD = -1
"""Entry of ``Lifetimes.made`` for a storage that was allocated before the first record."""

SCHEMA_PREFIX: Final = "rooflight.session/"
BESIDE: Final = "evaluation/"
"""The folder of a session's file that has the session of an evaluation."""
VERSION: Final = 6
"""Of the format of saved sessions."""


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
    place: Int32
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


class Returned(NamedTuple):
    """A tensor that a call of an outermost module returned: it begins so many elements into this storage."""

    storage: int
    start: int
    tensor: TensorSpec


class Uncounted(NamedTuple):
    """Calls of ops that ran but are no records, and the bytes of their tensors."""

    calls: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    bytes: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


ALL_COUNTED: Final = Uncounted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """The ``kind`` of each storage (a ``StorageKind``), and when it was allocated and freed. ``made[i]`` is the number
    of the first record that ran after storage i was allocated, or ``STOOD`` if it was allocated before the recording;
    ``freed[i]`` is how many records had run when it was freed, or ``KEPT`` if it never was. ``local[i]``: it was
    allocated in a call of an outermost module and freed before that returned, so that the caller never had it.
    ``returned``: what such calls returned; if that has objects other than lists, tuples and dicts, also all that the
    call allocated and left. ``owner[i]`` is the place among ``owners`` of who held it at the end. Storages that no
    record touches, such as those of unused parameters, are included. A gradient that autograd would add to in place,
    were it not recorded, counts as freed before the record that does so.
    """

    kind: Int8
    made: Int32
    freed: Int32
    local: Flags
    owner: Int32
    owners: tuple[Owner, ...] = (NO_OWNER,)
    returned: tuple[Returned, ...] = ()

    def __repr__(self) -> str:
        return f"Lifetimes({count_of(len(self.kind), 'storage')})"


DECODED: Final = "tokens_decoded"
"""The entry of ``Session.environment`` with the tokens that a decode step makes, one for each sequence."""
CACHED: Final = "tokens_cached"
"""The entry with the tokens of each sequence that a decode step finds cached, whether or not all layers keep them."""
COMPILED: Final = "compiled"
"""In a session's environment: "yes" where the original code of compiled functions ran, ``AS_KERNELS`` where the kernels
that a compiler wrote are among the ops, as in a trace.
"""
AS_KERNELS: Final = "as kernels"
PINS: Final = "pins_memory"
"""In a session's environment: "yes" or "no", whether the script pinned memory of the host, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A recorded run. Immutable: measuring or merging makes a new session.

    ``signatures``, ``modules``, ``phases``, ``functions`` and ``places`` are the tables that the columns index;
    ``storage_bytes[i]`` is the size of storage i. ``lifetimes``, None unless the recording followed memory, has the
    kind of each storage and when it was freed. ``other_threads`` is what ran in threads that began inside the
    recording. ``environment`` describes the machine it ran on, ``run`` the script that the step is of, if Rooflight ran
    it, and ``evaluation`` is a batch of an evaluation that the script did beside its steps.
    """

    signatures: tuple[OpSignature, ...]
    modules: tuple[ModuleEntry, ...]
    phases: tuple[str, ...]
    columns: Columns
    storage_bytes: Int64
    functions: tuple[str, ...] = ("",)
    places: tuple[Place, ...] = (NO_PLACE,)
    lifetimes: Lifetimes | None = None
    other_threads: Uncounted = ALL_COUNTED
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    measurement: Measurement | None = None
    run: Run | None = None
    evaluation: Session | None = None

    @property
    def compiled(self) -> bool:
        """Whether the program called functions of torch.compile, whose original code was recorded."""
        return self.environment.get(COMPILED) == "yes"

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
            place=self.places[columns.place[index]],
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
        for other in (measurement.op_starts_s, measurement.op_own_s):
            if len(other) and other.shape != measurement.op_samples_s.shape:
                raise ValueError("the starts or own times of ops do not belong to the same steps as their times")
        return replace(self, measurement=measurement)

    def save(self, path: str | Path) -> Path:
        """Write the session to one compressed file, all of it or nothing. Returns the path."""
        with (
            whole_file(Path(path)) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            self._write(archive)
            if self.evaluation is not None:
                self.evaluation._write(archive, BESIDE)
        return Path(path)

    def _write(self, archive: zipfile.ZipFile, folder: str = "") -> None:
        archive.writestr(f"{folder}header.json", encoded(_header(self)))
        for name, array in self.named_arrays():
            _write_array(archive, f"{folder}{name}", array)

    def named_arrays(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Everything that a saved session has a file of its own for."""
        yield from self.columns.named_arrays()
        yield "storage_bytes", self.storage_bytes
        if self.measurement is not None:
            yield from ((name, getattr(self.measurement, name)) for name in MEASURED_TYPES)
        if self.lifetimes is not None:
            yield from ((f"storage_{name}", getattr(self.lifetimes, name)) for name in LIFETIME_TYPES)


def _starts(starts: Int64, offsets: Int64, index: int) -> tuple[int, ...]:
    found: tuple[int, ...] = tuple(starts[offsets[index] : offsets[index + 1]].tolist())
    return () if all(start == NOWHERE for start in found) else found


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


# -- the form of a saved session: a zip of one JSON header and one .npy file per column--------------------------------

_TYPES: Final[Mapping[Any, Any]] = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64, "Flags": np.bool_}
COLUMN_TYPES: Final[Mapping[str, Any]] = {each.name: _TYPES[each.type] for each in fields(Columns)}
LIFETIME_TYPES: Final[Mapping[str, Any]] = {
    each.name: _TYPES[each.type] for each in fields(Lifetimes) if each.type in _TYPES
}
MEASURED_TYPES: Final[Mapping[str, Any]] = dict.fromkeys(
    ("wall_samples_s", "op_samples_s", "op_starts_s", "op_own_s"), np.float64
)

_Sizes = tuple[int, ...]
TensorRow = tuple[_Sizes, str, _Sizes | None, int, int, tuple[str, _Sizes, int, tuple[_Sizes, ...]] | None]
"""Shape, dtype, strides, storage, offset, and of a packing: layout, shape, bytes of its indices, parts."""

SignatureRow = tuple[
    str,
    Sequence[int],
    Sequence[int],
    tuple[str, ...],
    tuple[tuple[str, int | bool | str | tuple[int | bool, ...] | None], ...],
]
"""Name, the numbers of inputs and outputs among the header's tensors, names of the inputs, attributes."""


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All of a saved session that is in no column."""

    schema: str
    tensors: Sequence[TensorRow]
    signatures: Sequence[SignatureRow]
    modules: Sequence[tuple[str, str]]
    phases: tuple[str, ...]
    functions: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    clock: str | None
    others_share: float | None
    same_calls: float | None
    has_lifetimes: bool
    returned: Sequence[tuple[int, int, TensorRow]]
    timeline: Timeline | None = None
    host: HostTime | None = None
    other_threads: Uncounted = ALL_COUNTED
    run: Run | None = None
    places: tuple[Place, ...] = (NO_PLACE,)
    owners: tuple[Owner, ...] = (NO_OWNER,)


def _header(session: Session) -> Header:
    tensors: dict[TensorSpec, int] = {}

    def numbers(specs: Sequence[TensorSpec]) -> list[int]:
        return [tensors.setdefault(spec, len(tensors)) for spec in specs]

    measured = {
        name: getattr(session.measurement, name, None)
        for name in ("clock", "others_share", "same_calls", "timeline", "host")
    }
    lifetimes = session.lifetimes
    return Header(
        schema=f"{SCHEMA_PREFIX}{VERSION}",
        signatures=[
            (op.name, numbers(op.inputs), numbers(op.outputs), op.input_names, op.attributes)
            for op in session.signatures
        ],
        tensors=[_tensor_row(tensor) for tensor in tensors],
        modules=[(module.path, module.class_name) for module in session.modules],
        phases=session.phases,
        functions=session.functions,
        environment=session.environment,
        notes=session.notes,
        other_threads=session.other_threads,
        run=session.run,
        places=session.places,
        has_lifetimes=lifetimes is not None,
        owners=(NO_OWNER,) if lifetimes is None else lifetimes.owners,
        returned=[
            (one.storage, one.start, _tensor_row(one.tensor)) for one in (lifetimes.returned if lifetimes else ())
        ],
        **measured,
    )


def _tensor_row(tensor: TensorSpec) -> TensorRow:
    packing = tensor.packing
    packed = None if packing is None else (packing.layout, packing.shape, packing.index_bytes, packing.parts)
    return tensor.shape, tensor.dtype, tensor.strides, tensor.storage, tensor.offset, packed


def _write_array(archive: zipfile.ZipFile, name: str, array: NDArray[np.generic]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
