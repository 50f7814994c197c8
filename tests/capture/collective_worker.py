"""One of two or four processes: runs distributed programs, recorded, measured and saved, one session a program.

python collective_worker.py RANK WORLD_SIZE STORE_FILE FOLDER SLOW_RANK
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import rooflight as rl

RANK, WORLD, STORE, FOLDER, SLOW = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), int(sys.argv[5])
WARM = 3  # DDP deals its buckets anew in its second step
PAUSE_S = 0.03


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return self.down(self.up(x).relu())


def x() -> torch.Tensor:
    return torch.ones(32, 64)


def observe(name: str, step: Callable[[], Any], model: nn.Module | None = None) -> None:
    for _ in range(WARM):
        step()
    with rl.record(model) as recording:
        step()
    session = rl.measure(recording.session, step, warmup=1, max_runs=4, profiled=3)
    session.save(FOLDER / f"{name}.{RANK}")


def compute() -> torch.Tensor:
    return torch.ones(200, 200) @ torch.ones(200, 200)


def blocking() -> None:
    a = torch.ones(1000)
    dist.all_reduce(a)
    dist.broadcast(a, 0)
    dist.all_gather_into_tensor(torch.empty(1000 * WORLD), a)
    dist.reduce_scatter_tensor(torch.empty(1000), torch.ones(1000 * WORLD))
    dist.reduce_scatter(torch.empty(10), [torch.ones(10) for _ in range(WORLD)])
    dist.all_to_all_single(torch.empty(1000 * WORLD), torch.ones(1000 * WORLD))
    dist.reduce(a, 0)
    dist.barrier()
    compute()


def overlapping() -> None:
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    for _ in range(20):
        compute()
    work.wait()
    out = functional.all_gather_tensor(torch.ones(1000), 0, dist.group.WORLD)
    compute()
    out.sum()
    sending = dist.isend(torch.ones(100), (RANK + 1) % WORLD)
    receiving = dist.irecv(torch.empty(100), (RANK - 1) % WORLD)
    sending.wait()
    receiving.wait()


def slowed() -> None:
    if RANK == SLOW:
        time.sleep(PAUSE_S)
    compute()
    dist.all_reduce(torch.ones(1000))


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=RANK, world_size=WORLD, timeout=limit)
    if WORLD == 2:
        observe("blocking", blocking)
        observe("overlapping", overlapping)
        wrapped = DistributedDataParallel(Net())
        observe("ddp", lambda: wrapped(x()).sum().backward(), wrapped)
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        first, second = mesh.get_group("dp"), mesh.get_group("tp")

        def in_groups() -> None:
            dist.all_reduce(torch.ones(100), group=first)
            works = [dist.all_reduce(torch.ones(200), group=group, async_op=True) for group in (first, second)]
            for work in works:
                work.wait()
            dist.all_reduce(torch.ones(300), group=second)
            dist.all_reduce(torch.ones(400))

        observe("groups", in_groups)
        observe("slowed", slowed)

        model = Net()
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        observe("both", lambda: model(x()).sum().backward(), model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
