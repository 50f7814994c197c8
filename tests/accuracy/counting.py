"""What the accuracy tests share: run something under the real recorder and cost what was seen.

Every expected number stands in the tests with its arithmetic. Inputs are made before recording, and gradients start
from a dense tensor, so that nothing but what a test is about is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import rooflight as rl
from rooflight.costs.cost import OpCost
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.groups import Operation

DEVICE = "H100-SXM5-80GB"

Run = Callable[[], Any]


def analyse(run: Run, model: torch.nn.Module | None = None) -> Analysis:
    """Record ``run`` once."""
    with rl.record(model) as recording:
        run()
    return rl.analyze(recording.session, DEVICE)


def analyse_training(run: Run, model: torch.nn.Module | None = None) -> Analysis:
    """Record ``run`` and the backward pass of the tensor that it returns, from a dense gradient."""
    with torch.no_grad():
        gradient = torch.ones_like(run())
    return analyse(lambda: run().backward(gradient), model)


def flops(run: Run) -> int:
    """Matrix FLOPs of ``run``."""
    return analyse(run).totals.matrix_flops


def training_flops(run: Run) -> int:
    """Matrix FLOPs of ``run`` and its backward pass."""
    return analyse_training(run).totals.matrix_flops


def moved(run: Run) -> tuple[int, int]:
    """Bytes read and written by ``run``; all of it must have a formula."""
    analysis = analyse(run)
    assert analysis.coverage.uncosted == ()
    return analysis.totals.bytes_read, analysis.totals.bytes_written


def operation(analysis: Analysis, name: str) -> Operation:
    """The only signature of this name."""
    found = [op for op in analysis.operations if op.signature.name == name]
    assert len(found) == 1, [op.signature.name for op in analysis.operations]
    return found[0]


def cost(analysis: Analysis, name: str) -> OpCost:
    """The cost of the only call of this name."""
    op = operation(analysis, name)
    assert op.calls == 1
    assert isinstance(op.cost, OpCost)
    return op.cost


def bytes_of(analysis: Analysis, name: str) -> tuple[int, int]:
    """Bytes read and written by the only call of this name."""
    found = cost(analysis, name)
    return found.bytes_read, found.bytes_written


def rand(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.rand(shape, device=device).to(dtype).requires_grad_(grad)
