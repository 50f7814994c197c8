"""Random programs: a seed makes a sequence of ops, modules and regions, the same one every time it is run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 8, 6

Transform = Callable[[torch.Tensor], torch.Tensor]


class Scaled(torch.autograd.Function):
    """A function of the user's own, which saves and computes in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor + x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * (ctx.factor + x.cos()), None


class Program(nn.Module):
    """Ops drawn from ``rng`` over a few registers of one shape; run it any number of times."""

    def __init__(self, seed: int, length: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.norm = nn.LayerNorm(WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.embedding = nn.Embedding(10, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.steps = [self._draw(rng) for _ in range(length)]
        self.regions = [rng.choice(REGIONS) if rng.random() < 0.25 else nullcontext for _ in range(length)]
        self.optimizer = rng.choice(OPTIMIZERS)(self.parameters())
        self.clip = rng.random() < 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        registers = [x, x * 0.5]
        for (source, other, target, step), region in zip(self.steps, self.regions, strict=True):
            with region():
                out = step(self, registers[source], registers[other])
            if out.is_inference() or out.dtype is not torch.float32:
                out = out.clone().float()
            registers[target] = out
        return registers[0] + registers[1]

    def _draw(self, rng: random.Random) -> tuple[int, int, int, Callable[..., torch.Tensor]]:
        return rng.randrange(2), rng.randrange(2), rng.randrange(2), rng.choice(STEPS)


def _attention(p: Program, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.view(1, ROWS, 2, WIDTH // 2).transpose(1, 2) for t in (a.contiguous(), b.contiguous(), p.linear(a)))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(ROWS, WIDTH)


def _fused(p: Program, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    q, k, v = torch.cat([a, b, a], dim=1).chunk(3, dim=-1)
    return q * k + v


def _view_in_place(p: Program, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    copy = a.clone(memory_format=torch.contiguous_format)
    copy[1:4].mul_(2).add_(b[:3])
    copy.t()[2].zero_()
    copy.view(-1)[3:9].tanh_()
    return copy


def _foreach(p: Program, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch._foreach_mul(torch._foreach_add([a, b, a], [b, b, b]), 0.5)).mean(0)


def _checkpointed(reentrant: bool) -> Callable[..., torch.Tensor]:
    return lambda p, a, b: checkpoint(p.block, a, use_reentrant=reentrant)


def _indexed(p: Program, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    order = torch.tensor([3, 0, 0, 5, 1, 2])
    return a[order] + b.gather(1, torch.arange(WIDTH).flip(0).expand(ROWS, WIDTH)) + a.index_select(0, order)


STEPS: list[Callable[..., torch.Tensor]] = [
    lambda p, a, b: p.linear(a),
    lambda p, a, b: p.conv(a.unsqueeze(1)).sum(1),
    lambda p, a, b: a @ p.weight,
    lambda p, a, b: torch.bmm(a.unsqueeze(0), p.weight.expand(1, WIDTH, WIDTH)).squeeze(0),
    lambda p, a, b: torch.einsum("ij,jk->ik", b, p.weight),
    lambda p, a, b: (a + b).tanh(),
    lambda p, a, b: functional.gelu(a) * torch.sigmoid(b),
    lambda p, a, b: a.clone().add_(b).relu_(),
    lambda p, a, b: a / (1 + b.abs()),
    lambda p, a, b: a - a.mean(dim=0, keepdim=True) + b.amax(dim=1, keepdim=True),
    lambda p, a, b: a.softmax(-1) * b.log_softmax(-1),
    lambda p, a, b: p.norm(a),
    lambda p, a, b: p.batch_norm(a),
    lambda p, a, b: torch.cat(torch.split(a, [2, 4]), dim=0) * b,
    lambda p, a, b: torch.where(a > 0, a, b),
    lambda p, a, b: functional.dropout(a, 0.3) + functional.dropout(b, 0.1, training=False),
    lambda p, a, b: p.embedding(torch.arange(ROWS)) * a,
    lambda p, a, b: Scaled.apply(a, 1.5),
    lambda p, a, b: p.block(a),
    lambda p, a, b: a.t().contiguous().t() * 1.0,
    lambda p, a, b: a.cumsum(0) * 0.1 + b.sort(dim=1).values,
    lambda p, a, b: a.clamp(-1, 1).pow(2) + torch.randn(ROWS, WIDTH),
    lambda p, a, b: functional.pad(a, (1, 1))[:, 2:] + b,
    lambda p, a, b: a * functional.cross_entropy(b, torch.arange(ROWS) % WIDTH),
    _attention,
    _fused,
    _view_in_place,
    _foreach,
    _indexed,
    _checkpointed(reentrant=True),
    _checkpointed(reentrant=False),
]


@contextmanager
def _autocast() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


REGIONS: list[Callable[[], AbstractContextManager[Any]]] = [
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    _autocast,
]

OPTIMIZERS: list[Callable[..., torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True),
]


def train(
    seed: int, length: int, around: Callable[[nn.Module], AbstractContextManager[Any]]
) -> list[torch.Tensor | None]:
    """Two training steps of the program made from a seed, inside ``around(model)``: everything it leaves behind."""
    program = Program(seed, length)
    torch.manual_seed(seed + 1)
    left: list[torch.Tensor | None] = []
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with around(program):
        for _ in range(2):
            out = program(x)
            loss = out.square().mean() + 0 * sum(parameter.sum() for parameter in program.parameters())
            loss.backward()
            if program.clip:
                nn.utils.clip_grad_norm_(program.parameters(), 1.0)
            program.optimizer.step()
            left += [out.detach().clone(), loss.detach().clone(), x.grad.clone() if x.grad is not None else None]
            left += [None if p.grad is None else p.grad.clone() for p in program.parameters()]
            program.optimizer.zero_grad()
    left += [tensor.detach() for tensor in program.state_dict().values()]
    left.append(torch.get_rng_state())
    return left
