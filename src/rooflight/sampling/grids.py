"""The sweeps that are shipped: ``test`` (a few small shapes), ``collect`` (the page's grids), ranges for ``smart``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rooflight.operators import registry
from rooflight.operators.operator import Operator
from rooflight.sampling.axes import ADD, MUL, Axis, Grid, Shapes, Span

_MP: Final = Axis(1, 2, 16, MUL)
_PAGE: Final = {
    "mp": _MP,
    "b": Axis(2, 2, 8, MUL),
    "h": Axis(16, 8, 80, ADD),
    "l": Axis(1024, 512, 5120, ADD),
    "dim": Axis(2048, 512, 8192, ADD),
    "encoders": Axis(4, 1, 12, ADD),
    "elements": Axis(1 << 10, 2, 1 << 28, MUL),
}
_ATTENTION: Final = {"b": Axis(4, 2, 8, MUL)}
_UNKNOWN: Final = Axis(64, 2, 4096, MUL)
_ALIGNED: Final = Axis(256, 2, 16_384, MUL)
_BOTH: Final = Axis(0, 1, 1, ADD)
_WIDE: Final = Axis(1024, 1024, 16_384, ADD)
_ROWS: Final = {"rows": _ALIGNED, "width": _WIDE}
_LISTS: Final = {"tensors": Axis(1, 4, 64, MUL), "elements": Axis(1 << 10, 4, 1 << 26, MUL)}
FOREACH: Final = tuple(f"foreach_{name}" for name in ("add", "mul", "div", "sqrt", "lerp", "addcmul", "addcdiv"))
"""Operators over lists, of which unfused optimizers are made."""
_VOCABULARY: Final = Axis(32_000, 16_000, 128_000, ADD)

COLLECT: Final[Mapping[str, Mapping[str, Axis]]] = {
    "flash_atten": _ATTENTION,
    "RoPE": _ATTENTION,
    "baddbmm": _ATTENTION,
    "bmm": _ATTENTION,
    "fillmask": _ATTENTION,
    "parallel_cross_entropy_128": {"b": Axis(2, 4, 8, MUL), "l": Axis(1024, 256, 4096, ADD)},
    "ScaledUpperTriangMaskedSoftmax": {
        "mp": Axis(1, 2, 1, MUL),
        "h": Axis(2, 2, 64, ADD),
        "l": Axis(1024, 64, 2048, ADD),
    },
    "moe": {
        "mp": Axis(1, 2, 8, MUL),
        "b": Axis(4, 2, 8, MUL),
        "l": Axis(1024, 1024, 4096, ADD),
        "dim": Axis(2048, 2048, 8192, ADD),
        "moe_num_experts": Axis(8, 2, 64, MUL),
        "intermediate_size": Axis(2048, 2, 16_384, MUL),
        "top_k": Axis(1, 2, 8, MUL),
    },
    "gemm": {
        **dict.fromkeys(("m", "n", "k"), _ALIGNED),
        **dict.fromkeys(("transpose_a", "transpose_b"), _BOTH),
    },
    "linear": {"rows": _ALIGNED, **dict.fromkeys(("inputs", "outputs"), Axis(512, 2, 16_384, MUL)), "bias": _BOTH},
    "batched_mm": {"b": Axis(1, 4, 256, MUL), **dict.fromkeys(("m", "n", "k"), Axis(64, 2, 4096, MUL))},
    "scaled_mm": dict.fromkeys(("m", "n", "k"), _ALIGNED),
    "sdpa": {
        "b": Axis(1, 4, 16, MUL),
        "h": Axis(8, 2, 64, MUL),
        "kv_heads": Axis(8, 8, 8, ADD),
        "q": Axis(1, 16, 4096, MUL),
        "kv": Axis(256, 4, 16_384, MUL),
        "d": Axis(64, 64, 128, ADD),
        "causal": _BOTH,
    },
    "swiglu": {"rows": _ALIGNED, "dim": _WIDE},
    "rmsnorm": {"rows": _ALIGNED, "dim": _WIDE},
    **dict.fromkeys(
        ("relu", "tanh", "silu", "neg", "dropout", "softmax_rows", "log_softmax_rows", "layernorm_rows"), _ROWS
    ),
    **{name: {**_ROWS, "scalar": _BOTH} for name in ("add", "mul", "div", "pow")},
    "gelu_rows": {**_ROWS, "tanh": _BOTH},
    "sum_rows": _ROWS,
    "cat": {**_ROWS, "parts": Axis(2, 1, 3, ADD)},
    "embedding_rows": {"rows": _ALIGNED, "vocab": _VOCABULARY, "width": Axis(1024, 1024, 8192, ADD)},
    **{name: {"rows": Axis(256, 2, 8192, MUL), "vocab": _VOCABULARY} for name in ("cross_entropy", "nll_loss")},
    "grouped_mm": {
        "rows": Axis(1024, 2, 16_384, MUL),
        **dict.fromkeys(("n", "k"), Axis(1024, 2, 8192, MUL)),
        "groups": Axis(4, 2, 64, MUL),
    },
    "conv2d": {
        "b": Axis(1, 4, 64, MUL),
        **dict.fromkeys(("c_in", "c_out"), Axis(64, 2, 512, MUL)),
        **dict.fromkeys(("height", "width"), Axis(14, 2, 112, MUL)),
        "kernel": Axis(1, 2, 3, ADD),
        "stride": Axis(1, 1, 2, ADD),
        "padding": Axis(0, 1, 1, ADD),
        "groups": Axis(1, 1, 1, ADD),
    },
    "adamw": {**_LISTS, "foreach": _BOTH},
    **dict.fromkeys(FOREACH, _LISTS),
}
"""Where an operator's grid differs from the page's usual axes."""

TEST: Final[Mapping[str, int]] = {
    "mp": 1,
    "b": 1,
    "h": 4,
    "l": 64,
    "dim": 128,
    "encoders": 1,
    "elements": 4096,
    "rows": 64,
    "vocab": 1000,
    "moe_num_experts": 4,
    "intermediate_size": 64,
    "top_k": 2,
    "kv_heads": 2,
    "d": 32,
    "height": 16,
    "width": 16,
    "c_in": 8,
    "c_out": 16,
    "kernel": 3,
    "groups": 1,
    "q": 32,
    "kv": 64,
    **dict.fromkeys(("m", "n", "k"), 64),
}
"""Small sizes, each operator's first test shape; the others double one size after another."""

_FLAG: Final = Span(choices=(0, 1))
_CHANNELS: Final = Span(choices=(3, 16, 32, 64, 128, 256, 512))
SPANS: Final[Mapping[str, Span]] = {
    "mp": Span(choices=(1, 2, 4, 8)),
    "b": Span(choices=(1, 2, 4, 8, 16)),
    "h": Span(choices=(4, 8, 12, 16, 32)),
    "l": Span(16, 8192, 16),
    "dim": Span(128, 8192, 64),
    "encoders": Span(1, 12),
    "m": Span(1, 16_384),
    "n": Span(128, 65_536, 16),
    "k": Span(128, 16_384, 16),
    "inputs": Span(128, 16_384, 16),
    "outputs": Span(128, 65_536, 16),
    "width": Span(16, 16_384),
    "parts": Span(choices=(2, 3)),
    **dict.fromkeys(("transpose_a", "transpose_b", "bias", "scalar", "tanh"), _FLAG),
    "kv_heads": Span(choices=(1, 2, 4, 8, 12, 32)),
    "q": Span(1, 8192),
    "kv": Span(16, 16_384, 8),
    "d": Span(choices=(32, 64, 128)),
    "causal": _FLAG,
    "rows": Span(1, 32_768),
    "vocab": Span(1000, 131_072),
    "moe_num_experts": Span(choices=(4, 8, 16, 64)),
    "intermediate_size": Span(128, 16_384, 64),
    "top_k": Span(choices=(1, 2, 4, 8)),
    "groups": Span(choices=(1,)),
    "elements": Span(256, 1 << 28, 16),
    "tensors": Span(choices=(1, 4, 16, 64, 150)),
    "foreach": _FLAG,
    "c_in": _CHANNELS,
    "c_out": _CHANNELS,
    "height": Span(7, 224),
    "kernel": Span(choices=(1, 3, 5, 7)),
    "stride": Span(choices=(1, 2)),
    "padding": Span(choices=(0,)),
}
"""Which sizes ``smart`` looks at, by parameter."""

OWN_SPANS: Final[Mapping[str, Mapping[str, Span]]] = {
    "grouped_mm": {"rows": Span(64, 32_768, 64), "groups": Span(choices=(4, 8, 16, 64))},
    "scaled_mm": {"m": Span(16, 16_384, 16)},
    "batched_mm": {"b": Span(1, 512), "m": Span(1, 4096), "n": Span(16, 4096, 8), "k": Span(16, 4096, 8)},
    "conv2d": {"width": Span(7, 224)},
    **{name: {"elements": Span(64, 1 << 24, 1)} for name in ("adamw", *FOREACH)},
    "firstStage_optimizer": {"dim": Span(128, 4096, 64)},
    "middleStage_optimizer": {"dim": Span(128, 4096, 64)},
    "lastStage_optimizer": {"dim": Span(128, 4096, 64)},
}

SMART: Final[Mapping[str, int]] = {
    "gemm": 16,
    "linear": 8,
    "batched_mm": 2,
    "sdpa": 6,
    "layernorm_rows": 3,
    "rmsnorm": 2,
    "softmax_rows": 2,
    "gelu_rows": 3,
    "swiglu": 2,
    "add": 3,
    "mul": 3,
    "dropout": 2,
    "embedding_rows": 3,
    "cross_entropy": 4,
    "adamw": 4,
    **dict.fromkeys(FOREACH, 1),
    "copy": 2,
    "conv2d": 2,
}
"""What ``smart`` samples where no operator is named, and each one's share of the budget: one or two of a kind."""


def _square(shape: dict[str, int]) -> dict[str, int]:
    """An image as high as wide, padded so that a kernel of stride 1 keeps its size."""
    return {**shape, "width": shape["height"], "padding": shape["kernel"] // 2}


def _causal(shape: dict[str, int]) -> dict[str, int]:
    """A causal mask is for as many keys as queries."""
    return {**shape, "kv": shape["q"]} if shape["causal"] else shape


TIES: Final[Mapping[str, Callable[[dict[str, int]], dict[str, int]]]] = {"conv2d": _square, "sdpa": _causal}
"""Sizes that follow from others in a space-filling design."""


def collect(operator: Operator) -> Grid:
    """The grid of an operator; sizes that a launch decides are left to it."""
    own = {**_PAGE, **COLLECT.get(operator.name, {})}
    sizes = [name for name in _sizes(operator) if name in own or name not in operator.defaults]
    axes = tuple((name, own.get(name, _UNKNOWN)) for name in sizes)
    return Grid(operator=operator, axes=axes)


def test(operator: Operator) -> Shapes:
    """A small shape, then one more for each size that can be doubled."""
    first = {name: TEST.get(name, operator.defaults.get(name, _UNKNOWN.start)) for name in _sizes(operator)}
    larger = [{**first, name: 2 * value} for name, value in first.items() if value > 1]
    kept = [shape for shape in larger if operator.ranks or operator.refusal(operator.shape(shape)) is None]
    return Shapes(operator, (first, *kept))


def spans(operator: Operator) -> dict[str, Span]:
    """The sizes that ``smart`` may choose, by parameter."""
    own = {**SPANS, **OWN_SPANS.get(operator.name, {})}
    return {name: own.get(name, Span(16, 4096)) for name in _sizes(operator)}


def everything() -> tuple[Operator, ...]:
    """Every operator that runs in one process."""
    return tuple(operator for name in registry.names() if not (operator := registry.find(name)).ranks)


def _sizes(operator: Operator) -> tuple[str, ...]:
    from rooflight.operators.builders.collective import TOPOLOGY

    return tuple(name for name in operator.parameters if name not in TOPOLOGY)
