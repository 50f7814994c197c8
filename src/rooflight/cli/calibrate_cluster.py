"""``rooflight calibrate --executor ray|slurm``: the roofs of every node of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rooflight.cli.endings import Interrupted
from rooflight.cli.progress import spinner
from rooflight.records.quantity import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rooflight.reporting.output import Outputs
    from rooflight.sampling.nodes.roofs import NodeCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What to calibrate, on which cluster, and the folder for its files; None is the cluster's default."""

    executor: Literal["ray", "slurm"]
    device: Literal["cpu", "cuda"] | None
    address: str
    nodes: int | None
    partition: str | None
    out: Path
    quick: bool
    force: bool


def calibrate_cluster(asked: ClusterRequest, outputs: Outputs) -> None:
    """Calibrate the nodes, save their roofs and report them; after Ctrl-C, those of the nodes that had finished.

    Raises RuntimeError if no node gave a result, Interrupted after the report of an interrupted run.
    """
    from rooflight.sampling.nodes.saved import collect, keep_best
    from rooflight.sampling.nodes.tables import report_of

    asked.out.mkdir(parents=True, exist_ok=True)
    with spinner() as progress:
        results, notes = _start(asked, progress)
        found = collect(results, asked.out)
    calibrated = [each for each in found.measured if each.calibration is not None]
    if asked.quick:
        notes.append(
            "Rough figures of two seconds, which no later analysis uses: leave out --quick before you call a node slow."
        )
    elif calibrated:
        try:
            keep_best(calibrated, force=asked.force)
        except (OSError, ValueError) as error:  # the nodes' files are there, and the report is still worth having
            notes.append(f"Not kept for later analyses ({error}): set ROOFLIGHT_CACHE to a folder that can be written.")
    if found.measured:
        title = f"Roofs of {count_of(len({each.node for each in calibrated}), 'node')}"
        outputs.write(report_of(found, title=title, notes=notes))
    if found.interrupted:
        raise Interrupted(f"the nodes that had finished are in {asked.out}")
    if not calibrated:
        raise RuntimeError(f"no node could be calibrated: {found.measured[0].reason}")


def _start(asked: ClusterRequest, progress: Callable[[str], None]) -> tuple[Iterator[NodeCalibration], list[str]]:
    if asked.executor == "ray":
        from rooflight.sampling.nodes import on_ray as calibrate_ray

        return calibrate_ray.run(asked.device, address=asked.address, quick=asked.quick, progress=progress), []
    from rooflight.sampling.nodes import on_slurm as calibrate_slurm

    wanted = calibrate_slurm.allocation(asked.device, nodes=asked.nodes, partition=asked.partition)
    return calibrate_slurm.run(wanted, shared=asked.out, quick=asked.quick, progress=progress), list(wanted.notes)
