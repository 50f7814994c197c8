"""The MLP of a Megatron block, tensor parallel, recorded on CPU ranks over gloo: what each rank computes and sends.

    pip install --no-deps megatron-core==0.16.1
    torchrun --nproc-per-node 2 examples/megatron_layers.py
    rooflight analyze rank0.session rank1.session --device H100-SXM5-80GB

The layers are megatron-core's own. Their products are torch's on any device, so all of them are recorded; on a GPU with
Transformer Engine, or with fused accumulation of gradients, what bypasses the dispatcher is filled in from the shapes.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist

if __name__ == "__main__" and "RANK" not in os.environ:
    print("run it with torchrun --nproc-per-node 2 examples/megatron_layers.py", file=sys.stderr)
    raise SystemExit(2)
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor, nn

import rooflight as rl


class ParallelMLP(nn.Module):
    """Each rank has its part of the hidden width: one all-reduce of the output, and one of the input's gradient."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=dist.get_world_size(),
            params_dtype=torch.float32,
            use_cpu_initialization=True,
        )
        initialise = nn.init.xavier_normal_
        self.up = ColumnParallelLinear(
            width, hidden, config=config, init_method=initialise, bias=True, gather_output=False, skip_bias_add=False
        )
        self.down = RowParallelLinear(
            hidden, width, config=config, init_method=initialise, bias=True, input_is_parallel=True, skip_bias_add=False
        )

    def forward(self, x: Tensor) -> Tensor:
        up, _ = self.up(x)
        out, _ = self.down(nn.functional.gelu(up))
        return out


def recorded_step(sequence: int, batch: int, width: int, hidden: int) -> rl.Session:
    """Forward and backward on this rank, all ranks being one tensor-parallel group."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    model = ParallelMLP(width, hidden)
    x = torch.randn(sequence, batch, width, requires_grad=True)
    with rl.record(model) as recording:
        model(x).sum().backward()
    parallel_state.destroy_model_parallel()
    return recording.session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    session = recorded_step(given.sequence, given.batch, given.width, given.hidden)
    rank = dist.get_rank()
    path = session.save(f"rank{rank}.session")
    totals = rl.analyze(session, "H100-SXM5-80GB").totals
    print(f"rank {rank}: {totals.matrix_flops:,} matrix FLOPs, {totals.bytes_sent:,} bytes sent, kept in {path}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
