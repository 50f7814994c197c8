"""moe: a mixture of experts' MLPs under balanced routing: dispatch, two products an expert, gates, combine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import bmm, call, map_one, map_two, swapped, tensor
from rooflight.operators.sizes import (
    ADD,
    ATTENTION_BATCH,
    HIDDEN,
    LENGTH,
    MUL,
    TENSOR_PARALLEL,
    Progression,
    Size,
    Span,
)
from rooflight.operators.tensor_parallel import divides
from rooflight.operators.tensors import differentiable, random


class Sizes(NamedTuple):
    """Tokens, hidden size, experts, rows each of them takes, and one rank's part of an expert's inner size."""

    tokens: int
    dim: int
    experts: int
    rows: int
    inner: int


def sizes(shape: Shape) -> Sizes:
    """Every expert takes b l top_k / experts rows, rounded up."""
    tokens, experts = shape["b"] * shape["l"], shape["moe_num_experts"]
    rows = -(-tokens * shape["top_k"] // experts)
    return Sizes(tokens, shape["dim"], experts, rows, shape["intermediate_size"] // shape["mp"])


def check(shape: Shape) -> str | None:
    """Experts are cut along their inner size; a token goes to different experts."""
    if shape["top_k"] > shape["moe_num_experts"]:
        return f"top_k={shape['top_k']} of moe_num_experts={shape['moe_num_experts']}"
    return divides(shape, ("intermediate_size", "mp"))


def work(shape: Shape, dtype: str) -> Work:
    """Gather rows [E C, dim], [E, C, dim] x [E, dim, f], GELU, x [E, f, dim], times the gates, added into [T, dim]."""
    tokens, dim, experts, rows, inner = sizes(shape)
    x, index = tensor(dtype, tokens, dim), tensor("int64", experts * rows)
    flat, gate = tensor(dtype, experts * rows, dim), tensor(dtype, experts * rows, 1)
    dispatched, hidden = tensor(dtype, experts, rows, dim), tensor(dtype, experts, rows, inner)
    up, down = tensor(dtype, experts, dim, inner), tensor(dtype, experts, inner, dim)
    pick = call("aten::index_select", {"self": x, "index": index}, flat, dim=0)
    combine = (
        call("aten::zeros_like", {"self": x}, x),
        call("aten::index_add", {"self": x, "index": index, "source": flat}, x, dim=0),
    )
    forward = (
        *(pick, bmm(dispatched, up), map_one("aten::gelu", hidden), bmm(hidden, down)),
        map_two("aten::mul", flat, gate),
        *combine,
    )
    backward = (
        pick,
        map_two("aten::mul", flat, flat),
        map_two("aten::mul", flat, gate),
        call("aten::sum", {"self": flat}, gate, dim=(1,), keepdim=True),
        bmm(swapped(hidden), dispatched),
        bmm(dispatched, swapped(down)),
        call("aten::gelu_backward", {"grad_output": hidden, "self": hidden}, hidden),
        bmm(swapped(dispatched), hidden),
        bmm(hidden, swapped(up)),
        *combine,
    )
    return Work(forward=forward, backward=backward)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Tokens, experts and gates; the routing itself is given."""
    tokens, dim, experts, rows, inner = sizes(shape)
    x = random(torch, dtype, device, tokens, dim, grad=True)
    up = random(torch, dtype, device, experts, dim, inner, grad=True)
    down = random(torch, dtype, device, experts, inner, dim, grad=True)
    gates = random(torch, dtype, device, experts * rows, 1, grad=True)
    index = torch.arange(experts * rows, device=device) % tokens

    def run() -> Any:
        hidden = torch.bmm(x.index_select(0, index).view(experts, rows, dim), up)
        out = torch.bmm(torch.nn.functional.gelu(hidden), down).view(experts * rows, dim) * gates
        return torch.zeros_like(x).index_add(0, index, out)

    return differentiable(torch, run, [x, up, down, gates])


register(
    Operator(
        name="moe",
        summary="experts' MLPs of dim x intermediate_size / mp under balanced routing of b l tokens to top_k",
        sizes={
            "mp": replace(TENSOR_PARALLEL, collect=Progression(1, 2, 8, MUL)),
            "b": ATTENTION_BATCH,
            "l": replace(LENGTH, collect=Progression(1024, 1024, 4096, ADD)),
            "dim": replace(HIDDEN, collect=Progression(2048, 2048, 8192, ADD)),
            "moe_num_experts": Size(test=4, collect=Progression(8, 2, 64, MUL), smart=Span(choices=(4, 8, 16, 64))),
            "intermediate_size": Size(test=64, collect=Progression(2048, 2, 16_384, MUL), smart=Span(128, 16_384, 64)),
            "top_k": Size(test=2, collect=Progression(1, 2, 8, MUL), smart=Span(choices=(1, 2, 4, 8))),
        },
        work=work,
        prepare=prepare,
        check=check,
    )
)
