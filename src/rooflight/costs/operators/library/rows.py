"""Operators on rows of numbers: arithmetic, activations, softmaxes, sums, copies."""

from __future__ import annotations

from typing import Any

from rooflight.costs.operators.operator import STEP, Prepared, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, in_place, map_one, map_two, tensor
from rooflight.costs.operators.sizes import (
    ADD,
    BATCH,
    ELEMENTS,
    FLAG,
    HIDDEN,
    HIDDEN_WIDTH,
    LAYER_SIZES,
    LENGTH,
    ROWS,
    WIDTH,
    Progression,
    Size,
    Span,
)
from rooflight.costs.operators.tensor_parallel import at_most, hidden
from rooflight.costs.operators.tensors import random
from rooflight.records.signature import AttributeValue

SCALAR = 0.625
"""The number that stands in for the second tensor; no power of it has a special kernel."""


class Binary:
    """``aten::name`` of two tensors, or of one and a number; ``second`` is what its schema calls the other one.

    One way: what its gradient runs is other operators, where it is anything.
    """

    positive = True  # no power of a negative number is one

    def __init__(self, name: str, second: str) -> None:
        self.name, self.second = name, second

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["rows"], shape["width"])
        return Work(forward=(call(f"aten::{self.name}", {"self": x, self.second: None if shape["scalar"] else x}, x),))

    def run(self, torch: Any, shape: Shape, x: Any, other: Any = SCALAR) -> Any:
        return getattr(torch, self.name)(x, other)


for _name, _second, _share in (("add", "other", 3), ("div", "other", 0), ("mul", "other", 3), ("pow", "exponent", 0)):
    operator(
        f"{_name} of two [rows, width]; scalar 1 for one and a number",
        name=_name,
        directions=STEP,
        smart_share=_share,
        rows=ROWS,
        width=WIDTH,
        scalar=FLAG,
    )(Binary(_name, _second))


class Unary:
    """An op from one tensor to one like it; ``backward`` takes the gradient, and the input ("self") or the output.

    ``settings`` are those of either direction.
    """

    def __init__(self, op: str, backward: str, takes: str, **settings: AttributeValue) -> None:
        self.op, self.backward, self.takes, self.settings = op, backward, takes, settings

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["rows"], shape["width"])
        return Work(
            forward=(map_one(f"aten::{self.op}", x, **self.settings),),
            backward=(call(f"aten::{self.backward}", {"grad_output": x, self.takes: x}, x, **self.settings),),
        )

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        name = self.op.removeprefix("_")
        return (getattr(torch, name, None) or getattr(torch.nn.functional, name))(x, **self.settings)


for _name, _what, _share, _unary in (
    ("relu", "relu", 0, Unary("relu", "threshold_backward", "self")),
    ("silu", "SiLU", 0, Unary("silu", "silu_backward", "self")),
    ("tanh", "tanh", 0, Unary("tanh", "tanh_backward", "output")),
    ("softmax_rows", "softmax of each row", 2, Unary("_softmax", "_softmax_backward_data", "output", dim=-1)),
    (
        "log_softmax_rows",
        "log-softmax of each row",
        0,
        Unary("_log_softmax", "_log_softmax_backward_data", "output", dim=-1),
    ),
):
    operator(f"{_what} of [rows, width]", name=_name, smart_share=_share, rows=ROWS, width=WIDTH)(_unary)


class Gelu:
    """The activation between the MLP's projections."""

    def size(self, shape: Shape) -> tuple[int, ...]:
        return shape["l"], shape["b"], 4 * shape["dim"] // shape["mp"]

    def work(self, shape: Shape, dtype: str) -> Work:
        x, how = tensor(dtype, *self.size(shape)), "tanh" if shape.get("tanh") else "none"
        return Work(
            forward=(map_one("aten::gelu", x, approximate=how),),
            backward=(call("aten::gelu_backward", {"grad_output": x, "self": x}, x, approximate=how),),
        )

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        return torch.nn.functional.gelu(x, approximate="tanh" if shape.get("tanh") else "none")


operator("GELU of [l, b, 4 dim / mp]", name="gelu", check=hidden, **LAYER_SIZES)(Gelu)
_SUMMARY = "GELU of [rows, width]; tanh 1 for the approximation that GPT-2 has"


@operator(_SUMMARY, smart_share=3, rows=ROWS, width=WIDTH, tanh=FLAG)
class gelu_rows(Gelu):
    """GELU of any size; ``gelu`` has estimate-train-time's parameters."""

    def size(self, shape: Shape) -> tuple[int, ...]:
        return shape["rows"], shape["width"]


@operator("silu(gate) * up, both [rows, dim]", smart_share=2, rows=ROWS, dim=HIDDEN_WIDTH)
class swiglu:
    """The gated activation of today's MLPs."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["rows"], shape["dim"])
        product = map_two("aten::mul", x, x)
        return Work(
            inputs=(x, x),
            forward=(map_one("aten::silu", x), product),
            backward=(product, product, call("aten::silu_backward", {"grad_output": x, "self": x}, x)),
        )

    def run(self, torch: Any, shape: Shape, gate: Any, up: Any) -> Any:
        return torch.nn.functional.silu(gate) * up


@operator("-x of [rows, width]", rows=ROWS, width=WIDTH)
class neg:
    """The sign turned, as rotary embeddings do to half a head."""

    def work(self, shape: Shape, dtype: str) -> Work:
        turned = (map_one("aten::neg", tensor(dtype, shape["rows"], shape["width"])),)
        return Work(forward=turned, backward=turned)

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        return torch.neg(x)


@operator("dropout of a tenth of [rows, width]", smart_share=2, rows=ROWS, width=WIDTH)
class dropout:
    """A tenth of the numbers set to zero, the others scaled: numbers and mask, then the gradient times the mask."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x, mask = tensor(dtype, shape["rows"], shape["width"]), tensor("bool", shape["rows"], shape["width"])
        return Work(
            forward=(call("aten::native_dropout", {"input": x}, x, mask, train=True),),
            backward=(call("aten::native_dropout_backward", {"grad_output": x, "mask": mask}, x),),
        )

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        return torch.dropout(x, 0.1, True)


@operator("residual addition of [l, b, dim]", b=BATCH, l=LENGTH, dim=HIDDEN)
class res_add:
    """The residual stream plus what a block adds to it; backward, the gradients of the two branches are added."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["l"], shape["b"], shape["dim"])
        added = (map_two("aten::add", x, x),)
        return Work(forward=added, backward=added)

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        x, y, dx, dy = (random(torch, dtype, device, shape["l"], shape["b"], shape["dim"]) for _ in range(4))
        return Prepared(forward=lambda: torch.add(x, y), backward=lambda _: torch.add(dx, dy))


@operator("the rows of [rows, width] added up", directions=STEP, rows=ROWS, width=WIDTH)
class sum_rows:
    """Rows added up, as the gradient of a bias is."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x, total = tensor(dtype, shape["rows"], shape["width"]), tensor(dtype, 1, shape["width"])
        return Work(forward=(call("aten::sum", {"self": x}, total, dim=(0,), keepdim=True),))

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        return torch.sum(x, 0, keepdim=True)


@operator(
    "`parts` tensors [rows, width] put side by side",
    check=at_most(parts=1024),
    directions=STEP,
    rows=ROWS,
    width=WIDTH,
    parts=Size(test=2, collect=Progression(2, 1, 3, ADD), smart=Span(choices=(2, 3)), default=2),
)
class cat:
    """Tensors side by side in a new one. One way: a gradient is only looked at in parts."""

    def work(self, shape: Shape, dtype: str) -> Work:
        rows, width, parts = shape["rows"], shape["width"], shape["parts"]
        part, whole = tensor(dtype, rows, width), tensor(dtype, rows, parts * width)
        return Work(forward=(call("aten::cat", {"tensors": [part] * parts}, whole, dim=-1),))

    def run(self, torch: Any, shape: Shape, *parts: Any) -> Any:
        return torch.cat(parts, dim=-1)


@operator("[elements] copied within a device's memory", directions=STEP, smart_share=2, elements=ELEMENTS)
class copy:
    """Memory to memory on one device, read once and written once."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["elements"])
        return Work(forward=(in_place("aten::copy_", x, {"src": x}),))

    def run(self, torch: Any, shape: Shape, target: Any, source: Any) -> Any:
        return target.copy_(source)
