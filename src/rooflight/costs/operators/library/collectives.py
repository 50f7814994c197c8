"""Collectives: elements and topology, and what each rank runs under torchrun."""

from __future__ import annotations

from functools import partial
from typing import Any

from rooflight.costs.operators.operator import STEP, Prepared, RefusedError, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, tensor
from rooflight.costs.operators.sizes import ELEMENTS
from rooflight.costs.operators.tensors import random
from rooflight.network.groups import RankGroup
from rooflight.records.quantity import count_of
from rooflight.records.tensor import TensorSpec

TOPOLOGY = ("nodes", "gpus_per_node")
"""Parameters that the launch decides."""


def num_ranks(shape: Shape) -> int:
    """Ranks that take part."""
    return shape["nodes"] * shape["gpus_per_node"]


def several(shape: Shape) -> str | None:
    """Why there is no group to communicate with; None for two ranks or more."""
    return None if num_ranks(shape) > 1 else "a collective needs at least 2 ranks (nodes x gpus_per_node)"


def shares(shape: Shape) -> str | None:
    """Why the elements cannot be dealt to the ranks."""
    ranks = num_ranks(shape)
    if alone := several(shape):
        return alone
    return f"elements={shape['elements']} is not a multiple of {ranks} ranks" if shape["elements"] % ranks else None


class Collective:
    """A one-way call of ``op`` from a flat source to a target; names of its arguments for either, empty for none."""

    op = ""
    target, source = "output_tensor", "input_tensor"
    returns_target = True

    def received(self, shape: Shape) -> int:
        """Elements of the target."""
        return shape["elements"]

    def call(self, dist: Any, shape: Shape, target: Any, source: Any) -> Any:
        """The call itself."""
        raise NotImplementedError

    def work(self, shape: Shape, dtype: str) -> Work:
        target, source = TensorSpec((self.received(shape),), dtype, storage=0), tensor(dtype, shape["elements"])
        given = {name: spec for name, spec in ((self.target, target), (self.source, source)) if name}
        group = RankGroup(size=num_ranks(shape), nodes=shape["nodes"])
        returned = (target,) if self.returns_target else ()
        return Work(forward=(call(self.op, given, *returned, **dict(group.attributes)),))

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """The source and room for the result. Raises RefusedError without a group, or in one of another size."""
        dist = torch.distributed
        if not (dist.is_available() and dist.is_initialized()):
            raise RefusedError("collectives run under torchrun: torchrun --nproc-per-node 4 -m rooflight sample ...")
        if dist.get_world_size() != num_ranks(shape):
            raise RefusedError(f"this run has {count_of(dist.get_world_size(), 'rank')}, not {num_ranks(shape)}")
        source = random(torch, dtype, device, shape["elements"])
        target = source.new_empty(self.received(shape)) if self.target and self.source else source
        return Prepared(forward=partial(self.call, dist, shape, target, source))


collective = partial(operator, directions=STEP, launch_parameters=TOPOLOGY, elements=ELEMENTS)


@collective("[elements] of each rank, summed over all ranks", check=several)
class all_reduce(Collective):
    """Every rank ends with the sum, in place."""

    op, target, source = "c10d::allreduce_", "tensors", ""

    def call(self, dist: Any, shape: Shape, target: Any, source: Any) -> Any:
        return dist.all_reduce(source)


@collective("[elements] of each rank gathered on all", check=several)
class all_gather(Collective):
    """Every rank ends with the parts of all."""

    op = "c10d::_allgather_base_"

    def received(self, shape: Shape) -> int:
        return shape["elements"] * num_ranks(shape)

    def call(self, dist: Any, shape: Shape, target: Any, source: Any) -> Any:
        return (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(target, source)


@collective("[elements] of each rank, summed, one part to each", check=shares)
class reduce_scatter(Collective):
    """Every rank ends with its part of the sum."""

    op = "c10d::_reduce_scatter_base_"

    def received(self, shape: Shape) -> int:
        return shape["elements"] // num_ranks(shape)

    def call(self, dist: Any, shape: Shape, target: Any, source: Any) -> Any:
        return (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(target, source)


@collective("[elements] of each rank, an equal part to each", check=shares)
class all_to_all(Collective):
    """Every rank sends one of its parts to each rank."""

    op, target, source, returns_target = "c10d::alltoall_base_", "output", "input", False

    def call(self, dist: Any, shape: Shape, target: Any, source: Any) -> Any:
        return dist.all_to_all_single(target, source)


@collective("[elements] sent by the first rank to the last", check=several)
class p2p(Collective):
    """The first rank sends, the last receives, those between look on; between nodes where there are several."""

    op, target, source, returns_target = "c10d::send", "", "tensors", False

    def call(self, dist: Any, shape: Shape, target: Any, source: Any) -> Any:
        rank, last = dist.get_rank(), num_ranks(shape) - 1
        if rank in (0, last):
            return dist.send(source, last) if rank == 0 else dist.recv(source, 0)
        return None
