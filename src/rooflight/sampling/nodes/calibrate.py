"""Calibrates every node of a cluster: a file of each device at once, and the best of equal ones for later analyses.

``python -m rooflight.sampling.nodes.calibrate REQUEST REPLY`` runs on each node: it calibrates the devices there one
after the other, each with a file as soon as it is measured. It saves nothing: a folder that nodes share would lend the
roofs of a fast node to a slow one.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from rooflight.hardware.devices import calibrations
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.machine.calibration import best_known, raised
from rooflight.records.files import alone, cache_folder, write_whole
from rooflight.sampling.executor import ray, slurm
from rooflight.sampling.executor.options import NodesOptions
from rooflight.sampling.executor.programs import Reply, next_reply, on_ray, on_slurm
from rooflight.sampling.nodes.roofs import NodeCalibration

Kind = Literal["cpu", "cuda"]
Progress = Callable[[str], object]

_MODULE: Final = "rooflight.sampling.nodes.calibrate"
_MINUTES: Final = 20  # a GPU takes 40 s, and a node has eight


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCalibration:
    """What came of calibrating a cluster; with ``interrupted``, nodes may be missing."""

    measured: tuple[NodeCalibration, ...]
    interrupted: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How many nodes to ask SLURM for, and GPUs of each."""

    nodes: int
    kind: Kind
    gpus: int = 0
    notes: tuple[str, ...] = ()


def calibrate_nodes(
    where: NodesOptions, kind: Kind | None, out: Path, *, quick: bool, progress: Progress
) -> ClusterCalibration:
    """Calibrate the nodes of a cluster, each by itself; ``kind`` None: the GPUs where any node has one, else the CPUs.

    Each calibration is in a file of ``out``, which SLURM's nodes share, as soon as it is there. Ctrl-C ends it. Raises
    ValueError where no cluster answers or no node can be asked, RuntimeError where SLURM refuses or starts no node.
    """
    if where.executor == "ray":
        return collect(on_ray_nodes(kind, address=where.address, quick=quick, progress=progress), out)
    asked = allocation(kind, nodes=where.nodes, partition=where.partition)
    request = msgspec.json.encode(Request(kind=asked.kind, quick=quick))
    replies = on_slurm(
        _MODULE,
        [request] * asked.nodes,
        shared=out,
        partition=where.partition,
        minutes=_MINUTES,
        node_gpus=asked.gpus,
        name="rooflight_calibrate",
        noun="node",
        progress=progress,
    )
    return collect(map(_found, replies), out, asked.notes)


def on_ray_nodes(kind: Kind | None, *, address: str, quick: bool, progress: Progress) -> Iterator[NodeCalibration]:
    """The results of each node of a Ray cluster as it ends. One that gives its tasks no CPU, or for cuda no GPU, is
    left out. Raises ValueError where no cluster answers or no node is left.
    """
    nodes = ray.alive(ray.connect(address).nodes())
    kind = kind or ("cuda" if any(node.gpus for node in nodes) else "cpu")
    usable = [node for node in nodes if (node.gpus if kind == "cuda" else node.cpus)]
    if not usable:
        raise ValueError(f"no node of the cluster's {len(nodes)} offers a {'GPU' if kind == 'cuda' else 'CPU'}")
    requests = [msgspec.json.encode(Request(kind=kind, quick=quick, node=node.name)) for node in usable]
    gpus = kind == "cuda"
    replies = on_ray(_MODULE, requests, address=address, nodes=usable, gpus=gpus, noun="node", progress=progress)
    return map(_found, replies)


def allocation(kind: Kind | None, *, nodes: int | None, partition: str | None) -> Allocation:
    """All idle nodes of a partition, or any ``nodes`` of it; ``kind`` None: those with GPUs where there are any.

    Raises ValueError where no node is idle and no number was given, or none has a GPU though one was asked for.
    """
    there = slurm.nodes(partition)
    with_gpus = [node for node in there if node.gpus]
    if kind == "cuda" and not with_gpus:
        raise ValueError("SLURM lists no GPU (Gres) on any node: use --device cpu, or another --partition")
    kind = kind or ("cuda" if with_gpus else "cpu")
    usable = with_gpus if kind == "cuda" else there
    idle = sum(node.idle for node in usable)
    if not idle and nodes is None:
        raise ValueError("no node is idle: pass --nodes N to wait for N of them, or another --partition")
    if kind == "cpu":
        return Allocation(nodes=nodes or idle, kind=kind)
    least, most = min(node.gpus for node in usable), max(node.gpus for node in usable)
    notes = (f"Nodes have {least} to {most} GPUs: {least} of each were calibrated.",) if least != most else ()
    return Allocation(nodes=nodes or idle, kind=kind, gpus=least, notes=notes)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to calibrate, and the node's name where SLURM does not give it."""

    kind: Kind
    quick: bool
    node: str = ""


def measure(node: str, kind: Kind, *, quick: bool) -> Iterator[NodeCalibration]:
    """Calibrate the CPU, or each GPU, of this machine. What goes wrong becomes the reason of a result without roofs."""
    number = 0
    try:
        import torch

        from rooflight.hardware.machine.calibration import calibrate

        # without a GPU, calibrating says so
        for number in range(1 if kind == "cpu" else max(1, torch.cuda.device_count())):
            if kind == "cuda" and torch.cuda.is_available():
                torch.cuda.set_device(number)
            yield NodeCalibration(node=node, number=number, calibration=calibrate(kind, quick=quick))
    except Exception as error:
        text = " ".join(str(error).split())
        name = "" if isinstance(error, ValueError | RuntimeError) and text else f"{type(error).__name__}: "
        yield NodeCalibration(node=node, number=number, reason=f"{name}{text}".removesuffix(": "))


def collect(results: Iterable[NodeCalibration], folder: Path, notes: tuple[str, ...] = ()) -> ClusterCalibration:
    """Take results as they arrive, each calibration in a file of ``folder`` at once. Ctrl-C ends it."""
    found: list[NodeCalibration] = []
    interrupted = False
    try:
        for each in results:
            found.append(each)
            if each.calibration is not None:
                text = msgspec.json.format(msgspec.json.encode(each.calibration), indent=2)
                # a node's name comes from the cluster: it must not lead out of the folder
                name = re.sub(r"[^A-Za-z0-9.-]+", "-", each.name.replace(" GPU ", "-gpu")).lstrip(".")
                write_whole(folder / f"{name}.json", text + b"\n")
    except KeyboardInterrupt:
        interrupted = True
    return ClusterCalibration(measured=tuple(found), interrupted=interrupted, notes=notes)


def save_best(measured: Iterable[NodeCalibration], *, force: bool = False) -> tuple[Path, ...]:
    """Save the roofs of each kind of device, so that sessions recorded on any such node are analysed with them.

    Equal nodes have one fingerprint, and each roof is the best that one of them reached, or ever has: a session of a
    slow node is held against what its hardware can do. ``force`` forgets the roofs that were saved before.
    """
    best: dict[tuple[str, int | None], Calibration] = {}
    for each in measured:
        if (new := each.calibration) is not None:
            key = new.fingerprint, new.roofs.threads
            best[key] = raised(new, best[key]) if key in best else new
    with alone(cache_folder()):
        return tuple(calibrations.save(each if force else best_known(each)) for each in best.values())


def _found(reply: Reply) -> NodeCalibration:
    if reply.reply is None:
        return NodeCalibration(node=reply.node, reason=reply.reason)
    return msgspec.json.decode(reply.reply, type=NodeCalibration)


def main() -> None:
    """Calibrate this node."""
    request, reply = map(Path, sys.argv[1:])
    asked = msgspec.json.decode(request.read_bytes(), type=Request)
    node = asked.node or os.environ.get("SLURMD_NODENAME") or platform.node()
    for number, found in enumerate(measure(node, asked.kind, quick=asked.quick)):
        write_whole(next_reply(reply, number), msgspec.json.encode(found))


if __name__ == "__main__":
    main()
