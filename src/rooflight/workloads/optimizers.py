"""Optimizers in the form that CUDA runs by default, also where torch would choose another (CPU) or none (meta)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from rooflight.workloads.errors import TargetError
from rooflight.workloads.extras import need_torch

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

OptimizerName = Literal["adamw", "adamw-fused", "sgd", "none"]

TITLES: Final[dict[str, str]] = {
    "adamw": "AdamW (foreach)",
    "adamw-fused": "AdamW (fused)",
    "sgd": "SGD (foreach)",
    "none": "no optimizer",
}


def make_optimizer(name: str, model: nn.Module, *, with_state: bool = True) -> Optimizer | None:
    """The optimizer named over all parameters of the model; None for "none".

    ``with_state`` creates the state that the first step would, so that the first recorded step is a steady one.
    """
    if name not in get_args(OptimizerName):
        raise TargetError(f'unknown optimizer "{name}": use one of {", ".join(get_args(OptimizerName))}')
    if name == "none":
        return None
    optim = need_torch().optim
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: Optimizer
    if name == "sgd":
        optimizer = optim.SGD(parameters, lr=1e-4, foreach=True)
        return optimizer  # without momentum it has no state
    # a loop over parameters is what torch would choose on CPU and meta
    optimizer = optim.AdamW(parameters, lr=1e-4, foreach=True)
    if name == "adamw-fused":
        for group in optimizer.param_groups:  # the constructor refuses meta parameters
            group["fused"], group["foreach"] = True, False
    if with_state:
        _create_adamw_state(optimizer, fused=name == "adamw-fused")
    return optimizer


def _create_adamw_state(optimizer: Optimizer, *, fused: bool) -> None:
    torch = need_torch()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                # the fused kernel reads the step on the device, the others in Python
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
