"""A sweep on a real Ray cluster of several nodes on this machine, one of which dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray_cluster import SMALL, ray_cluster

from rooflight.costs.operators import registry
from rooflight.costs.operators.sizes import ADD, Progression
from rooflight.sampling import ray_sweep as executor
from rooflight.sampling.executor import ray as cluster_executor
from rooflight.sampling.job import DATA, Job
from rooflight.sampling.runner import Repeats
from rooflight.sampling.sweeps import Grid, PointSweep

SHAPES = 120


def job(folder: Path) -> Job:
    return Job(operator=registry.find("copy"), dtype="float32", out=folder, repeats=Repeats(least=3, most=3))


def sweep(size: int) -> PointSweep:
    return PointSweep(Grid(operator=registry.find("copy"), axes=(("elements", Progression(64, 64, 64 * size, ADD)),)))


def rows(folder: Path) -> list[int]:
    (path,) = (folder / DATA).glob("*.jsonl")
    return [json.loads(line)["shape"]["elements"] for line in path.read_text().splitlines()[1:]]


def processes_of(node) -> set[int]:
    """The node's raylet and every process below it."""
    import psutil

    found: set[int] = set()
    for process in node.all_processes["raylet"]:
        parent = psutil.Process(process.process.pid)
        found |= {parent.pid, *(child.pid for child in parent.children(recursive=True))}
    return found


@pytest.fixture
def cluster():
    with ray_cluster() as made:
        yield made


@pytest.mark.slow  # four nodes start on one machine
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_dies_costs_no_row_and_doubles_none(tmp_path, cluster):
    import ray

    nodes = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(3)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if any(path.read_bytes().count(b"\n") > SHAPES // 8 for path in (tmp_path / DATA).glob("*.jsonl")):
                break
            time.sleep(0.01)
        for pid in processes_of(nodes[1]):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    killer = threading.Thread(target=kill_one)
    killer.start()
    (outcome,) = executor.run(job(tmp_path), sweep(SHAPES), address=cluster.address, cold=True, progress=lambda _: None)
    killer.join()
    assert killed
    assert outcome.statuses == {"ok": SHAPES}
    assert sorted(rows(tmp_path)) == [64 * number for number in range(1, SHAPES + 1)]
    deadline = time.monotonic() + 60
    while sum(node["Alive"] for node in ray.nodes()) != 3 and time.monotonic() < deadline:  # the head and two of three
        time.sleep(0.2)
    assert sum(node["Alive"] for node in ray.nodes()) == 3

    # the same command again, over more shapes: only the new ones are sampled
    (outcome,) = executor.run(
        job(tmp_path), sweep(SHAPES + 10), address=cluster.address, cold=True, progress=lambda _: None
    )
    assert outcome.added == 10
    assert len(rows(tmp_path)) == SHAPES + 10


def test_no_cluster_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ValueError, match="no Ray cluster at auto: ray start --head"):
        executor.run(job(tmp_path), sweep(1), address="auto", cold=True, progress=lambda _: None)


def test_a_head_that_has_died_is_one_line_before_ray_ends_the_process(monkeypatch):
    monkeypatch.setattr(cluster_executor, "_PERIOD_S", 0.1)
    monkeypatch.setattr(cluster_executor, "_HEAD_S", 0.2)
    cancelled: list[str] = []
    dead = SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(gcs_address="127.0.0.1:1"),
        remote=lambda **_: lambda _: SimpleNamespace(remote=lambda: "reference"),
        wait=lambda *_, **how: time.sleep(min(how["timeout"], 0.05)) or ([], []),
        cancel=cancelled.append,
    )
    tasks = iter([cluster_executor.Task(function=print, arguments=())])
    with pytest.raises(ValueError, match=r"127.0.0.1:1, has not answered for 0.2 s: what came back is kept; start"):
        list(cluster_executor.answers(dead, lambda: next(tasks, None)))
    assert cancelled == ["reference"]
