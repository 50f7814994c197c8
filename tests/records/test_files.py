"""Files appear whole or not at all, keep what was around them, and leave no litter."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from device_files import device

from rooflight.records.files import whole_file, write_all, write_whole


def test_text_and_bytes_are_written_as_they_are(tmp_path):
    write_whole(tmp_path / "text", "µs\n")
    write_whole(tmp_path / "bytes", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "µs\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"


def test_a_reader_sees_the_old_file_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "report.json"
    write_whole(path, "old")
    with whole_file(path) as file:
        file.write(b"half of the ")
        file.flush()
        assert path.read_text() == "old"
        file.write(b"new one")
    assert path.read_text() == "half of the new one"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path, error):
    path = tmp_path / "report.json"
    write_whole(path, "old")

    def broken() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        broken()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640  # 0o666 without 0o027


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real, link, chain = tmp_path / "elsewhere" / "real", tmp_path / "link", tmp_path / "chain"
    real.write_text("old")
    link.symlink_to("elsewhere/real")
    chain.symlink_to(link)
    write_whole(chain, "new")
    assert real.read_text() == "new"
    assert link.is_symlink()
    assert chain.is_symlink()
    assert list(real.parent.iterdir()) == [real]


def test_a_link_to_nothing_yet_makes_the_file(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_fifo_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_whole(path, "through")
    reader.join(timeout=120)
    assert read == [b"through"]
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_standard_output_by_name_goes_on_where_it_stands(tmp_path):
    # a file that standard output goes to is not replaced, nor written over from its start
    program = (
        "import os; from pathlib import Path; from rooflight.records.files import write_whole\n"
        "os.write(1, b'before ')\n"
        "for name in ('/dev/stdout', '/dev/fd/1', '/proc/self/fd/1'): write_whole(Path(name), name + ' ')\n"
        "os.write(1, b'after')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before /dev/stdout /dev/fd/1 /proc/self/fd/1 after"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_long_name_can_be_written(tmp_path):
    write_whole(tmp_path / ("n" * 255), "fits")
    assert [path.name for path in tmp_path.iterdir()] == ["n" * 255]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere: make it, or save somewhere else"):
        write_whole(tmp_path / "nowhere" / "file", "")


def test_a_folder_in_its_place_is_left_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_private_null_device_takes_everything_and_stays_one(tmp_path):
    link, null = tmp_path / "link", device(tmp_path / "null", 1, 3)
    link.symlink_to(null)
    for path in (null, link):
        write_whole(path, "gone")
        assert null.is_char_device()
        assert null.stat().st_rdev == os.makedev(1, 3)
        assert link.is_symlink()
        assert sorted(tmp_path.iterdir()) == [link, null]


def test_a_full_device_is_named_and_stays_one(tmp_path):
    full = device(tmp_path / "full", 1, 7)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(full, "too much")
    assert caught.value.filename == str(full)
    assert full.is_char_device()
    assert list(tmp_path.iterdir()) == [full]


def test_a_file_that_cannot_grow_is_named_and_nothing_of_it_is_left(tmp_path):
    # a limit on the size of files fails in the middle of a write, as a full disk does
    (tmp_path / "old").write_text("old")
    program = (
        "import resource, signal, sys; from pathlib import Path; from rooflight.records.files import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for name in ('old', 'new'):\n"
        "    try: write_whole(Path(sys.argv[1]) / name, 'x' * 100_000)\n"
        "    except OSError as error: print(error.strerror, error.filename)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == f"File too large {tmp_path}/old\nFile too large {tmp_path}/new\n"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_of_files_is_written_whole_or_not_at_all(tmp_path, there):
    folder = tmp_path / "tables"
    if there:
        write_all(folder, {"a": "old a", "b": b"old b"})
    too_long = "n" * 300
    with pytest.raises(OSError, match="too long"):
        write_all(folder, {"a": "new a", too_long: "", "b": "new b"})
    assert folder.exists() == there
    if there:
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "old a", "b": "old b"}
