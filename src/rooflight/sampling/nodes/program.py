"""What runs on each node of a cluster: it calibrates the devices there, one after the other, and leaves a file of each.

``python -m rooflight.sampling.nodes.program cpu FOLDER``: on a node with many GPUs each has a file as soon as it is
measured.
Nothing is saved here: a folder that nodes share would lend the roofs of a fast node to a slow one.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from rooflight.records.files import write_whole
from rooflight.sampling.nodes.roofs import NodeCalibration

SUFFIX: Final = ".node.json"


def measure(node: str, kind: Literal["cpu", "cuda"], *, quick: bool) -> Iterator[NodeCalibration]:
    """Calibrate the CPU, or each GPU, of this machine. What goes wrong becomes the reason of a result without roofs."""
    number = 0
    try:
        from rooflight.machine.calibration import calibrate

        for number in range(_count(kind)):
            if kind == "cuda":
                _use_gpu(number)
            yield NodeCalibration(node=node, number=number, calibration=calibrate(kind, quick=quick))
    except Exception as error:
        told = " ".join(str(error).split())
        name = "" if isinstance(error, ValueError | RuntimeError) and told else f"{type(error).__name__}: "
        yield NodeCalibration(node=node, number=number, reason=f"{name}{told}".removesuffix(": "))


def write(found: NodeCalibration, folder: Path, name: str) -> None:
    """Leave a result where ``read_new`` finds it; ``name`` is the node's among all that write there."""
    write_whole(folder / f"{name}-{found.number}{SUFFIX}", msgspec.json.encode(found))


def read_new(folder: Path, known: set[Path]) -> Iterator[NodeCalibration]:
    """The results in a folder that are not ``known`` yet; they become known."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if path not in known:
            known.add(path)
            yield msgspec.json.decode(path.read_bytes(), type=NodeCalibration)


def _count(kind: str) -> int:
    if kind == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())  # without a GPU, calibrating says so


def _use_gpu(number: int) -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(number)


def main() -> None:
    """Calibrate this node; SLURM gives its name and number."""
    parser = argparse.ArgumentParser(prog="rooflight.sampling.nodes.program")
    parser.add_argument("kind", choices=("cpu", "cuda"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME") or platform.node())
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    for found in measure(given.node, given.kind, quick=given.quick):
        write(found, given.folder, os.environ.get("SLURM_NODEID", "0"))


if __name__ == "__main__":
    main()
