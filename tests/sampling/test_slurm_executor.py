"""``rooflight sample --executor slurm``: the job script, and arrays on a real scheduler with two nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rooflight.sampling import slurm_jobs as executor


def rooflight(*arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None):
    words, where = [sys.executable, "-m", "rooflight", *arguments], {"env": env or dict(os.environ), "cwd": cwd}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False, **where
    )


def submitted(done: subprocess.CompletedProcess) -> int:
    assert done.returncode == 0, done.stderr
    return int(re.match(r"Submitted batch job (\d+)\n", done.stdout)[1])


def rows(folder: Path) -> list[dict]:
    """The rows of every part."""
    files = sorted((folder / "sampling_data").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()[1:]]


def said(folder: Path, job: int) -> list[str]:
    return [path.read_text() for path in sorted((folder / "sampling_log").glob(f"slurm-{job}_*.out"))]


def write(folder: Path, *more: str) -> list[str]:
    """The lines of the script that is written where nothing is submitted."""
    words = ("sample", "gemm", "--sweep", "collect", "--executor", "slurm", "--out", str(folder), *more)
    done = rooflight(*words)
    assert "submit it with sbatch" in done.stdout, done.stderr
    script = folder / "kernel_sampling.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    return script.read_text().splitlines()


@pytest.mark.slow
def test_the_script_is_estimate_train_time_s(tmp_path):
    lines = write(tmp_path, "--yes")
    for line in ("#SBATCH --nodes=1", "#SBATCH --gpus-per-node=4", "#SBATCH --job-name=kernel_sampling"):
        assert line in lines
    (start,) = (line for line in lines if line.endswith("&"))
    assert start.lstrip().startswith("CUDA_VISIBLE_DEVICES=$((i-1))")
    assert "--sweep collect" in start
    assert start.endswith("--parts 4 --part $i --device-num 0 &")
    assert any(line.lstrip().startswith('wait "$each"') for line in lines)
    # parts on a CPU run one after the other, and ask for no GPU
    assert not any("gpu" in line or line.endswith("&") for line in write(tmp_path, "--yes", "--cpu"))


@pytest.mark.parametrize("good", [True, False])
def test_a_job_of_parts_side_by_side_fails_where_one_of_them_does(tmp_path, good):
    script = executor.Script(arguments=["x y"], out=Path("out"), folder=tmp_path, parts=2).node()
    command = f"{shlex.quote(sys.executable)} -m rooflight sample 'x y' --parts 2 "
    assert command in script
    script = script.replace(command, f"bash -c {shlex.quote('true' if good else 'test $2 = 2')} x ")
    assert subprocess.run(["bash", "-c", script], check=False).returncode == (0 if good else 1)


def test_what_no_node_could_run_is_refused_at_once(tmp_path):
    words = ("--cpu", "--executor", "slurm", "--submit", "--parts", "2", "--out", str(tmp_path))
    nowhere = {**os.environ, "PATH": str(tmp_path)}
    for arguments, message in (
        (("gemm", "--budget", "1s"), "there is no sbatch here: leave out --submit and copy the job script"),
        (("gem",), 'unknown operator "gem"'),
        (("all_reduce", "--sweep", "test"), "all_reduce needs several ranks: srun torchrun -m rooflight sample"),
    ):
        done = rooflight("sample", *arguments, *words, env=nowhere)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_an_array_runs_and_its_parts_merge(tmp_path, slurm):
    folder = tmp_path / "50 % of it"  # blanks, and what SLURM takes for a placeholder
    folder.mkdir()
    words = shlex.split("sample copy --sweep test --cpu --threads 1 --executor slurm --submit --parts 2 --out")
    done = rooflight(*words, "my rows", env=slurm.env, cwd=folder)
    job = submitted(done)
    assert f"squeue --job {job}" in done.stdout
    states = slurm.wait(job)
    out = folder / "my rows"
    assert states == ["COMPLETED"] * 2, said(out, job)
    files = sorted(map(str, (out / "sampling_data").glob("*.csv")))
    assert [re.search(r"_copy_fp32_2_(\d)\.csv", file)[1] for file in files] == ["1", "2"]
    assert all(row["status"] == "ok" for row in rows(out))
    assert all("copy fp32:" in text for text in said(out, job))
    # as the command said it
    _, merge = done.stdout.split("then:")
    merged = subprocess.run(
        ["bash", "-c", merge.strip().replace("rooflight", f"{shlex.quote(sys.executable)} -m rooflight")],
        capture_output=True, text=True, env=slurm.env, check=False,
    )  # fmt: skip
    assert f"{len(rows(out))} rows of 2 files" in merged.stdout, merged.stderr


def test_a_job_that_fails_says_why_in_its_output(tmp_path, slurm):
    config = tmp_path / "copy.yml"
    config.write_text("{function_name: copy, columns_name: [elements, dur(us)], starts: [1], steps: [1], ends: [9], "
                      "operators: [add]}")  # fmt: skip
    words = ("--cpu", "--executor", "slurm", "--submit", "--parts", "2", "--out", str(tmp_path))
    # SLURM holds the job until the file is gone
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        job = submitted(rooflight("sample", "--config", str(config), *words, env=slurm.env))
        config.unlink()
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert set(slurm.wait(job)) == {"FAILED"}
    (text, *_) = said(tmp_path, job)
    assert re.fullmatch(r"rooflight: .*copy\.yml.*\n", text)


def test_a_cancelled_job_keeps_every_finished_row(tmp_path, slurm):
    config = tmp_path / "copy.yml"
    config.write_text(
        "{function_name: copy, columns_name: [elements, dur(us)], starts: [64], steps: [64], ends: [640000], "
        "operators: [add]}"
    )
    words = ("--cpu", "--threads", "1", "--executor", "slurm", "--submit", "--parts", "2", "--out", str(tmp_path))
    job = submitted(rooflight("sample", "--config", str(config), *words, env=slurm.env))
    deadline = time.monotonic() + 40
    while len(rows(tmp_path)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    slurm.run("scancel", str(job))
    assert set(slurm.wait(job)) == {"CANCELLED"}
    kept = rows(tmp_path)
    assert len(kept) >= 3
    assert any("interrupted: finished rows are kept in" in text for text in said(tmp_path, job))
    for file in (tmp_path / "sampling_data").glob("*.jsonl"):  # the CSV was written too, and has every row
        assert len(file.with_suffix(".csv").read_text().splitlines()) == len(file.read_text().splitlines())


def test_more_parts_than_an_array_may_have_are_refused(tmp_path, slurm):
    words = ("gemm", "--cpu", "--executor", "slurm", "--submit", "--parts", "9", "--out", str(tmp_path))
    done = rooflight("sample", *words, env=slurm.env)
    assert done.returncode == 2
    assert "--parts 9: an array has at most 8 tasks here (MaxArraySize)" in done.stderr
