"""Sessions on disk: what is saved is what is loaded; what is damaged says so in one line and runs nothing."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rooflight as rl
from rooflight.records.account import Place
from rooflight.records.assembly import session_of
from rooflight.records.measurement import Measurement
from rooflight.records.record import Direction, ModuleEntry, OpRecord, StorageKind
from rooflight.records.report import Report
from rooflight.records.session import KEPT, NO_PARENT, STOOD, Columns, Lifetimes, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

ARRAYS = ("columns", "storage_bytes", "measurement", "lifetimes")

ints = st.integers(0, 2**40)
texts = st.text(max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 2**14), max_size=4)))  # of less than 2^63 bytes
    strides = draw(st.none() | st.lists(ints, min_size=len(shape), max_size=len(shape)).map(tuple))
    return TensorSpec(
        shape, draw(st.sampled_from(["float32", "int64", "odd"])), strides, draw(st.integers(-1, 3)), draw(ints)
    )


@st.composite
def signatures(draw: st.DrawFn) -> OpSignature:
    values = st.none() | st.booleans() | ints | texts | st.lists(ints).map(tuple) | st.lists(st.booleans()).map(tuple)
    inputs = tuple(draw(st.lists(tensors(), max_size=3)))
    return OpSignature(
        name=draw(texts),
        inputs=inputs,
        outputs=tuple(draw(st.lists(tensors(), max_size=2))),
        input_names=tuple(draw(st.lists(texts, min_size=len(inputs), max_size=len(inputs)))),
        attributes=tuple(draw(st.lists(st.tuples(texts, values), max_size=3))),
    )


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    ops = tuple(draw(st.lists(signatures(), min_size=1, max_size=4)))
    modules = tuple(
        ModuleEntry(path, name) for path, name in draw(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
    )
    phases = tuple(draw(st.lists(texts, min_size=1, max_size=3)))
    functions = tuple(draw(st.lists(texts, min_size=1, max_size=3)))
    places = tuple(
        draw(st.lists(st.builds(Place, file=texts, line=st.integers(0, 9), calls=texts), min_size=1, max_size=3))
    )
    count, storages = draw(st.integers(0, 8)), draw(st.integers(1, 5))

    def column(high: int, low: int = 0, dtype: Any = np.int32) -> Any:
        return np.array(draw(st.lists(st.integers(low, high - 1), min_size=count, max_size=count)), dtype=dtype)

    def ids() -> tuple[Any, Any]:
        lists = [draw(st.lists(st.integers(0, storages - 1), max_size=3)) for _ in range(count)]
        offsets = np.cumsum([0, *(len(part) for part in lists)]).astype(np.int64)
        return offsets, np.array([number for part in lists for number in part], dtype=np.int32)

    (read_offsets, read_ids), (written_offsets, written_ids) = ids(), ids()
    session = Session(
        signatures=ops,
        modules=modules,
        phases=phases,
        functions=functions,
        places=places,
        columns=Columns(
            signature=column(len(ops)),
            module=column(len(modules)),
            phase=column(len(phases)),
            function=column(len(functions)),
            place=column(len(places)),
            direction=column(len(Direction), dtype=np.int8),
            parent=column(max(count, 1), NO_PARENT),
            read_offsets=read_offsets,
            read_ids=read_ids,
            read_starts=np.arange(len(read_ids), dtype=np.int64) - 1,
            written_offsets=written_offsets,
            written_ids=written_ids,
            written_starts=np.arange(len(written_ids), dtype=np.int64) * 5 - 1,
        ),
        storage_bytes=np.array(draw(st.lists(ints, min_size=storages, max_size=storages)), dtype=np.int64),
        environment=draw(st.dictionaries(texts, texts, max_size=2)),
        notes=tuple(draw(st.lists(texts, max_size=2))),
    )
    if draw(st.booleans()):
        rows = draw(st.integers(0, 2))
        times = np.array(
            draw(st.lists(st.floats(width=64), min_size=rows * count, max_size=rows * count)), dtype=np.float64
        )
        times = times.reshape(rows, count)
        starts = times[:, ::-1] if draw(st.booleans()) else np.empty((0, 0))
        session = session.with_measurement(
            Measurement(
                wall_samples_s=np.array([0.5]),
                op_samples_s=times,
                clock=draw(texts),
                op_starts_s=starts,
                others_share=draw(st.none() | st.floats(0, 1)),
                same_calls=draw(st.none() | st.floats(0, 1)),
            )
        )
    if draw(st.booleans()):

        def of_storages(low: int, high: int, dtype: Any) -> Any:
            numbers = draw(st.lists(st.integers(low, high), min_size=storages, max_size=storages))
            return np.array(numbers, dtype=dtype)

        kind = of_storages(0, len(StorageKind) - 1, np.int8)
        made, freed = of_storages(STOOD, count, np.int32), of_storages(KEPT, count, np.int32)
        lifetimes = Lifetimes(kind=kind, made=made, freed=freed, local=of_storages(0, 1, np.bool_),
                              owner=of_storages(0, 0, np.int32))  # fmt: skip
        session = dataclasses.replace(session, lifetimes=lifetimes)
    return session


def assert_equal(one: Session, other: Session) -> None:
    for (name, left), (_, right) in zip(one.named_arrays(), other.named_arrays(), strict=True):
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right)
    plain = [field.name for field in dataclasses.fields(Session) if field.name not in ARRAYS]
    assert [getattr(one, name) for name in plain] == [getattr(other, name) for name in plain]
    assert getattr(one.measurement, "clock", None) == getattr(other.measurement, "clock", None)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(session=sessions())
def test_loaded_is_saved(session: Session, tmp_path: Path) -> None:
    loaded = rl.load(session.save(tmp_path / "a.session"))
    assert_equal(session, loaded)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.session"]


def small() -> Session:
    op = OpSignature(
        name="aten::mm", inputs=(TensorSpec((2, 3), "float32"),) * 2, outputs=(TensorSpec((2, 2), "float32"),)
    )
    one = OpRecord(
        signature=op,
        module=ModuleEntry("", ""),
        phase="",
        direction=Direction.FORWARD,
        reads=(0,),
        writes=(0,),
        times_s=(1.0, 1.0),
        read_starts=(0,),
        write_starts=(0,),
    )
    return session_of([one] * 6, storage_bytes=[24], environment={"cpu": "a"}, wall_samples_s=[1, 1, 1], clock="c")


def refuse(path: Path) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each case looks at the message
        rl.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert any(word in message for word in ("record it again", "upgrade", "save one"))
    return message


# -- damaged bytes ---------------------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = small().save(tmp_path / "whole").read_bytes()
    cut = tmp_path / "cut"
    for length in (*range(0, len(whole) - 100, 3), *range(len(whole) - 100, len(whole))):
        cut.write_bytes(whole[:length])
        refuse(cut)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_are_refused_or_harmless(data: st.DataObject, tmp_path: Path) -> None:
    session = small()
    path = session.save(tmp_path / "flipped")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        loaded = rl.load(path)
    except ValueError as error:
        message = str(error)
    else:  # a time stamp or the like
        message = ""
        assert_equal(session, loaded)
    assert "\n" not in message


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    refuse(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match="no session file"):
            rl.load(path)


# -- well-formed zips with the wrong things inside -------------------------------------------------------------------


def rewrite(path: Path, change: dict[str, Callable[[bytes], bytes | None]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, function in change.items():
        replaced = function(members.pop(name, b""))
        if replaced is not None:
            members[name] = replaced
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array: Any, **options: Any) -> Callable[[bytes], bytes]:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return lambda _: file.getvalue()


def header(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda text: json.dumps({**json.loads(text), **changes}).encode()


def header_of_tensor(shape: list[Any], strides: list[int] | None = None) -> Callable[[bytes], bytes]:
    return header(tensors=[[shape, "float32", strides, -1, 0, None], [[2], "float32", None, -1, 0, None]])


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("rooflight-was-here",)


COLUMN_LENGTH = 6
BAD_MEMBERS: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "no header": ("header.json", lambda _: None),
    "empty header": ("header.json", lambda _: b""),
    "header is a list": ("header.json", lambda _: b"[]"),
    "header is nested deeply": ("header.json", lambda _: b"[" * 100_000),
    "header is not text": ("header.json", lambda _: b"\xff\xfe"),
    "header of another program": ("header.json", header(schema="other/1")),
    "header without version": ("header.json", header(schema="rooflight.session/")),
    "header of a newer version": ("header.json", header(schema="rooflight.session/99")),
    "header of an endless version": ("header.json", header(schema="rooflight.session/" + "9" * 10_000)),
    "version as a number": ("header.json", header(schema=1)),
    "unknown field": ("header.json", header(other=1)),
    "phases of numbers": ("header.json", header(phases=[1])),
    "a share above the whole": ("header.json", header(others_share=1.5)),
    "a share below nothing": ("header.json", header(same_calls=-0.1)),
    "a share in words": ("header.json", header(same_calls="all")),
    "no phases": ("header.json", header(phases=[])),
    "no modules": ("header.json", header(modules=[])),
    "no signatures": ("header.json", header(signatures=[])),
    "tensor beyond the table": ("header.json", header(tensors=[])),
    "negative tensor": ("header.json", header(signatures=[["aten::mm", [-1], [0], [], []]])),
    "negative size": ("header.json", header_of_tensor([-2, 3])),
    "strides of another rank": ("header.json", header_of_tensor([2, 3], [1])),
    "size as text": ("header.json", header_of_tensor(["2"])),
    "no column": ("signature.npy", lambda _: None),
    "empty column": ("signature.npy", lambda _: b""),
    "column of text": ("signature.npy", lambda _: b"hello"),
    "column cut short": ("signature.npy", lambda content: content[:-4]),
    "column too long": ("signature.npy", npy(np.zeros(COLUMN_LENGTH + 1, dtype=np.int32))),
    "column of floats": ("signature.npy", npy(np.zeros(COLUMN_LENGTH))),
    "column of other ints": ("signature.npy", npy(np.zeros(COLUMN_LENGTH, dtype=np.int64))),
    "column big-endian": ("signature.npy", npy(np.zeros(COLUMN_LENGTH, dtype=">i4"))),
    "column with two axes": ("signature.npy", npy(np.zeros((COLUMN_LENGTH, 1), dtype=np.int32))),
    "column without axes": ("signature.npy", npy(np.int32(0))),
    "column without axes, direction": ("direction.npy", npy(np.int8(0))),
    "objects": ("signature.npy", npy(np.array([None] * COLUMN_LENGTH), allow_pickle=True)),
    "a pickle": ("signature.npy", lambda _: pickle.dumps(Bomb())),
    "a pickle inside": ("signature.npy", npy(np.array([Bomb()], dtype=object), allow_pickle=True)),
    "negative signature": ("signature.npy", npy(np.full(COLUMN_LENGTH, -1, dtype=np.int32))),
    "signature beyond": ("signature.npy", npy(np.full(COLUMN_LENGTH, 1, dtype=np.int32))),
    "module beyond": ("module.npy", npy(np.full(COLUMN_LENGTH, 1, dtype=np.int32))),
    "phase negative": ("phase.npy", npy(np.full(COLUMN_LENGTH, -1, dtype=np.int32))),
    "direction beyond": ("direction.npy", npy(np.full(COLUMN_LENGTH, 3, dtype=np.int8))),
    "parent beyond": ("parent.npy", npy(np.full(COLUMN_LENGTH, 6, dtype=np.int32))),
    "parent negative": ("parent.npy", npy(np.full(COLUMN_LENGTH, -2, dtype=np.int32))),
    "storage beyond": ("read_ids.npy", npy(np.full(COLUMN_LENGTH, 1, dtype=np.int32))),
    "offsets backwards": ("read_offsets.npy", npy(np.array([0, 2, 1, 3, 4, 5, 6], dtype=np.int64))),
    "offsets from one": ("read_offsets.npy", npy(np.arange(1, 8, dtype=np.int64))),
    "offsets too far": ("written_offsets.npy", npy(np.array([0, 1, 2, 3, 4, 5, 7], dtype=np.int64))),
    "storage of negative size": ("storage_bytes.npy", npy(np.array([-1], dtype=np.int64))),
    "storage sizes with two axes": ("storage_bytes.npy", npy(np.array([[1]], dtype=np.int64))),
    "times of fewer records": ("op_samples_s.npy", npy(np.zeros((2, 5)))),
    "times in one row": ("op_samples_s.npy", npy(np.zeros(6))),
    "steps in two rows": ("wall_samples_s.npy", npy(np.zeros((2, 3)))),
    "no times": ("op_samples_s.npy", lambda _: None),
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_a_wrong_member_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, change = BAD_MEMBERS[case]
    path = rewrite(small().save(tmp_path / "bad"), {name: change})
    message = refuse(path)
    assert not (tmp_path / "rooflight-was-here").exists()
    if "newer" in case or "endless" in case:
        assert "upgrade" in message or "record it again" in message


def claiming(path: Path, nbytes: int) -> Path:
    """A file that claims to unpack to so many bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b"{}")
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(signature) + offset
        content[at : at + 4] = nbytes.to_bytes(4, "little")  # the uncompressed size
    path.write_bytes(content)
    return path


def test_huge_claims_are_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    message = refuse(claiming(tmp_path / "bomb", 2**31))
    assert "124 B that unpack to 2.15 GB, which no recording does" in message
    # ten million records of one kind, 100 B each, compress a thousand times
    assert "unpack to" not in refuse(claiming(tmp_path / "long", 10**7 * 100))
    shape = b"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999,), }"
    fake = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + shape.ljust(117) + b"\n" + b"\0" * 24
    path = rewrite(small().save(tmp_path / "claim"), {"signature.npy": lambda _: fake})
    assert "does not have the length that its header gives" in refuse(path)


def test_a_bomb_is_refused_without_the_memory_that_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rooflight.records.archive._ALWAYS_ALLOWED_BYTES", 1 << 28
    )  # a bomb of less takes less time to make
    path = small().save(tmp_path / "bomb")
    head, zeros = io.BytesIO(), bytes(1 << 20)
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<i4", "fortran_order": False, "shape": (300 * len(zeros) // 4,)}
    )
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("more.npy", "w") as file,  # 300 MiB, more than a small file may unpack to
    ):
        file.write(head.getvalue())
        for _ in range(300):
            file.write(zeros)
    assert path.stat().st_size < 3e6
    tracemalloc.start()
    message = refuse(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "that unpack to 315 MB, which no recording does" in message  # 300 * 2^20 B
    assert peak_bytes < 1e6


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(tmp_path: Path, method: int) -> None:
    # Python unpacks them as far as they go, whatever they claim
    path = rewrite(small().save(tmp_path / "other"), {}, method)
    assert "its compression is not that of a session" in refuse(path)


def test_a_part_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = small().save(tmp_path / "twice")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("phase.npy", b"")
    assert "it has two parts with the same name" in refuse(path)


def test_names_of_members_lead_nowhere(tmp_path: Path) -> None:
    path = small().save(tmp_path / "paths")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside", b"x")
        archive.writestr("/tmp/\x1b[31m", b"x")
    assert_equal(rl.load(path), small())
    assert list(tmp_path.iterdir()) == [tmp_path / "paths"]


def test_a_changed_byte_of_a_column_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = small().save(tmp_path / "changed")
    with zipfile.ZipFile(path) as archive:
        stored = archive.read("module.npy")
    path = rewrite(path, {})  # stored as they are
    content = path.read_bytes()
    at = content.index(b"module.npy") + len("module.npy") + stored.index(b"\n") + 1
    path.write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    assert "CRC" in refuse(path)


@pytest.mark.parametrize(
    ("shape", "strides"), [([2**62] * 64, None), ([10**70], None), ([2**61], None), ([0, 10**70], None), ([2], [2**63])]
)
def test_a_tensor_beyond_all_memory_is_refused(tmp_path: Path, shape: list[int], strides: list[int] | None) -> None:
    path = rewrite(small().save(tmp_path / "huge"), {"header.json": header_of_tensor(shape, strides)})
    assert "a tensor has 2^63 bytes or more, which no memory has" in refuse(path)


def test_what_the_largest_tensors_need_is_finite(tmp_path: Path) -> None:
    large = TensorSpec((2**30, 2**30), "bfloat16")
    product = OpSignature(name="aten::mm", inputs=(large, large), outputs=(large,))
    record = OpRecord(signature=product, module=ModuleEntry("", ""), phase="", direction=Direction.FORWARD)
    session = rl.load(session_of([record] * 9).save(tmp_path / "large"))
    totals = rl.analyze(session, "H100-SXM5-80GB").totals
    assert totals.matrix_flops == 9 * 2 * 2**90
    assert totals.bytes_moved == 9 * 3 * 2**61
    assert str(rl.analyze(session, "H100-SXM5-80GB").report())


def test_names_and_notes_that_nobody_can_read_are_cut(tmp_path: Path) -> None:
    long, notes = "n" * 1_000_000, [f"note {number}" for number in range(1_100_000)]
    changed = header(notes=notes, phases=[long], modules=[[long, long]], functions=[long], environment={"gpu": long})
    session = rl.load(rewrite(small().save(tmp_path / "long"), {"header.json": changed}, zipfile.ZIP_DEFLATED))
    assert session.notes[99:] == ("note 99", "1,099,900 more notes of the session are left out")
    cut = "n" * 8192 + "… (cut: 1,000,000 characters)"
    module = session.modules[0]
    assert [session.phases[0], session.functions[0], module.path, module.class_name, session.environment["gpu"]] == [
        cut
    ] * 5
    report = Report(title=long, data={})
    assert report.title == cut


# -- saving ----------------------------------------------------------------------------------------------------------


def test_a_save_that_fails_leaves_nothing_and_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small().save(tmp_path / "kept")
    before = path.read_bytes()
    written = 0

    def fail_later(archive: Any, name: str, array: Any) -> None:
        nonlocal written
        written += 1
        if written == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("rooflight.records.session._write_array", fail_later)
    with pytest.raises(KeyboardInterrupt):
        small().save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_saving_where_no_folder_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere: make it"):
        small().save(tmp_path / "nowhere" / "a")


def test_saved_files_have_the_rights_that_files_have(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert small().save(tmp_path / "saved").stat().st_mode == plain.stat().st_mode


def test_save_replaces_and_returns_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a"
    small().save(str(path))
    assert small().save(path) == path
    assert_equal(rl.load(str(path)), small())
