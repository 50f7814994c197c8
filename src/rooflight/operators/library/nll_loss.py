"""nll_loss: the loss of a batch of tokens from their log-probabilities; `cross_entropy` has the log-softmax too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, scalar, tensor
from rooflight.operators.sizes import MUL, ROWS, VOCABULARY, Progression
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, integers, random


def work(shape: Shape, dtype: str) -> Work:
    """Log-probabilities [rows, vocab], targets [rows]: one lookup a row; the gradient fills the whole."""
    rows = shape["rows"]
    x, target, one = tensor(dtype, rows, shape["vocab"]), tensor("int64", rows), scalar(dtype)
    gradient = {"grad_output": one, "self": x, "target": target, "total_weight": one}
    return Work(
        forward=(call("aten::nll_loss_forward", {"self": x, "target": target}, one, one),),
        backward=(call("aten::nll_loss_backward", gradient, x),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Log-probabilities and targets."""
    x = random(torch, dtype, device, shape["rows"], shape["vocab"], grad=True)
    targets = integers(torch, device, shape["vocab"], shape["rows"])
    return differentiable(torch, lambda: torch.nn.functional.nll_loss(x, targets), [x])


register(
    Operator(
        name="nll_loss",
        summary="mean negative log-likelihood of log-probabilities [rows, vocab]",
        sizes={"rows": replace(ROWS, collect=Progression(256, 2, 8192, MUL)), "vocab": VOCABULARY},
        work=work,
        prepare=prepare,
        check=anything,
    )
)
