"""A rank of a tensor-parallel Llama, and of programs that call collectives in every way: what its profiler saw."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import forked_ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import transformers
from measured_runs import quiet
from torch import nn
from torch.distributed import ProcessGroup, Work, all_reduce  # got before anything is attached
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from rooflight.inference import Profiler

LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "max_position_embeddings": 64}  # fmt: skip
IDS = torch.ones(2, 6, dtype=torch.long)


class RowParallel(nn.Module):
    """The columns of a linear layer that belong to this rank; ranks add up their parts."""

    def __init__(self, whole: nn.Linear, rank: int, world: int, *, late: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.chunk(world, dim=1)[rank].clone())
        self._late = late

    def forward(self, x):
        out = x @ self.weight.T
        time.sleep(self._late)
        all_reduce(out)
        return out


def rows(whole: nn.Linear, rank: int, world: int) -> nn.Linear:
    weight = whole.weight.chunk(world)[rank]
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    part.weight = nn.Parameter(weight.clone())
    return part


def llama() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval()


def tensor_parallel(model: nn.Module, rank: int, world: int, *, late: float = 0.0) -> nn.Module:
    """By hand: attention by heads, the MLP by columns and rows."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for part in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, part, rows(getattr(attention, part), rank, world))
        for part in ("gate_proj", "up_proj"):
            setattr(mlp, part, rows(getattr(mlp, part), rank, world))
        attention.o_proj = RowParallel(attention.o_proj, rank, world, late=late)
        mlp.down_proj = RowParallel(mlp.down_proj, rank, world, late=0.0)
    return model


def state() -> list[dict[str, int]]:
    """Everything that is called in torch.distributed."""
    owners = (ProcessGroup, Work, functional, dist, dist.distributed_c10d)
    return [{name: id(each) for name, each in vars(owner).items() if callable(each)} for owner in owners]


def profiler(folder: Path, name: str) -> Profiler:
    return quiet(folder / "out", run_name=name, model_profiling=True, collect_on_rank0_only=False)


def buckets(prof: Profiler, program) -> dict[str, tuple[int, float]]:
    """Calls and inclusive ms of the communication buckets of a step; under ``"other"`` the rest of it."""
    prof.begin_run(bsz=2)
    with torch.inference_mode(), prof.step_timing_ctx():
        prof.set_step_tokens(2)
        program()
    prof.end_run()
    pack = prof.results.runs[-1]
    found = {
        row.name: (row.calls_per_step, row.inclusive_ms) for row in pack.buckets.model if row.name.startswith("comm.")
    }
    return found | {"other": (0, pack.stats.mean_ms - sum(ms for _, ms in found.values()))}


def programs(rank: int, world: int, model: nn.Module) -> dict[str, object]:
    x = torch.ones(4)
    parts = [torch.empty(4) for _ in range(world)]
    whole = torch.empty(4 * world)
    group = dist.group.WORLD

    def asynchronous() -> None:
        if rank == 1:
            time.sleep(0.2)
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            time.sleep(0.1)  # between issue and wait: in no bucket of communication
        work.wait()

    def functional_calls() -> None:
        reduced = functional.all_reduce(x, "sum", group)
        gathered = functional.all_gather_tensor(x, 0, group)
        scattered = functional.reduce_scatter_tensor(torch.ones(4 * world), "sum", 0, group)
        assert (reduced + 1).shape == (4,)  # waits
        functional.wait_tensor(gathered.elem)
        assert scattered.shape == (4,)
        scattered.wait()

    def coalesced() -> None:
        with dist._coalescing_manager(group=group, async_ops=True) as pending:
            dist.all_gather_into_tensor(whole, x)
            dist.all_gather_into_tensor(whole.clone(), x)
        pending.wait()

    return {
        "tensor parallel": lambda: model(IDS),
        "sync": lambda: (dist.all_reduce(x), dist.broadcast(x, 0), dist.all_gather(parts, x), dist.barrier()),
        "async": asynchronous,
        "into tensor": lambda: (dist.all_gather_into_tensor(whole, x), dist.reduce_scatter_tensor(x, whole)),
        "lists": lambda: (dist.all_to_all_single(whole, whole.clone()), dist.all_gather_object([None] * world, rank)),
        "functional": functional_calls,
        "coalesced": coalesced,
    }


def run(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    before, found = state(), {}
    late = 0.15 if rank == world - 1 else 0.0
    with torch.inference_mode():
        plain = llama()(IDS).logits
    model = tensor_parallel(llama(), rank, world, late=late)
    prof = profiler(folder, "tp")
    prof.attach_model(model)
    for name, program in programs(rank, world, model).items():
        dist.barrier()
        found[name] = buckets(prof, program)
    for _ in range(3):
        buckets(prof, lambda: model(IDS))
    found["saved"] = str(prof.save_all())
    unwaited = dist.all_reduce(torch.ones(2), async_op=True)
    prof.detach()
    unwaited.wait()
    found["undone"] = state() == before
    with torch.inference_mode():
        found["same"] = bool(torch.allclose(model(IDS).logits, plain, atol=1e-5))
    mesh = init_device_mesh("cpu", (world,))
    dtensors = llama()
    for layer in dtensors.model.layers:
        plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        parallelize_module(layer.mlp, mesh, plan)
    prof = profiler(folder, "dtensor")
    prof.attach_model(dtensors)
    found["DTensor"] = buckets(prof, lambda: dtensors(IDS))
    prof.detach()
    found["undone again"] = state() == before
    found["problems"] = prof.problems.counts
    (folder / f"{world}_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.main(run)
