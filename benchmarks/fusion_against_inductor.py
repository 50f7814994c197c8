"""The fused bound's bytes beside those that inductor's compiled kernels move, by its own count.

Exit code 1 if any compiled function moves fewer bytes than the bound says any must. Usage:
python benchmarks/fusion_against_inductor.py [--device cuda] [NAME ...]
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.compile_fx as inductor
import torch.nn.functional as F  # noqa: N812
from csv_results import write_csv
from torch import Tensor, nn
from torch._inductor import config, metrics

import rooflight as rl

ROWS, WIDTH, HEADS, VOCABULARY = 512, 1024, 8, 8192
Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A function and its arguments. With a ``gradient`` of its result, it is also run backward, to those of ``wrt``."""

    function: Function
    arguments: tuple[Any, ...]
    wrt: tuple[Tensor, ...] = ()
    gradient: Tensor | None = None

    def run(self, function: Function) -> Any:
        out = function(*self.arguments)
        return (out, torch.autograd.grad(out, self.wrt, self.gradient)) if self.wrt else out


@dataclass(frozen=True)
class Bytes:
    """Bytes moved by the ops one by one, at least once fused, and by inductor's kernels."""

    ops: int
    fused: int
    inductor: int

    @property
    def ratio(self) -> float:
        return self.inductor / self.fused


CASES: dict[str, Callable[[], Case]] = {}


def case(builder: Callable[[], Case]) -> Callable[[], Case]:
    CASES[builder.__name__.replace("_", " ")] = builder
    return builder


def trained(*names: str) -> None:
    """Also run the named cases forward and backward: as two graphs, as torch.compile does, or written out as one."""
    for name in names:
        CASES[f"{name}, trained"] = lambda forward=CASES[name]: _with_gradients(forward())
        if not name.startswith(("batch", "conv", "GPT")):  # those are modules
            CASES[f"{name}, trained, one graph"] = lambda forward=CASES[name]: _with_gradients_inside(forward())


def _with_gradients(forward: Case) -> Case:
    module = forward.function
    weights = list(module.parameters()) if isinstance(module, nn.Module) else []
    floats = [tensor for tensor in forward.arguments if tensor.is_floating_point()]
    gradient = torch.randn_like(module(*forward.arguments))
    return Case(module, forward.arguments, tuple(tensor.requires_grad_() for tensor in (*floats, *weights)), gradient)


def _with_gradients_inside(forward: Case) -> Case:
    floats = [tensor for tensor in forward.arguments if tensor.is_floating_point()]
    others = [tensor for tensor in forward.arguments if not tensor.is_floating_point()]

    def both(gradient: Tensor, *given: Tensor) -> Any:
        out, backward = torch.func.vjp(lambda *tensors: forward.function(*tensors, *others), *given)
        return out, backward(gradient)

    return Case(both, (torch.randn_like(forward.function(*forward.arguments)), *floats))


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


@case
def pointwise_chain() -> Case:
    return Case(lambda x: (x * 2 + 1).relu().cos(), (normal(ROWS, WIDTH),))


@case
def broadcast() -> Case:
    return Case(lambda x, row, column: (x + row) * column, (normal(ROWS, WIDTH), normal(WIDTH), normal(ROWS, 1)))


@case
def softmax() -> Case:
    return Case(lambda x: torch.softmax(x * 2, -1), (normal(ROWS, WIDTH),))


@case
def log_softmax() -> Case:
    return Case(lambda x: torch.log_softmax(x, -1), (normal(ROWS, WIDTH),))


@case
def layer_norm() -> Case:
    return Case(
        lambda x, w, b: F.layer_norm(x + 1, (WIDTH,), w, b), (normal(ROWS, WIDTH), normal(WIDTH), normal(WIDTH))
    )


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


@case
def rms_norm() -> Case:
    return Case(_rms_norm, (normal(ROWS, WIDTH), normal(WIDTH)))


@case
def batch_norm() -> Case:
    return Case(nn.BatchNorm2d(32), (normal(8, 32, 32, 32),))


@case
def GELU_MLP() -> Case:  # noqa: N802
    weights = normal(WIDTH, 4 * WIDTH), normal(4 * WIDTH, WIDTH)
    return Case(lambda x, up, down: F.gelu(x @ up) @ down, (normal(8 * ROWS, WIDTH), *weights))


@case
def ReLU_MLP() -> Case:  # noqa: N802
    weights = normal(WIDTH, 4 * WIDTH), normal(4 * WIDTH, WIDTH)
    return Case(lambda x, up, down: F.relu(x @ up) @ down, (normal(8 * ROWS, WIDTH), *weights))


@case
def SwiGLU() -> Case:  # noqa: N802
    weights = normal(WIDTH, 2 * WIDTH), normal(WIDTH, 2 * WIDTH), normal(2 * WIDTH, WIDTH)
    return Case(lambda x, gate, up, down: (F.silu(x @ gate) * (x @ up)) @ down, (normal(4 * ROWS, WIDTH), *weights))


def _split_heads(x: Tensor, rows: int) -> Tensor:
    return x.view(rows, -1, HEADS, x.shape[-1] // HEADS).transpose(1, 2)


@case
def attention_block() -> Case:
    def attend(x: Tensor, project: Tensor, out: Tensor) -> Tensor:
        query, key, value = (_split_heads(part, 4) for part in (x @ project).split(512, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + mixed.transpose(1, 2).reshape(x.shape) @ out

    return Case(attend, (normal(4, 256, 512), normal(512, 3 * 512), normal(512, 512)))


@case
def attention_by_hand() -> Case:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(1, 2) / 8
        hidden = torch.ones(256, 256, dtype=torch.bool, device=query.device).triu(1)
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ value

    return Case(attend, (normal(16, 256, 64), normal(16, 256, 64), normal(16, 256, 64)))


@case
def residual_and_norm() -> Case:
    def block(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + y
        return total, _rms_norm(total, weight)

    return Case(block, (normal(ROWS, WIDTH), normal(ROWS, WIDTH), normal(WIDTH)))


@case
def two_residual_products() -> Case:
    def block(x: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        x = x + _rms_norm(x, weight) @ first
        return x + _rms_norm(x, weight) @ second

    return Case(block, (normal(8 * ROWS, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH)))


def _adamw(**settings: Any) -> Case:
    weights = [nn.Parameter(normal(256, 256 + 8 * index)) for index in range(6)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, lr=1e-3, **settings)
    optimizer.step()  # makes its states
    return Case(optimizer.step, ())


@case
def AdamW_foreach() -> Case:  # noqa: N802
    return _adamw(foreach=True)


@case
def AdamW_for_loop() -> Case:  # noqa: N802
    return _adamw(foreach=False)


@case
def SGD_written_out() -> Case:  # noqa: N802
    def step(weight: Tensor, gradient: Tensor, momentum: Tensor) -> None:
        momentum.mul_(0.9).add_(gradient)
        weight.mul_(1 - 1e-4).add_(momentum, alpha=-1e-3)

    return Case(step, (normal(ROWS, WIDTH), normal(ROWS, WIDTH), normal(ROWS, WIDTH)))


@case
def cross_entropy() -> Case:
    return Case(F.cross_entropy, (normal(ROWS, VOCABULARY), torch.randint(0, VOCABULARY, (ROWS,))))


@case
def head_and_cross_entropy() -> Case:
    labels = torch.randint(0, VOCABULARY, (2 * ROWS,))
    return Case(lambda x, w, t: F.cross_entropy(x @ w, t), (normal(2 * ROWS, 512), normal(512, VOCABULARY), labels))


@case
def embedding_and_norm() -> Case:
    def block(table: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        return _rms_norm(F.embedding(tokens, table), weight)

    return Case(block, (normal(VOCABULARY, WIDTH), normal(WIDTH), torch.randint(0, VOCABULARY, (4, 256))))


@case
def dropout_and_residual() -> Case:
    return Case(lambda x, y: F.dropout(x.cos(), 0.1, training=True) + y, (normal(ROWS, WIDTH), normal(ROWS, WIDTH)))


@case
def cat_of_halves() -> Case:
    return Case(lambda x, y: torch.cat([x.cos(), y * 2], 1), (normal(ROWS, WIDTH), normal(ROWS, WIDTH)))


@case
def cat_then_add() -> Case:
    return Case(lambda x: torch.cat([x, x * 2], 0) + 1, (normal(ROWS, WIDTH),))


@case
def split_and_multiply() -> Case:
    def gate(x: Tensor) -> Tensor:
        first, second = x.split(WIDTH // 2, -1)
        return first.sigmoid() * second

    return Case(gate, (normal(ROWS, WIDTH),))


@case
def nonzeros_counted() -> Case:
    return Case(lambda x: torch.count_nonzero(x.relu()), (normal(ROWS, WIDTH),))


@case
def rows_summed_twice() -> Case:
    def sums(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.cos().sum(-1)
        return total * 2, total.exp()

    return Case(sums, (normal(ROWS, WIDTH),))


@case
def sum_and_column_means() -> Case:
    return Case(lambda x: (x.sum(), x.mean(0)), (normal(ROWS, WIDTH),))


@case
def convolution_block() -> Case:
    block = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    return Case(block, (normal(8, 16, 32, 32),))


def _gpt2_block(attention: str, dropout: float) -> Case:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    sizes = {"n_embd": 256, "n_head": 4, "n_positions": 256, "n_layer": 1}
    settings = GPT2Config(
        **sizes, attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout, attn_implementation=attention
    )
    block = GPT2Block(settings, layer_idx=0).train()

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            out = self.block(x)
            return out[0] if isinstance(out, tuple) else out

    return Case(First(), (normal(4, 256, 256),))


@case
def GPT_2_block() -> Case:  # noqa: N802
    return _gpt2_block("sdpa", 0.0)


@case
def GPT_2_block_eager() -> Case:  # noqa: N802
    return _gpt2_block("eager", 0.1)


trained(
    "pointwise chain",
    "softmax",
    "layer norm",
    "rms norm",
    "batch norm",
    "GELU MLP",
    "ReLU MLP",
    "SwiGLU",
    "attention block",
    "attention by hand",
    "two residual products",
    "cross entropy",
    "head and cross entropy",
    "embedding and norm",
    "dropout and residual",
    "convolution block",
    "GPT 2 block",
    "GPT 2 block eager",
)


def compare(built: Case) -> Bytes:
    """Record the case as it is, then compile it."""
    with rl.record(memory=True) as recording:
        kept = built.run(built.function)
    del kept
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    metrics.reset()
    torch._dynamo.reset()
    built.run(torch.compile(built.function))
    return Bytes(analysis.totals.bytes_moved, analysis.program.fused_bytes, metrics.num_bytes_accessed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the cases to run, all if none is named")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    inductor.inductor_metrics_log.setLevel(logging.INFO)  # without it nothing is counted
    inductor.inductor_metrics_log.propagate = False
    config.force_disable_caches = True
    warnings.simplefilter("ignore")
    torch.set_default_device(arguments.device)
    row, header = "{:34} {:>12} {:>12} {:>12} {:>8}", ("case", "ops, MB", "fused, MB", "inductor, MB", "ratio")
    print(row.format(*header))
    rows: list[tuple[str, ...]] = []
    beaten = 0
    for name in arguments.names or CASES:
        torch.manual_seed(0)
        found = compare(CASES[name]())
        beaten += found.ratio < 1
        sizes = (f"{size / 1e6:.3f}" for size in (found.ops, found.fused, found.inductor))
        rows.append((name, *sizes, f"{found.ratio:.3f}"))
        print(row.format(*rows[-1]), flush=True)
    if not arguments.names:
        write_csv("fusion_inductor", header, rows)
    return int(beaten > 0)


if __name__ == "__main__":
    sys.exit(main())
