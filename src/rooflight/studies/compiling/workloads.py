"""Four workloads that a compiler gains differently from. Each function makes a step, on the device given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.steps import Step

if TYPE_CHECKING:
    from torch import Tensor, nn

Run = Callable[[], Any]

MATRICES: Final = 4
SIZE: Final = 256
TOKENS: Final = 128
HEADS: Final = 8


def simple_matmul_chain(device: str = "cpu") -> Run:
    """``MATRICES`` products of ``SIZE`` x ``SIZE`` matrices, each after the one before."""
    import torch

    x = torch.randn(SIZE, SIZE, device=device)
    weights = [torch.randn(SIZE, SIZE, device=device) / SIZE**0.5 for _ in range(MATRICES)]

    def run() -> Tensor:
        out = x
        for weight in weights:
            out = out @ weight
        return out

    return run


def mlp_training_step(device: str = "cpu") -> tuple[Run, nn.Module]:
    """Forward, mean squared error, backward and a step of SGD of a perceptron with one hidden layer, 128 rows."""
    import torch
    from torch import nn

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
            return out

    model = Perceptron().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, target = (torch.randn(TOKENS, SIZE, device=device) for _ in range(2))

    def run() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run, model


def attention_block(device: str = "cpu") -> Run:
    """Projections to queries, keys and values, softmax attention of ``HEADS`` heads written out, output projection."""
    import torch

    x = torch.randn(4, TOKENS, SIZE, device=device)
    into = torch.randn(SIZE, 3 * SIZE, device=device) / SIZE**0.5
    out_of = torch.randn(SIZE, SIZE, device=device) / SIZE**0.5
    width = SIZE // HEADS

    def run() -> Tensor:
        q, k, v = (x @ into).view(4, TOKENS, 3, HEADS, width).permute(2, 0, 3, 1, 4)
        shares = torch.softmax(q @ k.transpose(-2, -1) / width**0.5, dim=-1)
        out: Tensor = (shares @ v).transpose(1, 2).reshape(4, TOKENS, SIZE) @ out_of
        return out

    return run


def mixed_operations(device: str = "cpu") -> Run:
    """A product, activations, a normalization, a reduction, a gather and a sort: many kinds of ops on few bytes."""
    import torch

    x = torch.randn(SIZE, SIZE, device=device)
    weight = torch.randn(SIZE, SIZE, device=device) / SIZE**0.5
    index = torch.arange(SIZE - 1, -1, -1, device=device)

    def run() -> Tensor:
        out = torch.relu(x @ weight) + torch.sigmoid(x) * torch.tanh(x)
        out = torch.nn.functional.layer_norm(out, (SIZE,))
        out = out[index] - out.mean(dim=0, keepdim=True)
        return torch.cat([out, out.sort(dim=-1).values.cumsum(-1)], dim=-1).exp().clamp(max=10.0).sum(-1)

    return run


WORKLOADS: Final[dict[str, Callable[..., Any]]] = {
    "simple-matmul-chain": simple_matmul_chain,
    "mlp-training-step": mlp_training_step,
    "attention-block": attention_block,
    "mixed-operations": mixed_operations,
}
"""The workloads by the names that ``rooflight compile-bench`` takes."""


def open_workload(name: str, place: str) -> Step:
    """A step of one of the workloads, on a kind of device."""
    made = WORKLOADS[name](place)
    run, model = made if isinstance(made, tuple) else (made, None)
    return Step(run=run, model=model, description=name)
