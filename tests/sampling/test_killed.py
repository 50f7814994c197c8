"""Nothing lost, nothing twice: a sweep killed a hundred times, and a file cut at every byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.costs.operators import registry
from rooflight.records.samples import Row, Status, read
from rooflight.sampling.job import Job
from rooflight.sampling.store import Store

SCRIPT = Path(__file__).with_name("killed.py")


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path):
    shapes = 5000
    arguments = [sys.executable, str(SCRIPT), str(tmp_path), "100", str(shapes)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 100
    (path,) = (tmp_path / "sampling_data").glob("*_copy_fp32_1_1.jsonl")
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["operator"] == "copy"
    assert sorted(row["shape"]["elements"] for row in rows) == list(range(1, shapes + 1))
    csv = path.with_suffix(".csv").read_text().splitlines()
    assert csv[0] == "elements,dur(us)"
    assert len(csv) == shapes + 1


def header():
    return Job(operator=registry.find("copy"), dtype="float32", out=Path()).header("Fake", {}, {})


def row(elements: int) -> Row:
    return Row(shape={"elements": elements}, status=Status.OK, samples_s={"step": (1e-6,) * 7})


def test_a_file_cut_anywhere_goes_on_from_its_last_whole_row(tmp_path):
    path = tmp_path / "whole.jsonl"
    with Store(path, header()) as store:
        for elements in (1, 2, 3):
            store.append(row(elements))
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(whole[:cut])
        with Store(torn, header()) as store:
            assert len(store.rows) == max(0, sum(end <= cut for end in ends) - 1)
            for elements in (1, 2, 3):
                if (elements,) not in store.rows:
                    store.append(row(elements))
        assert list(read(torn)[1]) == [(1,), (2,), (3,)]


def test_a_file_has_one_writer_one_device_and_one_row_a_shape_and_a_foreign_one_is_left_alone(tmp_path):
    path = tmp_path / "data.jsonl"
    with Store(path, header()) as store:
        with pytest.raises(ValueError, match="is being written by another process"):
            Store(path, header())
        store.append(row(1))
        with pytest.raises(ValueError, match="has a row already"):
            store.append(row(1))
    with Store(path, header()):
        pass
    other = Job(operator=registry.find("copy"), dtype="float32", out=Path()).header("Other", {}, {})
    with pytest.raises(ValueError, match="holds samples of device Fake, not Other: choose another --out"):
        Store(path, other)
    for notes in ("notes\nof mine\n", "notes", "notes\nof", "{}\n"):
        path.write_text(notes)
        with pytest.raises(ValueError, match="is no file of samples"):
            Store(path, header())
        assert path.read_text() == notes
