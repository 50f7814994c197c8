"""Options that contradict each other, change nothing or cannot be: refused in one line, before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflight.sampling.request import seconds

DEVICE = ("--device", "H100-SXM5-80GB")
GEMM = ("predict", "gemm", "--n", "4", "--k", "4")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each command has a folder of its own, with a file in it."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("text")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (".5s", 0.5),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),  # 3600 + 1800
        ("1m30s", 90.0),
        ("1h0m1s", 3601.0),
    ],
)
def test_budgets(text, found):
    assert seconds(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "-5m",
        "nan",
        "inf",
        "1e400",
        "1e3",
        "5min",
        "1d",
        "5 m",
        "1m1h",
        "1h30",
        "s",
        "٣s",
        "1s1s",
        "9" * 400,
    ],
)
def test_no_budgets(text):
    with pytest.raises(ValueError, match="is no time: write 90s, 5m, 2h or 1h30m"):
        seconds(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # options that would be ignored in silence
        (("sample", "gemm", "--list", "--cpu"), "--cpu: --list samples nothing"),
        (("sample", "--write-config", "--executor", "slurm"), "--executor: --write-config samples nothing"),
        (("sample", "--write-config", "--list"), "--write-config: --list samples nothing"),
        (("sample", "gemm", "--cpu", "--json", "x"), "--json: for --list"),
        (("sample", "gemm", "--cpu", "--address", "x"), "--address: for --executor ray"),
        (("sample", "gemm", "--cpu", "--submit"), "--submit: for --executor slurm"),
        (("sample", "gemm", "--cpu", "--sweep", "test", "--budget", "5m"), "--budget: --sweep test samples all"),
        (("sample", "--config", "file", "--budget", "5m"), "--budget: --config samples all"),
        (("sample", "gemm", "--executor", "ray", "--threads", "1"), "--threads: the workers of Ray"),
        (("sample", "gemm", "--executor", "slurm", "--device-num", "1"), "--device-num: a cluster"),
        (("calibrate", "--out", "x"), "--out: for --executor slurm or ray"),
        (("calibrate", "--nodes", "2"), "--nodes: for --executor slurm"),
        (("calibrate", "--executor", "ray", "--partition", "x"), "--partition: for --executor slurm"),
        (("calibrate", "--address", "auto"), "--address: for --executor ray"),
        (("calibrate", "--quick", "--force"), "--quick saves no roofs"),
        (("devices", "--json", "-", "show", "A10"), "--json: write it after show"),
        # numbers that cannot be
        (("sample", "gemm", "--cpu", "--threads", "0"), "--threads"),
        (("sample", "gemm", "--cpu", "--time-box", "inf"), "--time-box inf"),
        (("sample", "gemm", "--cpu", "--time-box", "nan"), "--time-box nan"),
        (("sample", "gemm", "--cpu", "--parts", "0"), "--parts 0"),
        (("calibrate", "--executor", "slurm", "--nodes", "0"), "--nodes"),
        (("lint", "file", "--top", "0"), "--top 0"),
        # files for folders, folders for files
        (("sample", "gemm", "--cpu", "--out", "file"), "--out file is a file: name a folder"),
        (("sample", "gemm", "--cpu", "--out", "file/deeper"), "--out file/deeper: file is a file"),
        (("fit", "file", "--out", "file"), "--out file is a file: name a folder"),
        (("calibrate", "--executor", "slurm", "--out", "file"), "--out file is a file: name a folder"),
        (("merge", "file", "--out", "."), "is a folder"),
        (("merge", "."), "directory"),
        (("lint", "nowhere"), "there is no nowhere"),
        # shapes
        ((*GEMM, "--m", "0", *DEVICE), "m=0 is too small"),
        ((*GEMM, "--m", "-4", *DEVICE), "m=-4 is too small"),
        ((*GEMM, "--m", "nan", *DEVICE), "--m nan: give a whole number"),
        ((*GEMM, "--m", "4.5", *DEVICE), "--m 4.5: give a whole number"),
        ((*GEMM, "--m", "²", *DEVICE), "--m ²: give a whole number"),
        ((*GEMM, "--m", "--4", *DEVICE), "--m --4: give a whole number"),
        ((*GEMM, "--m", *DEVICE), "--m: give a whole number"),
        ((*GEMM, "--m", "1" + "0" * 23, *DEVICE), "too large"),
        ((*GEMM, "--m", "1" * 5000, *DEVICE), "too large"),
        ((*GEMM, "--m", "9300000000000000000", *DEVICE), "too large"),  # 2**63 is 9.22e18
        (("predict", "gemm", *("--m", "4000000000", "--n", "4000000000", "--k", "4"), *DEVICE), "2**63 - 1 elements"),
        ((*GEMM, "--m", "4", "--devcie", "cpu"), "--devcie: did you mean --device?"),
        ((*GEMM, "--m", "4", "--q", "7", *DEVICE), "--q: gemm has no such parameter, it has --m, --n, --k"),
        ((*GEMM, "-m", "4", *DEVICE), "-m: give each parameter"),
        ((*GEMM, "--m", "4", "--m", "5", *DEVICE), "--m is given twice"),
        ((*GEMM, "--m", "4"), "--device NAME is missing"),
        (("predict", "gemm", "stray", *DEVICE), "--name number"),
        (("predict", "gemm", "--m", "4", "--n", *DEVICE), "--n: give a whole number"),
        (("predict", "gemm", "--m", "4", *DEVICE), "gemm needs n, k"),
        (("predict", "gem", "--m", "4", *DEVICE), "did you mean gemm"),
        ((*GEMM, "--m", "4", *DEVICE, "--dtype", "fp17"), "fp17"),
    ],
    ids=lambda value: " ".join(value)[:70] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_one_line(run, words, said):
    code, out, err = run(*words)
    assert (code, out) == (2, ""), (out, err)
    assert err.startswith("rooflight: ")
    assert err.count("\n") == 1
    assert len(err) < 200
    assert said in err
    assert sorted(path.name for path in Path().iterdir()) == ["file"]


def test_a_list_of_some_operators(run, ok):
    out = ok("sample", "--list", "gemm", "relu", "gemm", "--json", "-")
    assert [each["name"] for each in json.loads(out)["operators"]] == ["gemm", "relu"]
    assert run("sample", "--list", "gmem")[0] == 2
