"""Operators at both ends of a language model: lookups in a table of tokens, and losses over a vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.costs.operators.operator import Prepared, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, in_place, map_one, map_two, tensor
from rooflight.costs.operators.sizes import (
    ADD,
    BATCH,
    LAYER_SIZES,
    LENGTH,
    MUL,
    ROWS,
    TENSOR_PARALLEL,
    VOCABULARY,
    WIDTH,
    Progression,
)
from rooflight.costs.operators.tensor_parallel import GPT2_VOCABULARY, padded_vocabulary
from rooflight.costs.operators.tensors import integers, random

LOGITS = "float32"
"""GPT-NeoX turns logits into float32 before its parallel cross-entropy, whatever the precision."""


class Lookup:
    """Rows of a table [V, width] at some places; the gradient writes the whole table."""

    def table(self, shape: Shape) -> tuple[int, int]:
        return shape["vocab"], shape["width"]

    def places(self, shape: Shape) -> tuple[int, ...]:
        return (shape["rows"],)

    def below(self, shape: Shape) -> int:
        return self.table(shape)[0]

    def work(self, shape: Shape, dtype: str) -> Work:
        table, places = self.table(shape), self.places(shape)
        weight, indices, out = tensor(dtype, *table), tensor("int64", *places), tensor(dtype, *places, table[1])
        return Work(
            forward=(call("aten::embedding", {"weight": weight, "indices": indices}, out),),
            backward=(call("aten::embedding_dense_backward", {"grad_output": out, "indices": indices}, weight),),
        )

    def run(self, torch: Any, shape: Shape, weight: Any, indices: Any) -> Any:
        return torch.nn.functional.embedding(indices, weight)


@operator(
    "lookups [vocab, width] at [rows]",
    smart_share=3,
    rows=ROWS,
    vocab=VOCABULARY,
    width=replace(WIDTH, collect=Progression(1024, 1024, 8192, ADD)),
)
class embedding_rows(Lookup):
    """Lookups in a table of any size; ``embedding`` has estimate-train-time's parameters."""


@operator("token lookups [V, dim] at [b, l], V = 50257 / mp padded to a multiple of 128", **LAYER_SIZES)
class embedding(Lookup):
    """Lookups in one rank's part of a token table."""

    def table(self, shape: Shape) -> tuple[int, int]:
        return padded_vocabulary(shape["mp"]), shape["dim"]

    def places(self, shape: Shape) -> tuple[int, ...]:
        return shape["b"], shape["l"]


class Loss:
    """A loss of a batch of tokens, from logits or log-probabilities [rows, vocab] and targets [rows]: one lookup a row;
    the gradient fills the whole.
    """

    def below(self, shape: Shape) -> int:
        return shape["vocab"]

    def work(self, shape: Shape, dtype: str) -> Work:
        rows = shape["rows"]
        x, target, one = tensor(dtype, rows, shape["vocab"]), tensor("int64", rows), tensor(dtype)
        gradient = {"grad_output": one, "self": x, "target": target, "total_weight": one}
        return Work(
            inputs=(x, target),
            forward=(call("aten::nll_loss_forward", {"self": x, "target": target}, one, one),),
            backward=(call("aten::nll_loss_backward", gradient, x),),
        )


@operator(
    "mean negative log-likelihood of log-probabilities [rows, vocab]",
    rows=replace(ROWS, collect=Progression(256, 2, 8192, MUL)),
    vocab=VOCABULARY,
)
class nll_loss(Loss):
    """The loss from log-probabilities; ``cross_entropy`` has the log-softmax too."""

    def run(self, torch: Any, shape: Shape, x: Any, targets: Any) -> Any:
        return torch.nn.functional.nll_loss(x, targets)


@operator(
    "mean cross-entropy of logits [rows, vocab]",
    smart_share=4,
    rows=replace(ROWS, collect=Progression(256, 2, 8192, MUL)),
    vocab=VOCABULARY,
)
class cross_entropy(Loss):
    """The loss from logits: log-softmax, then one lookup a row."""

    def work(self, shape: Shape, dtype: str) -> Work:
        loss = super().work(shape, dtype)
        x = loss.inputs[0]
        backward = call("aten::_log_softmax_backward_data", {"grad_output": x, "output": x}, x, dim=1)
        return replace(
            loss, forward=(map_one("aten::_log_softmax", x, dim=1), *loss.forward), backward=(*loss.backward, backward)
        )

    def run(self, torch: Any, shape: Shape, logits: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, targets)


@operator(
    "vocabulary-parallel cross-entropy of [b, l, 50257 / mp padded], in float32",
    mp=TENSOR_PARALLEL,
    b=replace(BATCH, collect=Progression(2, 4, 8, MUL)),
    l=replace(LENGTH, collect=Progression(1024, 256, 4096, ADD)),
)
class parallel_cross_entropy_128:
    """The vocabulary-parallel loss as GPT-NeoX writes it, one rank's share of it: maximum, subtract, exponential, sum
    and divide in place, one lookup a token.
    """

    def work(self, shape: Shape, dtype: str) -> Work:
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

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """Logits, overwritten by every run, and targets of which some lie on other ranks."""
        b, length, width = shape["b"], shape["l"], padded_vocabulary(shape["mp"])
        logits = random(torch, LOGITS, device, b, length, width)
        targets = integers(torch, device, GPT2_VOCABULARY, b, length)
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
