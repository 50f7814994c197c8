"""Collectives: elements and topology, and what each rank runs under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rooflight.costs.operators.operator import STEP, Prepared, RefusedError, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, tensor
from rooflight.costs.operators.sizes import ELEMENTS
from rooflight.costs.operators.tensors import random
from rooflight.hardware.network.groups import RankGroup
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
    """A one-way call of ``op`` from a flat source to a target, by the ``names`` of its arguments for target and source,
    empty for none. ``received`` gives the elements of the target by those of the source and the ranks.
    """

    def __init__(
        self,
        op: str,
        run: Callable[[Any, Shape, Any, Any], Any],
        *,
        names: tuple[str, str] = ("output_tensor", "input_tensor"),
        received: Callable[[int, int], int] = lambda elements, _: elements,
        returns_target: bool = True,
    ) -> None:
        self.op, self.run, self.names = op, run, names
        self.received, self.returns_target = received, returns_target

    def work(self, shape: Shape, dtype: str) -> Work:
        received = self.received(shape["elements"], num_ranks(shape))
        target, source = TensorSpec((received,), dtype, storage=0), tensor(dtype, shape["elements"])
        given = {name: spec for name, spec in zip(self.names, (target, source), strict=True) if name}
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
        received = self.received(shape["elements"], num_ranks(shape))
        target = source.new_empty(received) if all(self.names) else source
        return Prepared(forward=partial(self.run, dist, shape, target, source))


def _gather(dist: Any, _: Shape, target: Any, source: Any) -> Any:
    return (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(target, source)


def _scatter(dist: Any, _: Shape, target: Any, source: Any) -> Any:
    return (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(target, source)


def _send(dist: Any, shape: Shape, _: Any, source: Any) -> Any:
    rank, last = dist.get_rank(), num_ranks(shape) - 1
    if rank in (0, last):
        return dist.send(source, last) if rank == 0 else dist.recv(source, 0)
    return None  # those between look on


collective = partial(operator, directions=STEP, launch_parameters=TOPOLOGY, elements=ELEMENTS)
collective("[elements] of each rank, summed over all ranks", name="all_reduce", check=several)(
    Collective("c10d::allreduce_", lambda dist, _, __, source: dist.all_reduce(source), names=("tensors", ""))
)
collective("[elements] of each rank gathered on all", name="all_gather", check=several)(
    Collective("c10d::_allgather_base_", _gather, received=lambda elements, ranks: elements * ranks)
)
collective("[elements] of each rank, summed, one part to each", name="reduce_scatter", check=shares)(
    Collective("c10d::_reduce_scatter_base_", _scatter, received=lambda elements, ranks: elements // ranks)
)
collective("[elements] of each rank, an equal part to each", name="all_to_all", check=shares)(
    Collective(
        "c10d::alltoall_base_",
        lambda dist, _, target, source: dist.all_to_all_single(target, source),
        names=("output", "input"),
        returns_target=False,
    )
)
# from the first rank to the last: between nodes where there are several
collective("[elements] sent by the first rank to the last", name="p2p", check=several)(
    Collective("c10d::send", _send, names=("", "tensors"), returns_target=False)
)
