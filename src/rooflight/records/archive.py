"""Reads saved sessions, and refuses those that are damaged, foreign or too new. Nothing in them is ever executed."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from math import inf, prod
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.records.dtypes import ITEM_BYTES
from rooflight.records.measurement import Measurement
from rooflight.records.quantity import Quantity
from rooflight.records.record import Direction, ModuleEntry, StorageKind
from rooflight.records.session import (
    BESIDE,
    COLUMN_TYPES,
    KEPT,
    LIFETIME_TYPES,
    MEASURED_TYPES,
    NO_PARENT,
    NOWHERE,
    SCHEMA_PREFIX,
    STOOD,
    VERSION,
    Columns,
    Header,
    Lifetimes,
    Returned,
    Session,
    TensorRow,
)
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import Packing, TensorSpec
from rooflight.records.visible import shortened

_MOST_PACKED: Final = 100  # a file may unpack to this many times its size; recorded steps unpack to 9 to 15 times
_ALWAYS_ALLOWED_BYTES: Final = 1 << 30  # whatever the size of the file: 10 million alike records, some 100 B each
_MOST_HEADER_BYTES: Final = 1 << 27  # 100,000 signatures take 20 MB, as Python's objects ten times as much
_MOST_BYTES: Final = 1 << 63  # of one tensor: more have no address, and fit no column
_MOST_NOTES: Final = 100


def load(path: str | Path) -> Session:
    """Read a session. Raises FileNotFoundError if there is no such file, ValueError for a file that is damaged, foreign
    or too new, and TypeError for anything but a path.
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"load takes the path of a saved session, not {type(path).__name__}")
    path = Path(path)
    if path.is_dir():
        raise FileNotFoundError(f"no session file {path}: it is a folder, name a file in it")
    if not path.is_file():
        raise FileNotFoundError(f"no session file {path}: record one with rooflight analyze ... --save {path}")
    try:
        with path.open("rb") as file, zipfile.ZipFile(_a_zip(file)) as archive:
            _check_members(archive, path.stat().st_size)
            session = _read(zipfile.Path(archive))
            beside = zipfile.Path(archive, BESIDE)
            return replace(session, evaluation=_read(beside)) if beside.exists() else session
    except _UnreadableError as error:
        raise ValueError(f"{path}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({_one_line(error)}): record it again") from error
    except Exception as error:  # zipfile and numpy raise errors of many kinds for damaged bytes
        raise ValueError(f"{path} is not a whole session file ({_one_line(error)}): record it again") from error


def _read(folder: zipfile.Path) -> Session:
    header = _read_header(folder)
    columns = _read_columns(folder)
    storage_bytes: Any = _read_array(folder, "storage_bytes", np.int64)
    measurement, lifetimes = _read_measurement(folder, header), _read_lifetimes(folder, header)
    session = Session(
        signatures=_signatures(header),
        modules=tuple(ModuleEntry(*map(shortened, row)) for row in header.modules),
        phases=tuple(map(shortened, header.phases)),
        functions=tuple(map(shortened, header.functions)),
        columns=columns,
        storage_bytes=storage_bytes,
        lifetimes=lifetimes,
        other_threads=header.other_threads,
        environment={key: shortened(value) for key, value in header.environment.items()},
        notes=_notes(header.notes),
        run=header.run,
        places=header.places,
    )
    _check(session)
    if header.timeline is not None and len(header.timeline.signature_s) not in (0, len(session.signatures)):
        raise _UnreadableError("its timeline is of other signatures: record it again")
    return session.with_measurement(measurement) if measurement is not None else session


def _a_zip(file: IO[bytes]) -> IO[bytes]:
    """The file, rewound to its start. Refuses a file that is no zip, such as a text or a picture given by mistake."""
    if file.read(2) != b"PK":
        raise _UnreadableError("this is no session: save one with rooflight analyze ... --save FILE, or Session.save")
    file.seek(0)
    return file


class _UnreadableError(Exception):
    """Why a file is not a session that this version can read, and what to do."""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_members(archive: zipfile.ZipFile, size_bytes: int) -> None:
    """Refuse, before anything is unpacked, a file that would unpack to more than a session of its size can. Python
    unpacks no more of a stored or deflated member than the size in its header; other compressions are refused.
    """
    members = archive.infolist()
    if len({member.filename for member in members}) < len(members):
        raise _UnreadableError("it has two parts with the same name: record it again")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise _UnreadableError("its compression is not that of a session: record it again")
    total = sum(member.file_size for member in members)
    if total > max(_ALWAYS_ALLOWED_BYTES, _MOST_PACKED * size_bytes):
        claim = f"{Quantity(size_bytes, 'B')} that unpack to {Quantity(total, 'B')}"
        raise _UnreadableError(f"{claim}, which no recording does: not loaded, record it again")
    if any(each.file_size > _MOST_HEADER_BYTES for each in members if each.filename.endswith("header.json")):
        raise _UnreadableError("its header is larger than any recording's: record it again")


def _tensor(row: TensorRow) -> TensorSpec:
    *_, packed = row
    return TensorSpec(*row[:5], None if packed is None else Packing(*packed))


def _signatures(header: Header) -> tuple[OpSignature, ...]:
    tensors = [_tensor(row) for row in header.tensors]
    if any(index < 0 for _, inputs, outputs, *_ in header.signatures for index in (*inputs, *outputs)):
        raise _UnreadableError("a signature names a tensor that is not there: record it again")
    return tuple(
        OpSignature(
            name=shortened(name),
            inputs=tuple(tensors[index] for index in inputs),
            outputs=tuple(tensors[index] for index in outputs),
            input_names=input_names,
            attributes=attributes,
        )
        for name, inputs, outputs, input_names, attributes in header.signatures
    )


def _notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Few enough to be read: a recording has some ten."""
    kept = tuple(map(shortened, notes[:_MOST_NOTES]))
    left_out = len(notes) - len(kept)
    return (*kept, f"{left_out:,} more notes of the session are left out") if left_out else kept


def _read_header(folder: zipfile.Path) -> Header:
    text = (folder / "header.json").read_bytes()
    schema = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).get("schema")
    name = msgspec.json.decode(schema, type=str) if schema is not None else ""
    number = name.removeprefix(SCHEMA_PREFIX)
    if name == number or not number.isdecimal():
        raise _UnreadableError("not a rooflight session: save one with rooflight analyze ... --save FILE")
    if int(number) > VERSION:
        raise _UnreadableError(
            f"written by a newer rooflight (session version {number}, this one reads {VERSION}): upgrade"
        )
    if int(number) < VERSION:
        raise _UnreadableError(f"written by an older rooflight (session version {number}): record it again")
    return msgspec.json.decode(text, type=Header)


def _read_arrays(folder: zipfile.Path, types: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return {name: _read_array(folder, f"{prefix}{name}", dtype) for name, dtype in types.items()}


def _read_columns(folder: zipfile.Path) -> Columns:
    known = (folder / "place.npy").exists()
    arrays = _read_arrays(folder, {name: kind for name, kind in COLUMN_TYPES.items() if known or name != "place"})
    return Columns(**{"place": np.zeros(len(arrays["signature"]), dtype=np.int32), **arrays})  # new in 0.1


def _read_array(folder: zipfile.Path, name: str, dtype: Any) -> NDArray[np.generic]:
    with (folder / f"{name}.npy").open("rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise _UnreadableError(f"column {name} is of another format: record it again")
        shape, in_columns, found = np.lib.format.read_array_header_1_0(file)
        if found != dtype or in_columns or min(shape, default=0) < 0:
            raise _UnreadableError(f"column {name} holds {found}, not {np.dtype(dtype)}: record it again")
        data = file.read()
        if len(data) != prod(shape) * found.itemsize:
            raise _UnreadableError(f"column {name} does not have the length that its header gives: record it again")
        return np.frombuffer(data, found).reshape(shape)


def _read_measurement(folder: zipfile.Path, header: Header) -> Measurement | None:
    if header.clock is None:
        return None
    known = (folder / "op_own_s.npy").exists()  # new in 0.1
    there = [name for name in MEASURED_TYPES if known or name != "op_own_s"]
    arrays = _read_arrays(folder, {name: MEASURED_TYPES[name] for name in there})
    if [array.ndim for array in arrays.values()] != [1, 2, 2, 2][: len(there)]:
        raise _UnreadableError("op times do not have one row per step: record it again")
    for share in (header.others_share, header.same_calls):
        if share is not None and not 0 <= share <= 1:
            raise _UnreadableError("a share of a measurement is not between 0 and 1: record it again")
    if header.timeline is not None and not all(0 <= seconds < inf for seconds in _seconds_of(header.timeline)):
        raise _UnreadableError("a time of its timeline is not a number from 0 on: record it again")
    return Measurement(
        **arrays,
        clock=header.clock,
        others_share=header.others_share,
        same_calls=header.same_calls,
        timeline=header.timeline,
        host=header.host,
    )


def _seconds_of(part: Any) -> Iterator[float]:
    for each in fields(part):
        value = getattr(part, each.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner):
                yield from _seconds_of(inner)
            elif isinstance(inner, float | int):
                yield inner


def _read_lifetimes(folder: zipfile.Path, header: Header) -> Lifetimes | None:
    if not header.has_lifetimes:
        return None
    returned = tuple(Returned(storage, start, _tensor(row)) for storage, start, row in header.returned)
    known = (folder / "storage_owner.npy").exists()
    arrays = _read_arrays(folder, {n: kind for n, kind in LIFETIME_TYPES.items() if known or n != "owner"}, "storage_")
    arrays = {"owner": np.zeros(len(arrays["kind"]), dtype=np.int32), **arrays}  # new in 0.1
    return Lifetimes(**arrays, owners=header.owners, returned=returned)


def _check(session: Session) -> None:
    """Refuse columns that point outside their tables: a later crash would be far from its cause."""
    columns = session.columns
    if any(array.ndim != 1 for _, array in columns.named_arrays()) or session.storage_bytes.ndim != 1:
        raise _UnreadableError("a column is not a row of numbers: record it again")
    count = len(session)
    tables = {
        "signature": len(session.signatures),
        "module": len(session.modules),
        "phase": len(session.phases),
        "function": len(session.functions),
        "place": len(session.places),
        "direction": len(Direction),
        "read_ids": len(session.storage_bytes),
        "written_ids": len(session.storage_bytes),
    }
    for name, array in columns.named_arrays():
        expected = count + 1 if name.endswith("offsets") else None if name.endswith(("ids", "starts")) else count
        if expected is not None and len(array) != expected:
            raise _UnreadableError(f"column {name} has the wrong length: record it again")
        if name in tables and not _within(array, 0, tables[name]):
            raise _UnreadableError(f"column {name} points outside its table: record it again")
    if not _within(columns.parent, NO_PARENT, count) or not _within(session.storage_bytes, 0, None):
        raise _UnreadableError("column parent or storage_bytes is out of range: record it again")
    lifetimes = session.lifetimes
    if lifetimes is not None and (
        any(getattr(lifetimes, name).shape != session.storage_bytes.shape for name in LIFETIME_TYPES)
        or not _within(lifetimes.kind, 0, len(StorageKind))
        or not _within(lifetimes.made, STOOD, count + 1)
        or not _within(lifetimes.freed, KEPT, count + 1)
        or not _within(lifetimes.owner, 0, len(lifetimes.owners))
        or any(not 0 <= each.storage < len(session.storage_bytes) or each.start < 0 for each in lifetimes.returned)
    ):
        raise _UnreadableError("the lifetimes of storages make no sense: record it again")
    _check_touched(columns)
    for tensor in {tensor for op in session.signatures for tensor in (*op.inputs, *op.outputs)}:
        strides = tensor.strides
        if min(tensor.shape, default=0) < 0 or (strides is not None and len(strides) != len(tensor.shape)):
            raise _UnreadableError("a tensor has an impossible shape: record it again")
        held = (tensor.offset + tensor.extent) * ITEM_BYTES.get(tensor.dtype, 1)
        if max(held, tensor.numel, *tensor.shape, *(strides or ())) >= _MOST_BYTES:
            raise _UnreadableError("a tensor has 2^63 bytes or more, which no memory has: record it again")
        if tensor.packing is not None and not _is_possible(tensor, tensor.packing):
            raise _UnreadableError("a sparse or nested tensor has an impossible shape: record it again")


def _check_touched(columns: Columns) -> None:
    for offsets, ids, starts in (
        (columns.read_offsets, columns.read_ids, columns.read_starts),
        (columns.written_offsets, columns.written_ids, columns.written_starts),
    ):
        if len(starts) != len(ids) or not _within(starts, NOWHERE, None):
            raise _UnreadableError("the starts of tensors make no sense: record it again")
        if offsets[0] != 0 or offsets[-1] != len(ids) or bool((np.diff(offsets) < 0).any()):
            raise _UnreadableError("storage offsets are out of order: record it again")


def _is_possible(tensor: TensorSpec, packing: Packing) -> bool:
    sizes = (packing.index_bytes, *packing.shape, *chain.from_iterable(packing.parts))
    return len(tensor.shape) == 1 and tensor.strides is None and min(sizes) >= 0


def _within(array: NDArray[Any], low: int, high: int | None) -> bool:
    if not len(array):
        return True
    return low <= int(array.min()) and (high is None or int(array.max()) < high)
