"""Runs distributed programs under a recording and writes what was recorded as JSON. Started by ``forked_ranks``."""

import json
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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch_state import torch_state

import rooflight as rl
from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


def x() -> torch.Tensor:
    return torch.ones(4, 8)


def described(program: Callable[[], Any], model: nn.Module | None = None) -> dict[str, Any]:
    before = torch_state()
    with rl.record(model) as recording:
        program()
    assert torch_state() == before
    session = recording.session
    return {
        "ops": [
            {
                "name": op.signature.name,
                "module": op.module.path,
                "direction": op.direction.label,
                "attributes": {key: value for key, value in op.signature.attributes if key.startswith("group")},
                "bytes": op.signature.input_bytes,
            }
            for op in session.records
            if op.parent is None
        ],
        "uncosted": [op.name for op in session.signatures if isinstance(cost_of(op), Uncosted)],
        "bytes_sent": sum(cost.bytes_sent for op in session.signatures if isinstance(cost := cost_of(op), OpCost)),
    }


def collectives() -> None:
    both = dist.group.WORLD
    dist.all_reduce(torch.ones(100))
    dist.broadcast(torch.ones(100), 0)
    dist.all_gather_into_tensor(torch.empty(200), torch.ones(100))
    dist.reduce_scatter_tensor(torch.empty(100), torch.ones(200))
    dist.all_to_all_single(torch.empty(100), torch.ones(100))
    dist.all_gather([torch.empty(10), torch.empty(10)], torch.ones(10))
    dist.all_reduce(torch.ones(100), group=ALONE[dist.get_rank()])
    (functional.all_reduce(torch.ones(100), "sum", both) + 0).sum()
    functional.all_gather_tensor(torch.ones(100), 0, both).sum()
    functional.reduce_scatter_tensor(torch.ones(200), "sum", 0, both).sum()
    other = 1 - dist.get_rank()
    if dist.get_rank() == 0:
        dist.send(torch.ones(5), other)
    else:
        dist.recv(torch.ones(5), other)
    dist.barrier()


ALONE: list[Any] = []


def find(rank: int, world: int, folder: Path) -> None:
    ALONE.extend(dist.new_group([number]) for number in range(world))
    mesh = init_device_mesh("cpu", (world,))
    found: dict[str, Any] = {}

    found["collectives"] = described(collectives)

    wrapped = DistributedDataParallel(Net())
    wrapped(x()).sum().backward()
    found["ddp"] = described(lambda: wrapped(x()).sum().backward(), wrapped)

    sharded = Net()
    for part in (sharded.up, sharded.down, sharded):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(sharded.parameters(), foreach=True)

    def step() -> None:
        sharded(x()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    found["fsdp"] = described(step, sharded)

    left = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    right = distribute_tensor(torch.ones(8, 8), mesh, [Replicate()])
    found["first dtensor"] = described(lambda: (left @ right).redistribute(mesh, [Replicate()]))
    found["dtensor"] = described(lambda: (left @ right).redistribute(mesh, [Replicate()]))

    with rl.record(sharded) as recording:  # something outside the dispatcher wrote beside parameters that are DTensors
        outside = torch.empty(3)
        outside.numpy()[:] = 1
        outside.sum()
    found["beside dtensors"] = [op.name for op in rl.analyze(recording, "H100-SXM5-80GB").coverage.uncosted]

    with rl.record():
        recorded = (left @ right).full_tensor()
    assert torch.equal(recorded, torch.full((8, 8), 8.0))
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.main(find)
