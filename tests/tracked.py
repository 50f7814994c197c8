"""A device for tests of tracking, so that none waits for a calibration, and a small model to track."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from calibrated import calibration_of
from torch import nn

from rooflight.devices import calibrations
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs

ROOFS = Roofs(
    source="by hand",
    matrix_flops_per_s={"float32": 1e12, "bfloat16": 2e12},
    vector_flops_per_s={"float32": 1e12, "float64": 5e11},
    memory=(MemoryLevel(name="DRAM", capacity_bytes=64 << 30, bytes_per_s=1e11),),
)
CPU = DeviceSpec(name="a CPU by hand", vendor="", architecture="", kind="cpu", calibrated=ROOFS)


def calibrate_by_hand(folder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine counts as calibrated: what asks for the current device gets ``CPU``."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(folder))
    calibrations.save(calibration_of(ROOFS, CPU.name))


@contextmanager
def one_thread() -> Iterator[None]:
    """Small ops on several threads wait for each other, long where others use the machine too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def hooks_of(model: nn.Module) -> int:
    return sum(len(value) for m in model.modules() for name, value in vars(m).items() if "hooks" in name and value)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, width: int = 8, layers: int = 2, words: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def tokens(batch: int = 2, length: int = 4) -> torch.Tensor:
    return torch.arange(batch * length).view(batch, length) % 10


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
