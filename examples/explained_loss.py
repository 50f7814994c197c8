"""A loss with a branch on its data, for batches of several sizes: rooflight explain examples/explained_loss.py:loss"""

from collections.abc import Iterator

import torch
from torch import Tensor


def loss(x: Tensor, weight: Tensor, scale: float) -> Tensor:
    """A layer, scaled if its sum is positive; normalization, softmax, mean."""
    y = torch.relu(x @ weight)
    if y.sum() > 0:
        y = y * scale
    return torch.nn.functional.layer_norm(y, (256,)).softmax(-1).square().mean()


def get_inputs() -> Iterator[tuple[Tensor, Tensor, float]]:
    """Batches of 32, 48 and 64 rows: each is one call."""
    weight = torch.randn(256, 256, requires_grad=True)
    for rows in (32, 48, 64):
        yield torch.randn(rows, 256), weight, 0.5
