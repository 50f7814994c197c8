"""Megatron's fused causal softmax as one op: its kernel where that is installed, torch's masked softmax elsewhere.

The op's formula stands in ``costs.families.normalization``. It is registered with torch when first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

FORWARD = "rooflight::scaled_upper_triang_masked_softmax"
BACKWARD = "rooflight::scaled_upper_triang_masked_softmax_backward"
EXTENSION = "scaled_upper_triang_masked_softmax_cuda"
_DIM = -1
_SQUARE_MASK = 0


@cache
def triangular_softmax(torch: Any) -> Any:
    """The op, [batch, l, l] to [batch, l, l], with its gradient."""
    # a mask is kept for each length: a new one would take as long as the op on few heads
    masks: dict[tuple[int, Any], Any] = {}
    extension: Any = import_module(EXTENSION) if find_spec(EXTENSION) else None

    def mask(x: Any) -> Any:
        key = (x.shape[-1], x.device)
        if key not in masks:
            masks.clear()
            masks[key] = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        return masks[key]

    def forward(x: Any) -> Any:
        if extension is not None and x.is_cuda:
            return extension.forward(x, 1.0)
        return torch._masked_softmax(x.unsqueeze(0), mask(x), _DIM, _SQUARE_MASK).squeeze(0)

    def backward(grad: Any, out: Any) -> Any:
        if extension is not None and out.is_cuda:
            return extension.backward(grad.clone(), out, 1.0)
        return torch._softmax_backward_data(grad, out, _DIM, out.dtype)

    define = torch.library.custom_op
    softmax = define(FORWARD, forward, mutates_args=(), schema="(Tensor x) -> Tensor")
    gradient = define(BACKWARD, backward, mutates_args=(), schema="(Tensor grad, Tensor output) -> Tensor")
    softmax.register_fake(torch.empty_like)
    gradient.register_fake(lambda grad, output: torch.empty_like(grad))  # noqa: ARG005 - the schema's names
    softmax.register_autograd(
        lambda ctx, grad: gradient(grad, ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),  # noqa: ARG005
    )
    return softmax
