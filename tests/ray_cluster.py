"""A Ray cluster on this machine: its nodes are processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

SMALL = {"object_store_memory": 80 << 20}


@contextlib.contextmanager
def ray_cluster(*nodes: dict[str, int], head_cpus: int = 0) -> Iterator[Any]:
    """A cluster whose head has so many CPUs, with such nodes. Skips the test where Ray is not installed."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("psutil")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, **SMALL})
        for node in nodes:
            made.add_node(**node, **SMALL)
        made.wait_for_nodes()
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
