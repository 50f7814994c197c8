"""Operators that multiply matrices: general ones, linear layers of a transformer, narrow and grouped ones, experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rooflight.costs.operators import signatures
from rooflight.costs.operators.operator import STEP, Prepared, RefusedError, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, map_one, map_two, mm, swapped, tensor
from rooflight.costs.operators.sizes import (
    ADD,
    ATTENTION_BATCH,
    ATTENTION_SIZES,
    FLAG,
    HIDDEN,
    LAYER_SIZES,
    LENGTH,
    MUL,
    PRODUCT_COLUMNS,
    PRODUCT_DEPTH,
    PRODUCT_ROWS,
    ROWS,
    TENSOR_PARALLEL,
    Progression,
    Size,
    Span,
)
from rooflight.costs.operators.tensor_parallel import divides, heads, hidden, multiples, padded_vocabulary
from rooflight.costs.operators.tensors import differentiable, of_spec, random
from rooflight.records.tensor import TensorSpec

NARROW = "float8_e4m3fn"


@operator(
    "[m, k] @ [k, n]; transpose_a or transpose_b 1 where that operand lies transposed in memory",
    directions=STEP,
    smart_share=16,
    m=PRODUCT_ROWS,
    n=PRODUCT_COLUMNS,
    k=PRODUCT_DEPTH,
    transpose_a=FLAG,
    transpose_b=FLAG,
)
class gemm:
    """A product of two matrices, either of which may lie transposed in memory."""

    def work(self, shape: Shape, dtype: str) -> Work:
        m, n, k = shape["m"], shape["n"], shape["k"]
        left = _operand(dtype, m, k, transposed=shape["transpose_a"])
        return Work(forward=(mm(left, _operand(dtype, k, n, transposed=shape["transpose_b"])),))

    def run(self, torch: Any, shape: Shape, left: Any, right: Any) -> Any:
        return torch.mm(left, right)


def _operand(dtype: str, rows: int, columns: int, *, transposed: int) -> TensorSpec:
    return swapped(tensor(dtype, columns, rows)) if transposed else tensor(dtype, rows, columns)


@operator(
    "[b, m, k] @ [b, k, n]",
    smart_share=2,
    b=Size(test=1, collect=Progression(1, 4, 256, MUL), smart=Span(1, 512)),
    m=Size(test=64, collect=Progression(64, 2, 4096, MUL), smart=Span(1, 4096)),
    n=Size(test=64, collect=Progression(64, 2, 4096, MUL), smart=Span(16, 4096, 8)),
    k=Size(test=64, collect=Progression(64, 2, 4096, MUL), smart=Span(16, 4096, 8)),
)
class batched_mm:
    """A batch of products of two matrices, of any size; backward a product for each of them."""

    def work(self, shape: Shape, dtype: str) -> Work:
        b, m, n, k = shape["b"], shape["m"], shape["n"], shape["k"]
        left, right, out = tensor(dtype, b, m, k), tensor(dtype, b, k, n), tensor(dtype, b, m, n)
        return Work(
            forward=(signatures.bmm(left, right),),
            backward=(signatures.bmm(swapped(left), out), signatures.bmm(out, swapped(right))),
        )

    def run(self, torch: Any, shape: Shape, left: Any, right: Any) -> Any:
        return torch.bmm(left, right)


def _per_head(shape: Shape) -> tuple[int, int, int]:
    """Heads of all sequences on one rank, the length, and the size of a head."""
    return shape["b"] * shape["h"] // shape["mp"], shape["l"], shape["dim"] // shape["h"]


@operator("attention output: [b h / mp, l, l] x [.., l, dim / h]", check=heads, **ATTENTION_SIZES)
class bmm:
    """Attention probabilities times values."""

    def work(self, shape: Shape, dtype: str) -> Work:
        batch, length, width = _per_head(shape)
        weights, values = tensor(dtype, batch, length, length), tensor(dtype, batch, length, width)
        return Work(
            forward=(signatures.bmm(weights, values),),
            backward=(signatures.bmm(swapped(weights), values), signatures.bmm(values, swapped(values))),
        )

    def run(self, torch: Any, shape: Shape, weights: Any, values: Any) -> Any:
        return torch.bmm(weights, values)


@operator("attention scores: [b h / mp, l, dim / h] x [.., dim / h, l], scaled", check=heads, **ATTENTION_SIZES)
class baddbmm:
    """Queries times keys, scaled; the addend is multiplied by 0, so it is not read."""

    def work(self, shape: Shape, dtype: str) -> Work:
        batch, length, width = _per_head(shape)
        q, k = tensor(dtype, batch, length, width), tensor(dtype, batch, width, length)
        out, addend = tensor(dtype, batch, length, length), tensor(dtype, batch, length, length, strides=(0, 0, 0))
        return Work(
            inputs=(q, k),
            constants=(addend,),
            forward=(call("aten::baddbmm", {"self": addend, "batch1": q, "batch2": k}, out, beta=0),),
            backward=(
                signatures.bmm(out, swapped(k)),
                map_one("aten::mul", q),
                signatures.bmm(swapped(q), out),
                map_one("aten::mul", k),
            ),
        )

    def run(self, torch: Any, shape: Shape, q: Any, k: Any, addend: Any) -> Any:
        return torch.baddbmm(addend, q, k, beta=0.0, alpha=q.shape[-1] ** -0.5)


class Linear:
    """One rank's part of a linear layer, [rows, inputs] @ [outputs, inputs]^T, over mp, b, l and dim. Backward one
    product for each of x and the weight, and a sum for the bias. ``layer`` gives inputs and outputs by mp and dim.
    """

    def __init__(self, layer: Callable[[int, int], tuple[int, int]], *, bias: bool = False) -> None:
        self.layer, self.bias = layer, bias

    def sizes(self, shape: Shape) -> tuple[int, int, int, bool]:
        return (shape["b"] * shape["l"], *self.layer(shape["mp"], shape["dim"]), self.bias)

    def work(self, shape: Shape, dtype: str) -> Work:
        rows, inputs, outputs, bias = self.sizes(shape)
        x, weight, grad = tensor(dtype, rows, inputs), tensor(dtype, outputs, inputs), tensor(dtype, rows, outputs)
        backward = (mm(grad, weight), mm(swapped(grad), x))
        if not bias:
            return Work(inputs=(x, weight), forward=(mm(x, swapped(weight)),), backward=backward)
        addend = tensor(dtype, outputs)
        forward = call("aten::addmm", {"self": addend, "mat1": x, "mat2": swapped(weight)}, grad)
        summed = call("aten::sum", {"self": grad}, tensor(dtype, 1, outputs), dim=(0,), keepdim=True)
        return Work(inputs=(x, weight, addend), forward=(forward,), backward=(*backward, summed))

    def run(self, torch: Any, shape: Shape, *operands: Any) -> Any:
        return torch.nn.functional.linear(*operands)


@operator(
    "linear layer: [rows, inputs] @ [outputs, inputs]^T, plus a bias unless bias is 0",
    smart_share=8,
    rows=ROWS,
    inputs=Size(test=64, collect=Progression(512, 2, 16_384, MUL), smart=PRODUCT_DEPTH.smart),
    outputs=Size(test=64, collect=Progression(512, 2, 16_384, MUL), smart=PRODUCT_COLUMNS.smart),
    bias=replace(FLAG, test=1, default=1),
)
class linear(Linear):
    """A linear layer of any size."""

    def __init__(self) -> None:
        """Its sizes are those of the shape."""

    def sizes(self, shape: Shape) -> tuple[int, int, int, bool]:
        return shape["rows"], shape["inputs"], shape["outputs"], shape["bias"] == 1


for _name, _summary, _layer in (
    ("linear1", "QKV projection: [l b, dim] x [dim, 3 dim / mp], with bias", lambda mp, dim: (dim, 3 * dim // mp)),
    ("linear2", "output projection of attention: [l b, dim / mp] x [dim / mp, dim]", lambda mp, dim: (dim // mp, dim)),
    ("linear3", "up-projection of the MLP: [l b, dim] x [dim, 4 dim / mp]", lambda mp, dim: (dim, 4 * dim // mp)),
    (
        "linear4",
        "down-projection of the MLP: [l b, 4 dim / mp] x [4 dim / mp, dim]",
        lambda mp, dim: (4 * dim // mp, dim),
    ),
):
    operator(_summary, name=_name, check=hidden, **LAYER_SIZES)(Linear(_layer, bias=_name == "linear1"))
operator("output layer: [l b, dim] x [dim, 50257 / mp padded]", name="linear_final", **LAYER_SIZES)(
    Linear(lambda mp, dim: (dim, padded_vocabulary(mp)))
)


@operator(
    "float8 [m, k] @ [k, n] with a result in the precision sampled",
    check=multiples(16, "n", "k"),  # cuBLAS's inner sizes
    directions=STEP,
    m=replace(PRODUCT_ROWS, smart=Span(16, 16_384, 16)),
    n=PRODUCT_COLUMNS,
    k=PRODUCT_DEPTH,
)
class scaled_mm:
    """A product of two float8 matrices with a scale each, the second transposed in memory; ``dtype`` is the result's.

    What a device or torch cannot do shows when it first runs.
    """

    def work(self, shape: Shape, dtype: str) -> Work:
        m, n, k = shape["m"], shape["n"], shape["k"]
        left, right, scale = tensor(NARROW, m, k), swapped(tensor(NARROW, n, k)), tensor("float32")
        scales = {"scale_a": scale, "scale_b": scale}
        return Work(forward=(call("aten::_scaled_mm", {"self": left, "mat2": right, **scales}, tensor(dtype, m, n)),))

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        left, right = (
            random(torch, "bfloat16", device, shape[rows], shape["k"]).to(torch.float8_e4m3fn) for rows in ("m", "n")
        )
        scales = {name: torch.ones((), device=device) for name in ("scale_a", "scale_b")}
        out = getattr(torch, dtype)
        return Prepared(forward=lambda: torch._scaled_mm(left, right.t(), **scales, out_dtype=out))


@operator(
    "a [rows, k] @ b [groups, k, n], rows dealt evenly to groups",
    rows=Size(test=64, collect=Progression(1024, 2, 16_384, MUL), smart=Span(64, 32_768, 64)),
    n=replace(PRODUCT_COLUMNS, collect=Progression(1024, 2, 8192, MUL)),
    k=replace(PRODUCT_DEPTH, collect=Progression(1024, 2, 8192, MUL)),
    groups=Size(test=1, collect=Progression(4, 2, 64, MUL), smart=Span(choices=(4, 8, 16, 64))),
)
class grouped_mm:
    """The experts of a mixture in one kernel, each with as many rows; backward a product for each operand."""

    def check(self, shape: Shape) -> str | None:
        return multiples(8, "n", "k")(shape) or divides(shape, ("rows", "groups"))  # 16 bytes of 16-bit numbers

    def work(self, shape: Shape, dtype: str) -> Work:
        rows, k, n, groups = shape["rows"], shape["k"], shape["n"], shape["groups"]
        a, b, out = tensor(dtype, rows, k), tensor(dtype, groups, k, n), tensor(dtype, rows, n)
        ends = tensor("int32", groups)
        product = "aten::_grouped_mm"
        return Work(
            forward=(call(product, {"self": a, "mat2": b, "offs": ends}, out),),
            backward=(
                call(product, {"self": swapped(a), "mat2": out, "offs": ends}, b),
                call(product, {"self": out, "mat2": swapped(b), "offs": ends}, a),
            ),
        )

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """Rows, experts, and where each expert's rows end. Raises RefusedError where torch has no such op."""
        grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if grouped is None:
            raise RefusedError("this torch has no grouped_mm")
        rows, groups = shape["rows"], shape["groups"]
        a = random(torch, dtype, device, rows, shape["k"], grad=True)
        b = random(torch, dtype, device, groups, shape["k"], shape["n"], grad=True)
        ends = torch.arange(rows // groups, rows + 1, rows // groups, dtype=torch.int32, device=device)
        return differentiable(torch, lambda: grouped(a, b, offs=ends), [a, b])


@operator(
    "experts' MLPs of dim x intermediate_size / mp under balanced routing of b l tokens to top_k",
    mp=replace(TENSOR_PARALLEL, collect=Progression(1, 2, 8, MUL)),
    b=ATTENTION_BATCH,
    l=replace(LENGTH, collect=Progression(1024, 1024, 4096, ADD)),
    dim=replace(HIDDEN, collect=Progression(2048, 2048, 8192, ADD)),
    moe_num_experts=Size(test=4, collect=Progression(8, 2, 64, MUL), smart=Span(choices=(4, 8, 16, 64))),
    intermediate_size=Size(test=64, collect=Progression(2048, 2, 16_384, MUL), smart=Span(128, 16_384, 64)),
    top_k=Size(test=2, collect=Progression(1, 2, 8, MUL), smart=Span(choices=(1, 2, 4, 8))),
)
class moe:
    """A mixture of experts' MLPs: rows gathered [E C, dim], [E, C, dim] x [E, dim, f], GELU, x [E, f, dim], times the
    gates, added into [T, dim]. Every expert takes C = b l top_k / experts rows, rounded up, and is cut along f.
    """

    def check(self, shape: Shape) -> str | None:
        if shape["top_k"] > shape["moe_num_experts"]:
            return f"top_k={shape['top_k']} of moe_num_experts={shape['moe_num_experts']}"
        return divides(shape, ("intermediate_size", "mp"))

    def work(self, shape: Shape, dtype: str) -> Work:
        tokens, dim, experts, rows, inner = _expert_sizes(shape)
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
            pick,
            signatures.bmm(dispatched, up),
            map_one("aten::gelu", hidden),
            signatures.bmm(hidden, down),
            map_two("aten::mul", flat, gate),
            *combine,
        )
        backward = (
            pick,
            map_two("aten::mul", flat, flat),
            map_two("aten::mul", flat, gate),
            call("aten::sum", {"self": flat}, gate, dim=(1,), keepdim=True),
            signatures.bmm(swapped(hidden), dispatched),
            signatures.bmm(dispatched, swapped(down)),
            call("aten::gelu_backward", {"grad_output": hidden, "self": hidden}, hidden),
            signatures.bmm(swapped(dispatched), hidden),
            signatures.bmm(hidden, swapped(up)),
            *combine,
        )
        return Work(inputs=(x, up, down, gate), forward=forward, backward=backward)

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """Tokens, experts and gates; the routing itself is given."""
        tokens, dim, experts, rows, _ = _expert_sizes(shape)
        x, up, down, gates = (of_spec(torch, spec, device, grad=True) for spec in self.work(shape, dtype).inputs)
        index = torch.arange(experts * rows, device=device) % tokens

        def run() -> Any:
            hidden = torch.bmm(x.index_select(0, index).view(experts, rows, dim), up)
            out = torch.bmm(torch.nn.functional.gelu(hidden), down).view(experts * rows, dim) * gates
            return torch.zeros_like(x).index_add(0, index, out)

        return differentiable(torch, run, [x, up, down, gates])


def _expert_sizes(shape: Shape) -> tuple[int, int, int, int, int]:
    """Tokens, hidden size, experts, rows that each of them takes, and one rank's part of an expert's inner size."""
    tokens, experts = shape["b"] * shape["l"], shape["moe_num_experts"]
    rows = -(-tokens * shape["top_k"] // experts)
    return tokens, shape["dim"], experts, rows, shape["intermediate_size"] // shape["mp"]
