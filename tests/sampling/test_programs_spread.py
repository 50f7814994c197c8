"""Programs spread over a cluster. The program is Python's own json.tool, which reads a request and writes a reply."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ray_cluster import ray_cluster

from rooflight.sampling.executor.programs import Reply, array_script, on_ray, on_slurm, run_program

MODULE = "json.tool"
REQUESTS = [b'{"a": 1}', b"no JSON", b"[2]"]


def values(replies: list[Reply]) -> list[str]:
    return [(reply.reply or b"").decode().replace("\n", "").replace(" ", "") for reply in replies]


def ordered(replies) -> list[Reply]:
    return sorted(replies, key=lambda reply: reply.number)


def silent(text: str) -> None:
    pass


def test_a_program_replies_or_says_why_not() -> None:
    assert run_program(MODULE, b"[1]") == ([b"[\n    1\n]\n"], "")
    replies, reason = run_program(MODULE, b"no JSON")
    assert replies == []
    assert reason == "its program ended with code 1: Expecting value: line 1 column 1 (char 0)"
    assert "No module named nowhere" in run_program("nowhere", b"")[1]


@pytest.mark.slow  # nodes start on this machine
@pytest.mark.filterwarnings("ignore")
def test_on_a_cluster_of_ray() -> None:
    told: list[str] = []
    with ray_cluster({"num_cpus": 1}) as made:
        found = ordered(on_ray(MODULE, REQUESTS, address=made.address, progress=told.append))
    assert values(found) == ['{"a":1}', "", "[2]"]
    assert "Expecting value" in found[1].reason
    assert told[0] == "0 of 3 programs"


COMMANDS = {
    # tasks of the array, one after the other, as SLURM starts them: a shell with the task's number
    "sbatch": """
        last=$(sed -n 's/^#SBATCH --array=1-//p' "$2")
        out=$(sed -n 's/^#SBATCH --output=//p' "$2" | tr -d '"')
        for i in $(seq 1 "$last"); do
            SLURM_ARRAY_TASK_ID=$i bash "$2" > "${out%%%a.out}$i.out" 2>&1
        done
        echo 7""",
    "squeue": "exit 0",
    "scancel": "exit 0",
    "sinfo": "echo 'one|main*|idle|(null)'",
    "scontrol": "echo 'MaxArraySize = 4'",
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> Path:
    """SLURM's commands without its daemons: sbatch runs the tasks at once."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def test_an_array_of_slurm_s(stand_in, monkeypatch) -> None:
    shared = stand_in / "a shared folder"
    shared.mkdir()
    monkeypatch.setattr("rooflight.sampling.executor.programs._GRACE_S", 0.1)
    found = ordered(on_slurm(MODULE, REQUESTS, shared=shared, partition=None, minutes=5, progress=silent))
    assert values(found) == ['{"a":1}', "", "[2]"]
    assert found[1].reason == "Expecting value: line 1 column 1 (char 0)"
    assert list(shared.iterdir()) == []  # nothing stays
    with pytest.raises(ValueError, match=r"4 programs: an array has at most 3 tasks here \(MaxArraySize\)"):
        list(on_slurm(MODULE, [b"1"] * 4, shared=shared, partition=None, minutes=5, progress=silent))


def test_a_task_that_left_nothing(stand_in, monkeypatch) -> None:
    (stand_in / "bin" / "sbatch").write_text("#!/bin/bash\necho 7\n")
    monkeypatch.setattr("rooflight.sampling.executor.programs._GRACE_S", 0.1)
    (found,) = on_slurm(MODULE, [b"1"], shared=stand_in, partition=None, minutes=5, progress=silent)
    assert found.reason == f"its task left no reply: does its node see {stand_in}?"


def test_without_slurm_it_is_said(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="there is no sbatch here"):
        list(on_slurm(MODULE, REQUESTS, shared=tmp_path, partition=None, minutes=5, progress=silent))


def test_what_a_task_asks_for(tmp_path) -> None:
    cpu = array_script(MODULE, tmp_path, 3, "--partition=main", "--time=50", gpus=False)
    assert "#SBATCH --array=1-3\n" in cpu
    assert "#SBATCH --exclusive\n#SBATCH --mem=0\n#SBATCH --partition=main\n#SBATCH --time=50\n" in cpu
    gpu = array_script(MODULE, tmp_path, 1, gpus=True)
    assert "#SBATCH --gpus-per-task=1\n" in gpu
    assert "--exclusive" not in gpu


def test_on_a_real_scheduler(tmp_path, slurm, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    found = ordered(on_slurm(MODULE, REQUESTS, shared=tmp_path, partition=None, minutes=5, progress=silent))
    assert values(found) == ['{"a":1}', "", "[2]"]
    assert "Expecting value" in found[1].reason
