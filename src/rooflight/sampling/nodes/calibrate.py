"""Calibrates every node of a cluster: what was measured is in files at once, and the best is saved for analyses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from rooflight.sampling.executor.options import NodesOptions
from rooflight.sampling.nodes import on_ray, on_slurm
from rooflight.sampling.nodes.saved import ClusterCalibration, collect
from rooflight.sampling.nodes.saved import keep_best as save_best

__all__ = ["calibrate_nodes", "save_best"]


def calibrate_nodes(
    where: NodesOptions,
    kind: Literal["cpu", "cuda"] | None,
    out: Path,
    *,
    quick: bool,
    progress: Callable[[str], object],
) -> tuple[ClusterCalibration, list[str]]:
    """Calibrate the nodes of a cluster."""
    if where.executor == "ray":
        results = on_ray.run(kind, address=where.address, quick=quick, progress=progress)
        return collect(results, out), []
    wanted = on_slurm.allocation(kind, nodes=where.nodes, partition=where.partition)
    found = collect(on_slurm.run(wanted, shared=out, quick=quick, progress=progress), out)
    return found, list(wanted.notes)
