"""The fixed choices that options of verbs offer."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Executor(StrEnum):
    """Where the work of a verb runs: on this machine, or on the nodes of a cluster."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


class DeviceChoice(StrEnum):
    """Which device at hand is measured."""

    cpu = "cpu"
    cuda = "cuda"

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """The choice as a ``DeviceKind``, whose module would take 50 ms to import."""
        return "cuda" if self is DeviceChoice.cuda else "cpu"
