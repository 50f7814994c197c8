"""Operators that convolve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.costs.operators.operator import Shape, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import call, tensor
from rooflight.costs.operators.sizes import ADD, BATCH, MUL, Progression, Size, Span
from rooflight.costs.operators.tensor_parallel import divides
from rooflight.records.signature import AttributeValue

CHANNELS = Span(choices=(3, 16, 32, 64, 128, 256, 512))
SIDE = Size(test=16, collect=Progression(14, 2, 112, MUL), smart=Span(7, 224))


@operator(
    "convolution of [b, c_in, height, width] to c_out channels by kernel x kernel",
    smart_share=2,
    b=replace(BATCH, collect=Progression(1, 4, 64, MUL)),
    c_in=Size(test=8, collect=Progression(64, 2, 512, MUL), smart=CHANNELS),
    height=SIDE,
    width=SIDE,
    c_out=Size(test=16, collect=Progression(64, 2, 512, MUL), smart=CHANNELS),
    kernel=Size(test=3, collect=Progression(1, 2, 3, ADD), smart=Span(choices=(1, 3, 5, 7))),
    stride=Size(test=1, collect=Progression(1, 1, 2, ADD), smart=Span(choices=(1, 2)), default=1),
    padding=Size(test=0, collect=Progression(0, 1, 1, ADD), smart=Span(choices=(0,)), default=0),
    groups=Size(test=1, collect=Progression(1, 1, 1, ADD), smart=Span(choices=(1,)), default=1),
)
class conv2d:
    """x [b, c_in, height, width], weight [c_out, c_in / groups, kernel, kernel], no bias."""

    def check(self, shape: Shape) -> str | None:
        """Channels are dealt to groups evenly; the kernel fits the padded image."""
        for side in ("height", "width"):
            if shape[side] + 2 * shape["padding"] < shape["kernel"]:
                return f"kernel={shape['kernel']} is larger than {side}={shape[side]} padded"
        return divides(shape, ("c_in", "groups"), ("c_out", "groups"))

    def tie(self, shape: dict[str, int]) -> dict[str, int]:
        """An image as high as wide, padded so that a kernel of stride 1 keeps its size."""
        return {**shape, "width": shape["height"], "padding": shape["kernel"] // 2}

    def work(self, shape: Shape, dtype: str) -> Work:
        b, kernel, stride, padding = shape["b"], shape["kernel"], shape["stride"], shape["padding"]
        sides = ((shape[side] + 2 * padding - kernel) // stride + 1 for side in ("height", "width"))
        x = tensor(dtype, b, shape["c_in"], shape["height"], shape["width"])
        weight = tensor(dtype, shape["c_out"], shape["c_in"] // shape["groups"], kernel, kernel)
        out = tensor(dtype, b, shape["c_out"], *sides)
        settings: dict[str, AttributeValue] = {
            "stride": (stride, stride),
            "padding": (padding, padding),
            "dilation": (1, 1),
            "transposed": False,
            "output_padding": (0, 0),
            "groups": shape["groups"],
        }
        given = {"input": x, "weight": weight}
        gradient = {"grad_output": out, **given}
        return Work(
            forward=(call("aten::convolution", given, out, **settings),),
            backward=(
                call("aten::convolution_backward", gradient, x, weight, **settings, output_mask=(True, True, False)),
            ),
        )

    def run(self, torch: Any, shape: Shape, x: Any, weight: Any) -> Any:
        stride, padding, groups = shape["stride"], shape["padding"], shape["groups"]
        return torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)
