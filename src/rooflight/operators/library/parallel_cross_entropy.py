"""parallel_cross_entropy_128: the vocabulary-parallel loss as GPT-NeoX writes it, one rank's share of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, in_place, map_one, map_two, tensor
from rooflight.operators.sizes import ADD, BATCH, LENGTH, MUL, TENSOR_PARALLEL, Progression
from rooflight.operators.tensor_parallel import VOCABULARY, anything, padded_vocabulary
from rooflight.operators.tensors import integers, random

LOGITS = "float32"
"""GPT-NeoX turns logits into float32 before this op, whatever the precision."""


def work(shape: Shape, dtype: str) -> Work:  # noqa: ARG001 - see LOGITS
    """logits [b, l, V]: maximum, subtract, exponential, sum and divide in place, one lookup a token."""
    b, length, width = shape["b"], shape["l"], padded_vocabulary(shape["mp"])
    count = b * length
    x, row, column = tensor(LOGITS, b, length, width), tensor(LOGITS, b, length), tensor(LOGITS, b, length, 1)
    flat, indices, ids = tensor(LOGITS, count, width), tensor("int64", count), tensor("int64", b, length)
    outside, picked = tensor("bool", b, length), tensor(LOGITS, count)
    where = [indices, indices]
    forward = (
        call("aten::max", {"self": x}, row, ids, dim=-1, keepdim=False),
        in_place("aten::sub_", x, {"other": column}),
        call("aten::lt", {"self": ids}, outside),
        call("aten::ge", {"self": ids}, outside),
        call("aten::bitwise_or", {"self": outside, "other": outside}, outside),
        map_one("aten::clone", ids),
        map_one("aten::sub", ids),
        in_place("aten::masked_fill_", ids, {"mask": outside}),
        call("aten::arange", {}, indices),
        call("aten::index", {"self": flat, "indices": where}, picked),
        map_one("aten::clone", picked),
        in_place("aten::masked_fill_", row, {"mask": outside}),
        in_place("aten::exp_", x),
        call("aten::sum", {"self": x}, row, dim=(-1,), keepdim=False),
        map_one("aten::log", row),
        map_two("aten::sub", row, row),
        in_place("aten::div_", x, {"other": column}),
    )
    backward = (
        call("aten::arange", {}, indices),
        call("aten::index", {"self": flat, "indices": where}, picked),
        call("aten::_to_copy", {"self": tensor("bool", count)}, picked),
        map_one("aten::rsub", picked),
        in_place("aten::sub_", picked, {"other": picked}),
        in_place("aten::index_put_", flat, {"indices": where, "values": picked}),
        in_place("aten::mul_", x, {"other": column}),
    )
    return Work(forward=forward, backward=backward)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:  # noqa: ARG001 - see LOGITS
    """Logits, overwritten by every run, and targets of which some lie on other ranks."""
    b, length, width = shape["b"], shape["l"], padded_vocabulary(shape["mp"])
    logits = random(torch, LOGITS, device, b, length, width)
    targets = integers(torch, device, VOCABULARY, b, length)
    grads = torch.ones((b, length, 1), device=device)

    def forward() -> Any:
        logits.sub_(torch.max(logits, dim=-1)[0].unsqueeze(-1))
        outside = (targets < 0) | (targets >= width)
        local = targets.clone() - 0
        local.masked_fill_(outside, 0)
        local = local.view(-1)
        picked = logits.view(-1, width)[torch.arange(b * length, device=device), local].clone().view(b, length)
        picked.masked_fill_(outside, 0.0)
        total = logits.exp_().sum(-1)
        loss = torch.log(total) - picked
        logits.div_(total.unsqueeze(-1))
        return loss, outside, local

    def backward(saved: Any) -> Any:
        _, outside, local = saved
        flat = logits.view(-1, width)
        flat[torch.arange(b * length, device=device), local] -= 1.0 - outside.view(-1).float()
        return logits.mul_(grads)

    return Prepared(forward=forward, backward=backward)


register(
    Operator(
        name="parallel_cross_entropy_128",
        summary="vocabulary-parallel cross-entropy of [b, l, 50257 / mp padded], in float32",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": replace(BATCH, collect=Progression(2, 4, 8, MUL)),
            "l": replace(LENGTH, collect=Progression(1024, 256, 4096, ADD)),
        },
        work=work,
        prepare=prepare,
        check=anything,
    )
)
