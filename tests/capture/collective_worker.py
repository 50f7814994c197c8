"""Runs distributed programs, recorded, measured and saved, one session a program. Started by ``forked_ranks``."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import rooflight as rl
from rooflight.sources.capture.time import measure

SLOW = 2
"""The rank that is slow in the program of that name."""
WARM = 3  # DDP deals its buckets anew in its second step
PAUSE_S = 0.03

Step = Callable[[], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return self.down(self.up(x).relu())


def x() -> torch.Tensor:
    return torch.ones(32, 64)


def observe(path: Path, step: Step, model: nn.Module | None = None) -> None:
    for _ in range(WARM):
        step()
    with rl.record(model) as recording:
        step()
    session = rl.measure(recording.session, step, warmup=1, max_runs=4, profiled=3)
    session.save(path)


def compute(size: int = 200) -> torch.Tensor:
    return torch.ones(size, size) @ torch.ones(size, size)


def blocking(world: int) -> None:
    a = torch.ones(1000)
    dist.all_reduce(a)
    dist.broadcast(a, 0)
    dist.all_gather_into_tensor(torch.empty(1000 * world), a)
    dist.reduce_scatter_tensor(torch.empty(1000), torch.ones(1000 * world))
    dist.reduce_scatter(torch.empty(10), [torch.ones(10) for _ in range(world)])
    dist.all_to_all_single(torch.empty(1000 * world), torch.ones(1000 * world))
    dist.reduce(a, 0)
    dist.barrier()
    compute()


def overlapping(rank: int, world: int) -> None:
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    for _ in range(20):  # tens of milliseconds, so that gloo's thread gets a core of a busy machine meanwhile
        compute(500)
    work.wait()
    out = functional.all_gather_tensor(torch.ones(1000), 0, dist.group.WORLD)
    compute()
    out.sum()
    sending = dist.isend(torch.ones(100), (rank + 1) % world)
    receiving = dist.irecv(torch.empty(100), (rank - 1) % world)
    sending.wait()
    receiving.wait()


def slowed(rank: int) -> None:
    if rank == SLOW:
        time.sleep(PAUSE_S)
    compute()
    dist.all_reduce(torch.ones(1000))


def two(rank: int, world: int, folder: Path) -> None:
    observe(folder / f"blocking.{rank}", lambda: blocking(world))
    observe(folder / f"overlapping.{rank}", lambda: overlapping(rank, world))
    wrapped = DistributedDataParallel(Net())
    alone(rank, folder / "alone.txt")
    observe(folder / f"ddp.{rank}", lambda: wrapped(x()).sum().backward(), wrapped)


def alone(rank: int, path: Path) -> None:
    """Rank 0 measures; rank 1 has no Rooflight: it repeats the step until rank 0 sends a large number."""

    def step(number: float = 1.0) -> float:
        total = torch.full((10,), number)
        dist.all_reduce(total)
        return float(total[0])

    if rank:
        while step() < 100.0:
            pass
        return
    with rl.record() as recording:
        step()
    measure.PATIENCE_S = 0.5
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session = rl.measure(recording.session, step)
    step(100.0)
    path.write_text(f"{session.measurement} {[str(each.message) for each in told]}")


def four(rank: int, _: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    first, second = mesh.get_group("dp"), mesh.get_group("tp")

    def in_groups() -> None:
        dist.all_reduce(torch.ones(100), group=first)
        works = [dist.all_reduce(torch.ones(200), group=group, async_op=True) for group in (first, second)]
        for work in works:
            work.wait()
        dist.all_reduce(torch.ones(300), group=second)
        dist.all_reduce(torch.ones(400))

    observe(folder / f"groups.{rank}", in_groups)
    observe(folder / f"slowed.{rank}", lambda: slowed(rank))
    model = Net()
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    observe(folder / f"both.{rank}", lambda: model(x()).sum().backward(), model)


if __name__ == "__main__":
    forked_ranks.main(lambda rank, world, folder: (two if world == 2 else four)(rank, world, folder))
