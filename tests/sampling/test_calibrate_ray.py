"""Calibrating the nodes of a real Ray cluster on this machine: two of Ray's nodes are two of its processes."""

from __future__ import annotations

import socket

import pytest

from rooflight.sampling.executor.ray import alive, connect
from rooflight.sampling.nodes.calibrate import on_ray_nodes
from rooflight.sampling.nodes.roofs import compare


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    pytest.importorskip("psutil")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    for gpus in (0, 1):
        made.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=80 << 20)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


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
