"""Operators that normalize: layer norm, and RMS norm in one call or as GPT-NeoX writes it."""

from __future__ import annotations

from typing import Any

from rooflight.costs.operators.operator import Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, in_place, map_one, map_two, tensor
from rooflight.costs.operators.sizes import BATCH, HIDDEN, HIDDEN_WIDTH, LENGTH, ROWS, WIDTH
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

SCALE = "float32"
EPSILON = 1e-8


class LayerNorm:
    """x with weight, bias, and a mean and 1/std a row, over the last dimension."""

    def size(self, shape: Shape) -> tuple[int, ...]:
        return shape["l"], shape["b"], shape["dim"]

    def work(self, shape: Shape, dtype: str) -> Work:
        *outer, dim = self.size(shape)
        statistics = "float32" if dtype in ("float16", "bfloat16") else dtype
        x, vector, row = tensor(dtype, *outer, dim), tensor(dtype, dim), tensor(statistics, *outer, 1)
        return Work(
            forward=(call("aten::native_layer_norm", {"input": x, "weight": vector, "bias": vector}, x, row, row),),
            backward=(
                call(
                    "aten::native_layer_norm_backward",
                    {"grad_out": x, "input": x, "mean": row, "rstd": row, "weight": vector, "bias": vector},
                    *(x, vector, vector),
                    output_mask=(True, True, True),
                ),
            ),
        )

    def run(self, torch: Any, shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


@operator("LayerNorm of [l, b, dim]", b=BATCH, l=LENGTH, dim=HIDDEN)
class layernorm(LayerNorm):
    """LayerNorm over the hidden size."""


@operator("LayerNorm of each row of [rows, width]", smart_share=3, rows=ROWS, width=WIDTH)
class layernorm_rows(LayerNorm):
    """LayerNorm of each row; ``layernorm`` has estimate-train-time's parameters."""

    def size(self, shape: Shape) -> tuple[int, ...]:
        return shape["rows"], shape["width"]


@operator("RMS norm of [rows, dim] in one call", smart_share=2, rows=ROWS, dim=HIDDEN_WIDTH)
class rmsnorm:
    """RMS norm in one call, which a GPU runs as one kernel: a weight [dim], one reciprocal root a row."""

    def work(self, shape: Shape, dtype: str) -> Work:
        rows, dim = shape["rows"], shape["dim"]
        x, weight, root = tensor(dtype, rows, dim), tensor(dtype, dim), tensor("float32", rows)
        gradient = {"grad_out": x, "input": x, "rstd": root, "weight": weight}
        return Work(
            forward=(call("aten::_fused_rms_norm", {"input": x, "weight": weight}, x, root),),
            backward=(call("aten::_fused_rms_norm_backward", gradient, x, weight),),
        )

    def run(self, torch: Any, shape: Shape, x: Any, weight: Any) -> Any:
        return torch.nn.functional.rms_norm(x, weight.shape, weight)


@operator(
    "RMS norm of [l, b, dim] as GPT-NeoX's unfused Python; see rmsnorm for one kernel", b=BATCH, l=LENGTH, dim=HIDDEN
)
class RMSlayernorm:
    """A chain of small kernels: x / (rms + eps), times a scale in float32, back to the dtype."""

    def work(self, shape: Shape, dtype: str) -> Work:
        length, b, dim = shape["l"], shape["b"], shape["dim"]
        x, wide, scale = tensor(dtype, length, b, dim), tensor(SCALE, length, b, dim), tensor(SCALE, dim)
        row = tensor(dtype, length, b, 1)
        forward = [
            call("aten::linalg_vector_norm", {"self": x}, row),
            map_one("aten::mul", row),
            map_one("aten::add", row),
            map_two("aten::div", x, row),
            call("aten::mul", {"self": scale, "other": x}, wide),
        ]
        backward = [
            map_two("aten::mul", wide, scale),
            map_two("aten::mul", wide, x),
            call("aten::sum", {"self": wide}, tensor(SCALE, 1, 1, dim), dim=(0, 1), keepdim=True),
        ]
        if dtype != SCALE:
            forward.append(call("aten::_to_copy", {"self": wide}, x))
            backward = [call("aten::_to_copy", {"self": x}, wide), *backward, call("aten::_to_copy", {"self": wide}, x)]
        return Work(inputs=(x, scale), forward=tuple(forward), backward=(*backward, *_division(x, row)))

    def run(self, torch: Any, shape: Shape, x: Any, scale: Any) -> Any:
        rms = x.norm(2, dim=-1, keepdim=True) * shape["dim"] ** -0.5
        return (scale * (x / (rms + EPSILON))).to(x.dtype)


def _division(x: TensorSpec, row: TensorSpec) -> tuple[OpSignature, ...]:
    """The gradients of x / rms, and of the norm in rms, as autograd writes them out."""
    mask = tensor("bool", *row.shape)
    return (
        map_two("aten::div", x, row),
        map_two("aten::div", x, row),
        map_one("aten::neg", x),
        map_two("aten::mul", x, x),
        map_two("aten::div", x, row),
        call("aten::sum", {"self": x}, row, dim=(2,), keepdim=True),
        map_one("aten::mul", row),
        map_two("aten::div", x, row),
        call("aten::eq", {"self": row}, mask),
        in_place("aten::masked_fill_", x, {"mask": mask}),
        call("aten::mul", {"self": row, "other": x}, x),
        map_two("aten::add", x, x),
    )
