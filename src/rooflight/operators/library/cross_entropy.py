"""cross_entropy: the loss of a batch of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, scalar, tensor
from rooflight.operators.sizes import MUL, ROWS, VOCABULARY, Progression
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, integers, random


def work(shape: Shape, dtype: str) -> Work:
    """logits [rows, vocab], targets [rows]: log-softmax, then one lookup a row."""
    rows = shape["rows"]
    x, target, one = tensor(dtype, rows, shape["vocab"]), tensor("int64", rows), scalar(dtype)
    return Work(
        forward=(
            map_one("aten::_log_softmax", x, dim=1),
            call("aten::nll_loss_forward", {"self": x, "target": target}, one, one),
        ),
        backward=(
            call(
                "aten::nll_loss_backward",
                {"grad_output": one, "self": x, "target": target, "total_weight": one},
                x,
            ),
            call("aten::_log_softmax_backward_data", {"grad_output": x, "output": x}, x, dim=1),
        ),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Logits and targets."""
    logits = random(torch, dtype, device, shape["rows"], shape["vocab"], grad=True)
    targets = integers(torch, device, shape["vocab"], shape["rows"])
    return differentiable(torch, lambda: torch.nn.functional.cross_entropy(logits, targets), [logits])


register(
    Operator(
        name="cross_entropy",
        summary="mean cross-entropy of logits [rows, vocab]",
        sizes={"rows": replace(ROWS, collect=Progression(256, 2, 8192, MUL)), "vocab": VOCABULARY},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=4,
    )
)
