"""A session on disk: a zip of one JSON header and one .npy file a column. Nothing in it is ever executed."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import NO_PARENT, Columns, Measurement, Session
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import TensorSpec

VERSION: Final = 1
SCHEMA_PREFIX: Final = "rooflight.session/"

_COLUMN_TYPES: Final = {
    "signature": np.int32,
    "module": np.int32,
    "phase": np.int32,
    "direction": np.int8,
    "parent": np.int32,
    "read_offsets": np.int64,
    "read_ids": np.int32,
    "written_offsets": np.int64,
    "written_ids": np.int32,
}


class _Tensor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    shape: list[int]
    dtype: str
    strides: list[int] | None
    storage: int
    offset: int


class _Signature(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    inputs: list[int]
    outputs: list[int]
    input_names: list[str]
    attributes: list[tuple[str, int | bool | str | list[int | bool] | None]]


class _Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    schema: str
    tensors: list[_Tensor]
    signatures: list[_Signature]
    modules: list[tuple[str, str]]
    phases: list[str]
    environment: dict[str, str]
    notes: list[str]
    clock: str | None


def save(session: Session, path: Path) -> Path:
    """Write atomically: a temporary file beside the target, then a rename."""
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent or ".")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("header.json", msgspec.json.encode(_header(session)))
            for name, array in session.columns.named_arrays():
                _write_array(archive, name, array)
            _write_array(archive, "storage_bytes", session.storage_bytes)
            if session.measurement is not None:
                _write_array(archive, "wall_samples_s", session.measurement.wall_samples_s)
                _write_array(archive, "op_samples_s", session.measurement.op_samples_s)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def load(path: str | Path) -> Session:
    """Read a session. Raises FileNotFoundError, or ValueError for a file that is damaged, foreign or too new."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no session file {path}: record one with rooflight analyze ... --save {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            header = _read_header(archive)
            arrays = {name: _read_array(archive, name, dtype) for name, dtype in _COLUMN_TYPES.items()}
            storage_bytes = _read_array(archive, "storage_bytes", np.int64)
            measurement = _read_measurement(archive, header)
        session = Session(
            signatures=_signatures(header),
            modules=tuple(ModuleEntry(module_path, class_name) for module_path, class_name in header.modules),
            phases=tuple(header.phases),
            columns=Columns(**arrays),
            storage_bytes=storage_bytes,
            environment=header.environment,
            notes=tuple(header.notes),
        )
        _check(session)
        return session.with_measurement(measurement) if measurement is not None else session
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError, IndexError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole session file ({error}): record it again") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): record it again") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _header(session: Session) -> _Header:
    tensors: dict[TensorSpec, int] = {}
    signatures = [
        _Signature(
            name=op.name,
            inputs=[tensors.setdefault(tensor, len(tensors)) for tensor in op.inputs],
            outputs=[tensors.setdefault(tensor, len(tensors)) for tensor in op.outputs],
            input_names=list(op.input_names),
            attributes=[(key, list(value) if isinstance(value, tuple) else value) for key, value in op.attributes],
        )
        for op in session.signatures
    ]
    return _Header(
        schema=f"{SCHEMA_PREFIX}{VERSION}",
        tensors=[
            _Tensor(list(t.shape), t.dtype, None if t.strides is None else list(t.strides), t.storage, t.offset)
            for t in tensors
        ],
        signatures=signatures,
        modules=[(module.path, module.class_name) for module in session.modules],
        phases=list(session.phases),
        environment=dict(session.environment),
        notes=list(session.notes),
        clock=session.measurement.clock if session.measurement else None,
    )


def _signatures(header: _Header) -> tuple[OpSignature, ...]:
    tensors = [
        TensorSpec(tuple(t.shape), t.dtype, None if t.strides is None else tuple(t.strides), t.storage, t.offset)
        for t in header.tensors
    ]
    if any(index < 0 for op in header.signatures for index in (*op.inputs, *op.outputs)):
        raise ValueError("a signature names a tensor that is not there")
    return tuple(
        OpSignature(
            name=op.name,
            inputs=tuple(tensors[index] for index in op.inputs),
            outputs=tuple(tensors[index] for index in op.outputs),
            input_names=tuple(op.input_names),
            attributes=tuple((key, _attribute(value)) for key, value in op.attributes),
        )
        for op in header.signatures
    )


def _attribute(value: int | bool | str | list[int | bool] | None) -> AttributeValue:
    return tuple(value) if isinstance(value, list) else value


def _read_header(archive: zipfile.ZipFile) -> _Header:
    text = archive.read("header.json")
    schema = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).get("schema")
    name = msgspec.json.decode(schema, type=str) if schema is not None else ""
    number = name.removeprefix(SCHEMA_PREFIX)
    if name == number or not number.isdecimal():
        raise ValueError("not a rooflight session")
    if int(number) > VERSION:
        raise ValueError(f"written by a newer rooflight (session version {number}, this one reads {VERSION}): upgrade")
    return msgspec.json.decode(text, type=_Header)


def _write_array(archive: zipfile.ZipFile, name: str, array: NDArray[np.generic]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def _read_array(archive: zipfile.ZipFile, name: str, dtype: type[np.generic]) -> NDArray[np.generic]:
    array = np.lib.format.read_array(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
    if array.dtype != dtype:
        raise ValueError(f"column {name} holds {array.dtype}, not {np.dtype(dtype)}")
    return array


def _read_measurement(archive: zipfile.ZipFile, header: _Header) -> Measurement | None:
    if header.clock is None:
        return None
    ops = _read_array(archive, "op_samples_s", np.float64)
    if ops.ndim != 2:
        raise ValueError("op times are not one row a step")
    return Measurement(
        wall_samples_s=_read_array(archive, "wall_samples_s", np.float64), op_samples_s=ops, clock=header.clock
    )


def _check(session: Session) -> None:
    """Refuse columns that point outside their tables: a later crash would be far from its cause."""
    columns, count = session.columns, len(session)
    tables = {
        "signature": len(session.signatures),
        "module": len(session.modules),
        "phase": len(session.phases),
        "direction": len(Direction),
        "read_ids": len(session.storage_bytes),
        "written_ids": len(session.storage_bytes),
    }
    for name, array in columns.named_arrays():
        expected = count + 1 if name.endswith("offsets") else None if name.endswith("ids") else count
        if array.ndim != 1 or (expected is not None and len(array) != expected):
            raise ValueError(f"column {name} has the wrong length")
        if name in tables and len(array) and not (0 <= int(array.min()) and int(array.max()) < tables[name]):
            raise ValueError(f"column {name} points outside its table")
    if len(columns.parent) and not (NO_PARENT <= int(columns.parent.min()) and int(columns.parent.max()) < count):
        raise ValueError("column parent points outside its table")
    for offsets, ids in ((columns.read_offsets, columns.read_ids), (columns.written_offsets, columns.written_ids)):
        if offsets[0] != 0 or offsets[-1] != len(ids) or bool((np.diff(offsets) < 0).any()):
            raise ValueError("storage offsets are out of order")
