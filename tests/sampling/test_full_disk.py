"""A sweep on a disk that fills up names the file of rows, and keeps the rows that were finished."""

from __future__ import annotations

import errno

import pytest
from full_disk import full_disk
from killed import sweep

from rooflight.records.samples import read


def test_the_file_of_rows_is_blamed_and_what_was_written_is_kept(tmp_path):
    sweep(tmp_path, 3)
    (path,) = (tmp_path / "sampling_data").glob("*.jsonl")
    for file in (path.with_suffix(".csv"), *(tmp_path / "sampling_log").iterdir()):
        file.unlink()
    with full_disk(), pytest.raises(OSError, match=r"File too large|No space") as full:
        sweep(tmp_path, 6)
    assert full.value.filename == str(path)
    assert full.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert len(read(path)[1]) == 3


def test_options_of_reports_say_that_rows_are_not_one(refused):
    assert refused("sample", "gemm", "--json", "a.json") == (
        "rooflight: --json: only --list has a report to write; the rows go to sampling_data\n"
    )
