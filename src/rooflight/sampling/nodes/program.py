"""What runs on each node of a cluster: it calibrates the devices there, one after the other.

``python -m rooflight.sampling.nodes.program REQUEST REPLY``: on a node with many GPUs each has a file as soon as it is
measured. Nothing is saved here: a folder that nodes share would lend the roofs of a fast node to a slow one.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from rooflight.records.files import write_whole
from rooflight.sampling.executor.programs import next_reply
from rooflight.sampling.nodes.roofs import NodeCalibration


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to calibrate, and the node's name where SLURM does not give it."""

    kind: Literal["cpu", "cuda"]
    quick: bool
    node: str = ""


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
        text = " ".join(str(error).split())
        name = "" if isinstance(error, ValueError | RuntimeError) and text else f"{type(error).__name__}: "
        yield NodeCalibration(node=node, number=number, reason=f"{name}{text}".removesuffix(": "))


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
    """Calibrate this node."""
    request, reply = map(Path, sys.argv[1:])
    asked = msgspec.json.decode(request.read_bytes(), type=Request)
    node = asked.node or os.environ.get("SLURMD_NODENAME") or platform.node()
    for number, found in enumerate(measure(node, asked.kind, quick=asked.quick)):
        write_whole(next_reply(reply, number), msgspec.json.encode(found))


if __name__ == "__main__":
    main()
