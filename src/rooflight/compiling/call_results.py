"""What a call returned: whether gradients may follow, and when a GPU has it."""

from __future__ import annotations

from typing import Any

import torch


def passes_back(out: Any) -> bool:
    """Whether a backward pass may follow: a result, or a part of it, requires gradients."""
    if isinstance(out, torch.Tensor):
        return out.requires_grad
    if isinstance(out, dict):
        return any(passes_back(each) for each in out.values())
    return isinstance(out, (list, tuple)) and any(passes_back(each) for each in out)


def synchronize(out: Any) -> None:
    """Wait for the GPU, if the result is there."""
    first = out[0] if isinstance(out, (list, tuple)) and out else out
    if isinstance(first, torch.Tensor) and first.is_cuda:
        torch.cuda.synchronize()
