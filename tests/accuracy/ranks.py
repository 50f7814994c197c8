"""The ranks of the distributed accuracy tests: each writes what it sent as JSON. Started by ``forked_ranks``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rooflight as rl
from rooflight.costs.cost import OpCost

DEVICE = "H100-SXM5-80GB"


def floats(count: int) -> torch.Tensor:
    return torch.ones(count)


def collectives(ranks: int) -> dict[str, Callable[[], Any]]:
    """Each case moves 120 floats, 480 bytes: the whole buffer, gathered or unscattered."""
    whole, share = 120, 120 // ranks
    group = dist.group.WORLD
    return {
        "all_reduce": lambda: dist.all_reduce(floats(whole)),
        "all_reduce_bfloat16": lambda: dist.all_reduce(floats(whole).bfloat16()),
        "all_reduce_odd": lambda: dist.all_reduce(floats(100)),
        "all_reduce_async": lambda: dist.all_reduce(floats(whole), async_op=True).wait(),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(floats(whole), floats(share)),
        "all_gather": lambda: dist.all_gather([floats(share) for _ in range(ranks)], floats(share)),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(floats(share), floats(whole)),
        "all_to_all_single": lambda: dist.all_to_all_single(floats(whole), floats(whole)),
        "broadcast": lambda: dist.broadcast(floats(whole), src=0),
        "reduce": lambda: dist.reduce(floats(whole), dst=0),
        "barrier": dist.barrier,
        "functional_all_reduce": lambda: functional.all_reduce(floats(whole), "sum", group).sum(),
        "functional_all_gather": lambda: functional.all_gather_tensor(floats(share), 0, group).sum(),
        "functional_reduce_scatter": lambda: functional.reduce_scatter_tensor(floats(whole), "sum", 0, group).sum(),
        "functional_all_to_all": lambda: functional.all_to_all_single(floats(whole), None, None, group).sum(),
        "functional_broadcast": lambda: functional.broadcast(floats(whole), 0, group).sum(),
        "send_receive": lambda: pass_on(ranks, floats(whole)),
    }


def pass_on(ranks: int, buffer: torch.Tensor) -> None:
    """Rank 0 sends to rank 1; others look on."""
    if dist.get_rank() == 0:
        dist.send(buffer, 1)
    elif dist.get_rank() == 1:
        dist.recv(buffer, 0)


def network() -> nn.Module:
    """8 x 16 + 16 + 16 x 4 + 4 = 212 parameters, 848 bytes of gradients."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def data_parallel() -> Callable[[], Any]:
    model = DistributedDataParallel(network())

    def step() -> None:
        model.zero_grad()
        model(torch.ones(5, 8)).sum().backward()

    for _ in range(3):  # DDP rebuilds its buckets after the first step
        step()
    return step


def fully_sharded() -> Callable[[], Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(12, 12, bias=False), nn.ReLU())
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))

    def step() -> None:
        model.zero_grad()
        model(torch.ones(5, 12)).sum().backward()

    step()
    return step


def sent_by(run: Callable[[], Any]) -> dict[str, Any]:
    with rl.record() as recording:
        run()
    analysis = rl.analyze(recording.session, DEVICE)
    networked = [op for op in analysis.operations if "c10d" in op.signature.name]
    return {
        "sent": analysis.totals.bytes_sent,
        "matrix_flops": analysis.totals.matrix_flops,
        "uncosted": [op.name for op in analysis.coverage.uncosted],
        "ops": {op.signature.name: op.calls for op in networked},
        "moved": sum(op.cost.bytes_moved * op.calls for op in networked if isinstance(op.cost, OpCost)),
    }


def tell(rank: int, ranks: int, folder: Path) -> None:
    results: dict[str, Any] = {}
    for name, run in collectives(ranks).items():
        try:
            results[name] = sent_by(run)
        except RuntimeError as error:  # a backend that lacks a collective says so on all ranks
            results[name] = {"error": str(error)}
    results["data_parallel"] = sent_by(data_parallel())
    try:
        results["fully_sharded"] = sent_by(fully_sharded())
    except RuntimeError as error:
        results["fully_sharded"] = {"error": str(error)}
    (folder / f"{ranks}.{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    forked_ranks.main(tell)
