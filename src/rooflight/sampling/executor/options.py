"""Where the work of a verb runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rooflight.records.options import Option

Executor = Literal["local", "slurm", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """This machine, or which cluster."""

    panel: ClassVar = "Executor"
    executor: Annotated[Executor, Option("Where to run: here, or on the nodes of a cluster.")] = "local"
    address: Annotated[str, Option("ray: the cluster to join.", "HOST:PORT")] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions(ExecutorOptions):
    """The same, with a part of a SLURM cluster."""

    partition: Annotated[str | None, Option("slurm: nodes of this partition. [default: SLURM's]", "NAME")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOptions(PartitionOptions):
    """The same, with a number of its nodes."""

    nodes: Annotated[
        int | None,
        Option("slurm: this many nodes, after waiting for them. [default: all idle ones]", "N", least=1),
    ] = None
