"""Merging parts: as estimate-train-time does it, and refusing what must not be merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflight.costs.operators import registry
from rooflight.records.samples import Row, Status
from rooflight.sampling.job import Job
from rooflight.sampling.merge import merge
from rooflight.sampling.store import Store

HEAD = "mp,b,l,dim,F_dur(us),B_dur(us)"


def part(folder: Path, number: int, *rows: str, head: str = HEAD, device: str = "NVIDIAA100-SXM4-80GB") -> Path:
    path = folder / f"{device}_linear1_fp16_2_{number}.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_parts_become_one_sorted_table_without_doubles(tmp_path):
    first = part(tmp_path, 1, "2,4,1024,2048,10.5,20.25", "1,4,1024,2048,11.5,21")
    second = part(tmp_path, 2, "1,4,1024,2048,11.5,21", "1,2,1024,2048,9,19", "1,2,1024,2048,9.5,19")
    before = first.read_bytes()
    merged = merge([first, second])
    assert Path(merged.path) == tmp_path / "NVIDIAA100-SXM4-80GB_linear1_fp16.csv"
    assert Path(merged.path).read_text().splitlines() == [
        HEAD,
        "1,2,1024,2048,9,19",
        "1,2,1024,2048,9.5,19",
        "1,4,1024,2048,11.5,21",
        "2,4,1024,2048,10.5,20.25",
    ]
    assert (merged.rows, merged.duplicates, merged.repeated) == (4, 1, 1)
    assert first.read_bytes() == before


def test_our_own_files_merge_too(tmp_path):
    job = Job(operator=registry.find("copy"), dtype="float32", out=tmp_path, parts=2)
    header = job.header("Fake", {}, {})
    paths = []
    for number, elements in ((1, 20), (2, 10)):
        with Store(tmp_path / f"Fake_copy_fp32_2_{number}.jsonl", header) as store:
            store.append(
                Row(shape={"elements": elements}, status=Status.OK, samples_s={"step": (1e-6 * elements,) * 7})
            )
            store.append(Row(shape={"elements": elements + 1}, status=Status.OUT_OF_MEMORY))
            paths.append(store.path)
    assert Path(merge(paths).path).read_text() == "elements,dur(us)\n10,10\n20,20\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,2,1024,2048,nan,19", "line 2: F_dur(us) is nan"),
        ("1,2,1024,2048,9,-19", "line 2: B_dur(us) is -19"),
        ("1,2,1024,2048,0,19", "line 2: F_dur(us) is 0"),
        ("1,2,1024,2048,inf,19", "line 2: F_dur(us) is inf"),
        ("1,2,1024,2048,9", "line 2: 5 values for 6 columns"),
        ("1,2,1024,many,9,19", "are not all numbers"),
    ],
)
def test_a_time_that_is_none_is_refused(tmp_path, row, message):
    with pytest.raises(ValueError, match="linear1") as error:
        merge([part(tmp_path, 1, row)])
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["NVIDIAA100-SXM4-80GB_linear1_fp16_2_1.csv"]


def test_what_cannot_be_merged_is_refused(tmp_path):
    notes = tmp_path / "notes.csv"
    notes.write_text("hello\n")
    own = part(tmp_path, 1, "1,2,3,4,5,6")
    other = part(tmp_path, 2, "1,2,3,4,5,6", device="NVIDIAGH200120GB")
    fewer = part(tmp_path, 2, "2,3,4,5,6", head="b,l,dim,F_dur(us),B_dur(us)")
    for paths, message in (
        ([own, other], "is of device NVIDIAGH200120GB, .* of NVIDIAA100-SXM4-80GB: merge"),
        ([own, fewer], "has columns b, l, dim, F_dur"),
        ([part(tmp_path, 3, "1,2,3,4", head="mp,b,l,dim")], "has columns mp, b, l, dim: shapes, then"),
        ([notes], r"notes\.csv does not name its device: name it GPU_operator_precision\.csv"),
        ([tmp_path / "gone_gemm_fp16.csv"], r"cannot read .*gone_gemm_fp16\.csv: No such file"),
        ([], "nothing to merge"),
    ):
        with pytest.raises(ValueError, match=message):
            merge(paths)
    with pytest.raises(ValueError, match="is one of the files to merge"):
        merge([own], own)
