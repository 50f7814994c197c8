"""``rooflight calibrate --executor slurm`` and ``ray``, on a real scheduler with two nodes and a real cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_cluster import ray_cluster

from rooflight.sampling.executor import slurm as commands
from rooflight.sampling.executor.ray import alive, connect
from rooflight.sampling.nodes.calibrate import allocation, on_ray_nodes
from rooflight.sampling.nodes.roofs import compare

NODE_TWO = """
import os
if os.environ.get("SLURMD_NODENAME") == "two" and "SLURM_PROCID" in os.environ:
    {what}
"""


def command(tmp_path: Path, *words: str) -> list[str]:
    out = tmp_path / "the roofs"
    return [sys.executable, "-m", "rooflight", "calibrate", "--executor", "slurm", "--quick", "--out", str(out), *words]


def environment(tmp_path: Path, slurm, what: str) -> dict[str, str]:
    """The cluster's, where Python on the second node does something else than it was told."""
    (tmp_path / "sitecustomize.py").write_text(NODE_TWO.format(what=what))
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    return {**slurm.env, "PYTHONPATH": path, "ROOFLIGHT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def test_a_node_that_fails_is_listed_and_the_other_one_reported(tmp_path, slurm):
    env = environment(tmp_path, slurm, "os.write(2, b'the disk is broken\\n'); os._exit(3)")
    words = ("--device", "cpu", "--json", "-")
    done = subprocess.run(command(tmp_path, *words), env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["failed"] == [{"node": "two", "reason": "the disk is broken"}]
    (one,) = report["nodes"]
    assert one["node"] == "one"
    assert {"matrix float32", "memory DRAM", "launch latency"} <= {roof["roof"] for roof in one["roofs"]}
    assert sorted(path.name for path in (tmp_path / "the roofs").iterdir()) == ["one.json"]
    assert not (tmp_path / "cache").exists()  # --quick


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_reports_what_is_finished_and_ends_the_job(tmp_path, slurm):
    env = environment(tmp_path, slurm, "import time; time.sleep(600)")
    process = subprocess.Popen(
        command(tmp_path, "--device", "cpu", "--markdown", "-"),
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "the roofs" / "one.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "| one | " in said
    assert "Interrupted" in said
    assert "interrupted: the nodes that had finished are in" in errors
    assert [path.name for path in (tmp_path / "the roofs").iterdir()] == ["one.json"]
    states = slurm.run("squeue", "-h", "-t", "all", "--name", "rooflight_calibrate", "-o", "%i %T").splitlines()
    assert max(states, key=lambda line: int(line.split()[0])).split()[1] in ("CANCELLED", "COMPLETING")


def test_where_no_node_has_a_result_the_reason_is_the_error(tmp_path, slurm):
    done = subprocess.run(
        command(tmp_path, "--device", "cuda", "--nodes", "1"),
        env=slurm.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Not calibrated" in done.stdout
    assert "no node could be calibrated: torch sees no CUDA device" in done.stderr


def test_nodes_and_gpus_are_asked_for_as_they_are(monkeypatch, slurm):
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    slurm.run("scontrol", "update", "NodeName=two", "State=DRAIN", "Reason=test")
    try:
        one, two = commands.nodes()
        assert (one.name, one.idle, one.gpus) == ("one", True, 1)
        assert (two.name, two.idle, two.gpus) == ("two", False, 1)
        assert commands.nodes("main") == (one, two)
        asked = allocation(None, nodes=None, partition=None)
        assert (asked.nodes, asked.kind, asked.gpus) == (1, "cuda", 1)
        assert allocation("cpu", nodes=7, partition="main").nodes == 7
        slurm.run("scontrol", "update", "NodeName=one", "State=DRAIN", "Reason=test")
        with pytest.raises(ValueError, match="no node is idle: pass --nodes N"):
            allocation("cpu", nodes=None, partition=None)
        assert allocation("cuda", nodes=2, partition=None).nodes == 2  # to be waited for
    finally:
        slurm.run("scontrol", "update", "NodeName=one,two", "State=RESUME")
    with pytest.raises(ValueError, match="no partition gpu: sinfo lists them"):
        allocation(None, nodes=None, partition="gpu")
    assert commands.state(999_999) == (False, "")


def test_without_slurm_it_is_one_line(tmp_path):
    done = subprocess.run(
        command(tmp_path), env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "rooflight: there is no sinfo here: run this on a machine of the cluster\n"


def test_a_controller_that_is_silent_for_a_while_ends_nothing(monkeypatch):
    answers = iter([(True, "Resources"), None, (True, ""), (False, ""), None])

    def state(job: int) -> tuple[bool, str]:
        if (answer := next(answers)) is None:
            raise RuntimeError("squeue: Unable to contact slurm controller")
        return answer

    monkeypatch.setattr(commands, "state", state)
    watch = commands.JobWatch(7)
    seen = []
    for _ in range(5):
        watch.look()
        seen.append((watch.waits_for, watch.ended_s is not None))
    waiting = ("Resources", False)
    assert seen == [waiting, waiting, ("", False), ("", True), ("", True)]
    monkeypatch.setattr(commands, "_SILENT_S", 0.0)
    answers = iter([None])
    with pytest.raises(RuntimeError, match="Unable to contact slurm controller"):
        commands.JobWatch(7).look()


@pytest.fixture
def cluster():
    with ray_cluster({"num_cpus": 1}, {"num_cpus": 1, "num_gpus": 1}) as made:
        yield made


@pytest.mark.slow  # three nodes start on one machine
@pytest.mark.filterwarnings("ignore")
def test_every_node_is_calibrated_and_one_that_cannot_be_says_why(cluster):
    told: list[str] = []
    found = list(on_ray_nodes("cpu", address=cluster.address, quick=True, progress=told.append))
    assert len({each.node for each in found}) == 2  # not the head, which gives no CPU to tasks
    assert all(each.calibration is not None for each in found), [each.reason for each in found]
    one, other = compare(found)
    assert {"matrix float32", "memory DRAM", "launch latency"} <= {roof.roof for roof in one.roofs}
    assert one.calibration.fingerprint == other.calibration.fingerprint  # one machine, with torch's own threads
    assert told[0] == "0 of 2 nodes"

    (found,) = on_ray_nodes(None, address=cluster.address, quick=True, progress=told.append)  # one claims a GPU
    assert found.calibration is None
    assert found.reason == "torch sees no CUDA device: use cpu"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ctrl_c_ends_the_tasks(cluster):
    ray = connect(cluster.address)

    def press(text: str) -> None:
        # both tasks run: their nodes have no CPU left
        if not ray.available_resources().get("CPU"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(on_ray_nodes("cpu", address=cluster.address, quick=False, progress=press))
    assert len(list(on_ray_nodes("cpu", address=cluster.address, quick=True, progress=lambda _: None))) == 2


def test_nodes_on_one_machine_have_names_of_their_own():
    described = [
        {"NodeID": "aaaabbbbcccc", "NodeManagerHostname": "n1", "Alive": True, "Resources": {"CPU": 8.0}},
        {"NodeID": "ddddeeeeffff", "NodeManagerHostname": "n1", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0}},
        {"NodeID": "000011112222", "NodeManagerHostname": "n0", "Alive": True, "Resources": {}},
        {"NodeID": "333344445555", "NodeManagerHostname": "n2", "Alive": False, "Resources": {"CPU": 8.0}},
    ]
    assert [(node.name, node.cpus, node.gpus) for node in alive(described)] == [
        ("n0", 0.0, 0.0),
        ("n1-aaaabb", 8.0, 0.0),
        ("n1-ddddee", 8.0, 4.0),
    ]


def test_no_cluster_is_one_line(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ValueError, match="no Ray cluster at auto: ray start --head"):
        list(on_ray_nodes("cpu", address="auto", quick=True, progress=lambda _: None))


def test_an_address_where_nothing_listens_is_said_at_once():
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"  # bound, but nobody listens
        with pytest.raises(ValueError, match=f"no Ray cluster at {address}"):
            connect(address)
