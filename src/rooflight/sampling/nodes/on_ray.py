"""Calibrating the nodes of a Ray cluster: one task per node, which has the node for itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from rooflight.records.quantity import count_of
from rooflight.sampling.executor import ray as cluster
from rooflight.sampling.nodes.program import read_new
from rooflight.sampling.nodes.roofs import NodeCalibration

_PERIOD_S = 1.0
_END_S = 10.0


def run(
    kind: Literal["cpu", "cuda"] | None, *, address: str, quick: bool, progress: Callable[[str], object]
) -> Iterator[NodeCalibration]:
    """Yield the results of each node alive as it ends; ``kind`` None: the GPUs where any node has one, else the CPUs.

    A node that gives its tasks no CPU, or for cuda no GPU, is left out. Interrupted, what runs is cancelled; what was
    finished was yielded. Raises ValueError where no cluster answers or no node is left.
    """
    ray = cluster.connect(address)
    nodes = cluster.alive(ray.nodes())
    kind = kind or ("cuda" if any(node.gpus for node in nodes) else "cpu")
    usable = [node for node in nodes if (node.gpus if kind == "cuda" else node.cpus)]
    if not usable:
        raise ValueError(f"no node of the cluster's {len(nodes)} offers a {'GPU' if kind == 'cuda' else 'CPU'}")
    under_way = {_task(ray, node, kind).remote(node.name, kind, quick): node for node in usable}
    try:
        while under_way:
            progress(f"{len(usable) - len(under_way)} of {count_of(len(usable), 'node')}")
            done, _ = ray.wait(list(under_way), num_returns=1, timeout=_PERIOD_S)
            for task in done:
                yield from _results(ray, task, under_way.pop(task))
    finally:
        for task in under_way:
            ray.cancel(task)
        if under_way:
            ray.wait(list(under_way), num_returns=len(under_way), timeout=_END_S)


def calibrate_node(name: str, kind: str, quick: bool) -> list[bytes]:
    """The task: its node's results as JSON.

    A process of its own measures, with as many threads as a program there has: Ray gives its workers another number.
    """
    environment = _without_ray_s_threads(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "rooflight.sampling.nodes.program", kind, folder, "--node", name]
        done = subprocess.run(
            [*words, *(["--quick"] if quick else [])], env=environment, capture_output=True, text=True, check=False
        )
        found = list(read_new(Path(folder), set()))
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        found.append(NodeCalibration(node=name, number=len(found), reason=said[-1]))
    return [msgspec.json.encode(each) for each in found]


def _task(ray: Any, node: cluster.RayNode, kind: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    all_of_it = {"num_cpus": node.cpus, **({"num_gpus": node.gpus} if kind == "cuda" else {})}
    here = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
    return ray.remote(**all_of_it, max_retries=0, scheduling_strategy=here)(calibrate_node)


def _results(ray: Any, task: Any, node: cluster.RayNode) -> Iterator[NodeCalibration]:
    try:
        answer = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        yield NodeCalibration(node=node.name, reason=" ".join(str(error.cause).split()))
    except ray.exceptions.RayError as error:
        yield NodeCalibration(node=node.name, reason=f"its task was lost: {type(error).__name__}")
    else:
        yield from (msgspec.json.decode(each, type=NodeCalibration) for each in answer)


def _without_ray_s_threads(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "OMP_NUM_THREADS"}
