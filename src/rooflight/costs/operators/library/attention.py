"""Operators of attention: whole, and its parts as GPT-NeoX and Megatron write them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rooflight.costs.operators.operator import Prepared, Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, in_place, map_one, map_two, tensor
from rooflight.costs.operators.sizes import (
    ADD,
    ATTENTION_SIZES,
    BATCH,
    FLAG,
    HEADS,
    LENGTH,
    MUL,
    TENSOR_PARALLEL,
    Progression,
    Size,
    Span,
)
from rooflight.costs.operators.tensor_parallel import divides, heads
from rooflight.costs.operators.tensors import differentiable, random
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

MASKED_SCORE = -10_000.0


class Attention:
    """One call of SDPA, which keeps a log-sum-exp a query for its backward: torch's or flash-attn's."""

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """Batch entries, heads of queries and of keys and values, their lengths, and the size of a head."""
        return tuple(shape[name] for name in ("b", "h", "kv_heads", "q", "kv", "d"))

    def work(self, shape: Shape, dtype: str) -> Work:
        (batch, heads, kv_heads, queries, keys, width), causal = self.sizes(shape), bool(shape.get("causal"))
        query, key = tensor(dtype, batch, heads, queries, width), tensor(dtype, batch, kv_heads, keys, width)
        logsumexp = tensor("float32", batch, heads, queries)
        inputs = {"query": query, "key": key, "value": key}
        return Work(
            forward=(call("aten::scaled_dot_product_attention", inputs, query, logsumexp, is_causal=causal),),
            backward=(
                call(
                    "rooflight::scaled_dot_product_attention_backward",
                    {"grad_out": query, **inputs, "out": query, "logsumexp": logsumexp},
                    *(query, key, key),
                    is_causal=causal,
                    grad_input_mask=(True, True, True),
                ),
            ),
        )

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """Queries, keys and values in memory as flash-attn has them, [b, length, heads, width]."""
        (batch, heads, kv_heads, queries, keys, width), causal = self.sizes(shape), bool(shape.get("causal"))
        query = random(torch, dtype, device, batch, queries, heads, width, grad=True)
        key, value = (random(torch, dtype, device, batch, keys, kv_heads, width, grad=True) for _ in range(2))
        attend = torch.nn.functional.scaled_dot_product_attention
        grouped = heads != kv_heads

        def run() -> Any:
            heads_first = (each.transpose(1, 2) for each in (query, key, value))
            return attend(*heads_first, is_causal=causal, enable_gqa=grouped)

        # flash-attn aligns a causal mask at the ends of unequal lengths, torch at their starts
        if device.startswith("cuda") and (not causal or queries == keys) and find_spec("flash_attn"):
            flash: Any = import_module("flash_attn").flash_attn_func
            return differentiable(torch, lambda: flash(query, key, value, causal=causal), [query, key, value])
        return differentiable(torch, run, [query, key, value])


@operator(
    "attention: q [b, h, q, d], k and v [b, kv_heads, kv, d], causal 0 or 1",
    smart_share=6,
    b=replace(BATCH, collect=Progression(1, 4, 16, MUL)),
    h=replace(HEADS, collect=Progression(8, 2, 64, MUL)),
    kv_heads=Size(test=2, collect=Progression(8, 8, 8, ADD), smart=Span(choices=(1, 2, 4, 8, 12, 32))),
    q=Size(test=32, collect=Progression(1, 16, 4096, MUL), smart=Span(1, 8192)),
    kv=Size(test=64, collect=Progression(256, 4, 16_384, MUL), smart=Span(16, 16_384, 8)),
    d=Size(test=32, collect=Progression(64, 64, 128, ADD), smart=Span(choices=(32, 64, 128))),
    causal=FLAG,
)
class sdpa(Attention):
    """Attention of any kind today's models have: causal or not, grouped heads, one query against a KV cache."""

    def check(self, shape: Shape) -> str | None:
        """Query heads share key heads evenly; torch aligns a causal mask at the starts, which suits equal lengths."""
        q, kv = shape["q"], shape["kv"]
        if shape["causal"] and q != kv:
            return f"causal=1 with q={q} and kv={kv}: a decode step attends to all of its cache: causal=0"
        return divides(shape, ("h", "kv_heads"))

    def tie(self, shape: dict[str, int]) -> dict[str, int]:
        """A causal mask is for as many keys as queries."""
        return {**shape, "kv": shape["q"]} if shape["causal"] else shape


@operator("attention, not causal: q, k, v [b, l, h / mp, dim / h]", check=heads, **ATTENTION_SIZES)
class flash_atten(Attention):
    """Attention of every token to every token, not causal, as estimate-train-time measured it."""

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        parts, length = shape["h"] // shape["mp"], shape["l"]
        return shape["b"], parts, parts, length, length, shape["dim"] // shape["h"]


@operator(
    "softmax of [b, h / mp, l, l] over the last dimension", check=heads, mp=TENSOR_PARALLEL, b=BATCH, h=HEADS, l=LENGTH
)
class softmax:
    """Softmax over the keys of attention scores."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["b"], shape["h"] // shape["mp"], shape["l"], shape["l"])
        return Work(
            forward=(map_one("aten::_softmax", x, dim=-1),),
            backward=(call("aten::_softmax_backward_data", {"grad_output": x, "output": x}, x, dim=-1),),
        )

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        return torch.softmax(x, -1)


_TRIANGULAR = "rooflight::scaled_upper_triang_masked_softmax"


@operator(
    "fused causal softmax of [b h / mp, l, l]; Megatron's kernel where installed",
    check=heads,
    mp=replace(TENSOR_PARALLEL, collect=Progression(1, 2, 1, MUL)),
    b=BATCH,
    h=replace(HEADS, collect=Progression(2, 2, 64, ADD)),
    l=replace(LENGTH, collect=Progression(1024, 64, 2048, ADD)),
)
class ScaledUpperTriangMaskedSoftmax:
    """Megatron's fused causal softmax: the keys after a query are not read, and written as zeros."""

    def work(self, shape: Shape, dtype: str) -> Work:
        x = tensor(dtype, shape["b"] * shape["h"] // shape["mp"], shape["l"], shape["l"])
        return Work(
            forward=(call(_TRIANGULAR, {"x": x}, x),),
            backward=(call(f"{_TRIANGULAR}_backward", {"grad": x, "output": x}, x),),
        )

    def run(self, torch: Any, shape: Shape, x: Any) -> Any:
        return triangular_softmax(torch)(x)


@cache
def triangular_softmax(torch: Any) -> Any:
    """Megatron's fused causal softmax as one op, [batch, l, l] to [batch, l, l], with its gradient: its kernel where
    that is installed, torch's masked softmax elsewhere. It is registered with torch when first used; its formula stands
    in ``costs.families.normalization``.
    """
    # a mask is kept for each length: a new one would take as long as the op on few heads
    masks: dict[tuple[int, Any], Any] = {}
    extension_name, dim, square_mask = "scaled_upper_triang_masked_softmax_cuda", -1, 0
    extension: Any = import_module(extension_name) if find_spec(extension_name) else None

    def mask(x: Any) -> Any:
        key = (x.shape[-1], x.device)
        if key not in masks:
            masks.clear()
            masks[key] = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        return masks[key]

    def forward(x: Any) -> Any:
        if extension is not None and x.is_cuda:
            return extension.forward(x, 1.0)
        return torch._masked_softmax(x.unsqueeze(0), mask(x), dim, square_mask).squeeze(0)

    def backward(grad: Any, out: Any) -> Any:
        if extension is not None and out.is_cuda:
            return extension.backward(grad.clone(), out, 1.0)
        return torch._softmax_backward_data(grad, out, dim, out.dtype)

    define = torch.library.custom_op
    op = define(_TRIANGULAR, forward, mutates_args=(), schema="(Tensor x) -> Tensor")
    schema = "(Tensor grad, Tensor output) -> Tensor"
    gradient = define(f"{_TRIANGULAR}_backward", backward, mutates_args=(), schema=schema)
    op.register_fake(torch.empty_like)
    gradient.register_fake(lambda grad, output: torch.empty_like(grad))  # noqa: ARG005 - the schema's names
    op.register_autograd(
        lambda ctx, grad: gradient(grad, ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),  # noqa: ARG005
    )
    return op


@operator("masked_fill_ of [b, h / mp, l, l] with a causal mask", check=heads, **ATTENTION_SIZES)
class fillmask:
    """Hidden attention scores overwritten in place, through a view, as GPT-NeoX does it; backward through the view and
    what was written through it.
    """

    def work(self, shape: Shape, dtype: str) -> Work:
        b, parts, length = shape["b"], shape["h"] // shape["mp"], shape["l"]
        x, mask = tensor(dtype, b, parts, length, length), tensor("bool", 1, 1, length, length)
        flat, zeros = tensor(dtype, b * parts, length, length), tensor(dtype, b * parts * length * length)
        return Work(
            forward=(in_place("aten::masked_fill_", x, {"mask": mask}),),
            backward=(
                call("aten::new_zeros", {"self": x}, zeros),
                in_place("aten::copy_", x, {"src": x}),
                in_place("aten::copy_", flat, {"src": flat}),
                map_one("aten::clone", x),
                call("aten::masked_fill", {"self": x, "mask": mask}, x),
                in_place("aten::copy_", x, {"src": x}),
            ),
        )

    def prepare(self, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
        """Scores, and a mask that hides the keys after each query."""
        b, parts, length = shape["b"], shape["h"] // shape["mp"], shape["l"]
        scores = random(torch, dtype, device, b * parts, length, length, grad=True)
        mask = torch.ones((1, 1, length, length), dtype=torch.bool, device=device).triu(1)

        class Through(torch.autograd.Function):  # type: ignore[misc]
            """Nothing, with a gradient: a leaf must not be written to, and a copy would be timed."""

            @staticmethod
            def forward(_: Any, x: Any) -> Any:
                return x.detach()

            @staticmethod
            def backward(_: Any, grad: Any) -> Any:
                return grad

        def run() -> Any:
            return Through.apply(scores).view(b, parts, length, length).masked_fill_(mask, MASKED_SCORE)

        return differentiable(torch, run, [scores])


@operator("rotary embedding of q and k [l, b, h / mp, dim / h], as GPT-NeoX writes it", **ATTENTION_SIZES)
class RoPE:
    """A chain of small kernels: x cos + rotate_half(x) sin for q and k."""

    def check(self, shape: Shape) -> str | None:
        """A head is turned in two halves."""
        size = shape["dim"] // shape["h"]
        return heads(shape) or (f"dim/h={size} is odd" if size % 2 else None)

    def work(self, shape: Shape, dtype: str) -> Work:
        length, width = shape["l"], shape["dim"] // shape["h"]
        outer = (length, shape["b"], shape["h"] // shape["mp"])
        x, half = (tensor(dtype, *outer, size) for size in (width, width // 2))
        table = tensor(dtype, length, 1, 1, width)
        return Work(
            inputs=(x, x),
            constants=(table, table),
            forward=_turned(x, half, table) * 2,
            backward=_turned_back(x, half, table) * 2,
        )

    def run(self, torch: Any, shape: Shape, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        def rotate_half(x: Any) -> Any:
            width = x.shape[-1]
            left, right = x[..., : width // 2], x[..., width // 2 :]
            return torch.cat((-right, left), dim=-1)

        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def _turned(x: TensorSpec, half: TensorSpec, table: TensorSpec) -> tuple[OpSignature, ...]:
    return (
        map_two("aten::mul", x, table),
        map_one("aten::neg", half),
        call("aten::cat", {"tensors": [half, half]}, x, dim=-1),
        map_two("aten::mul", x, table),
        map_two("aten::add", x, x),
    )


def _turned_back(x: TensorSpec, half: TensorSpec, table: TensorSpec) -> tuple[OpSignature, ...]:
    """Each slice's gradient fills a whole tensor, and the three that meet are added up."""
    sliced = call("aten::slice_backward", {"grad_output": half}, x)
    return (
        map_two("aten::mul", x, table),
        map_one("aten::neg", half),
        sliced,
        sliced,
        map_two("aten::add", x, x),
        map_two("aten::mul", x, table),
        map_two("aten::add", x, x),
    )
