"""What the options that write are given: devices, pipes, links and full disks, by every option of the command."""

from __future__ import annotations

import json
import os
import threading
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from builders import op, spec
from device_files import device
from sessions import Call, session_of

import rooflight as rl

TENSOR = spec((64, 64), "float32")
OPTIONS = ("--json", "--markdown", "--html", "--save", "--render")


@pytest.fixture
def saved(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    session = session_of([Call(op=op("aten::mm", {"self": TENSOR, "mat2": TENSOR}, [TENSOR]))])
    return session.save(tmp_path / "in" / "a.session")


@pytest.fixture
def analyze(run, saved):
    """Analyse the session with an option that writes to a path."""

    def rooflight(option: str, path: Path | str):
        value = f"json={path}" if option == "--render" else path
        return run("analyze", saved, "--device", "H100-SXM5-80GB", option, value)

    return rooflight


def check(option: str, content: bytes) -> None:
    """Whether this is what the option writes."""
    if option in ("--json", "--render"):
        assert json.loads(content)["schema"].startswith("rooflight.analysis/")
    elif option == "--save":
        assert zipfile.ZipFile(BytesIO(content)).testzip() is None
    else:
        assert content.startswith({"--markdown": b"# Speed of light", "--html": b"<!doctype html>"}[option])


@pytest.mark.parametrize("option", OPTIONS)
def test_a_null_device_swallows_it_and_stays_one(analyze, tmp_path, option):
    null = device(tmp_path / "null", 1, 3)
    assert analyze(option, null)[0] == 0
    assert null.stat().st_rdev == os.makedev(1, 3)
    assert null.is_char_device()


@pytest.mark.parametrize("option", OPTIONS)
def test_a_full_disk_is_one_line_with_the_file_and_the_cause(analyze, tmp_path, option):
    full = device(tmp_path / "full", 1, 7)
    code, shown, said = analyze(option, full)
    assert "Speed of light" in shown  # what was measured is not lost with the file
    assert (code, said) == (1, f"rooflight: {full}: No space left on device\n")
    assert full.is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "in"]


def test_what_can_be_written_is_and_all_that_cannot_is_named(run, saved, tmp_path):
    full, broken, good = device(tmp_path / "full", 1, 7), tmp_path / "broken.py", tmp_path / "a.html"
    broken.write_text("def text(report):\n    return 1 / 0\n")
    words = ("--json", full, "--save", full.with_name("b"), "--render", f"{broken}:text=c", "--html", good)
    (tmp_path / "b").symlink_to(full)
    code, shown, said = run("analyze", saved, "--device", "H100-SXM5-80GB", *words)
    assert code == 1
    assert "Speed of light" in shown
    check("--html", good.read_bytes())
    for text in (f"{full}: No space left on device; ", f"{full.with_name('b')}: No space", "ZeroDivisionError"):
        assert text in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", OPTIONS)
def test_a_fifo_passes_it_on_and_stays_one(analyze, tmp_path, option):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    assert analyze(option, fifo)[0] == 0
    reader.join(timeout=120)
    check(option, read[0])
    assert fifo.is_fifo()
    if option == "--save":
        (tmp_path / "through.session").write_bytes(read[0])
        assert len(rl.load(tmp_path / "through.session")) == 1


@pytest.mark.parametrize("option", OPTIONS)
def test_a_substituted_process_reads_it(analyze, option):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader:
        with os.fdopen(writing, "wb"):
            assert analyze(option, f"/dev/fd/{writing}")[0] == 0  # what >(cat) stands for
        check(option, reader.read())


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(analyze, tmp_path, option, there):
    link, real = tmp_path / "link", tmp_path / "real"
    if there:
        real.write_text("old")
    link.symlink_to(real)
    assert analyze(option, link)[0] == 0
    assert link.is_symlink()
    check(option, real.read_bytes())


def test_csv_goes_to_a_folder_also_through_a_link_and_to_nothing_else(analyze, tmp_path):
    (tmp_path / "link").symlink_to("tables")
    for _ in range(2):
        assert analyze("--csv", tmp_path / "link")[0] == 0
        assert (tmp_path / "tables" / "by_phase.csv").read_text().startswith("phase,")
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "in/a.session"):
        code, _, said = analyze("--csv", tmp_path / name)
        assert code == 2
        assert f"{tmp_path / name} is no folder: name one" in said
