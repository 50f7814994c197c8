"""conv2d: a convolution of images."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.tensor_parallel import divides
from rooflight.operators.tensors import differentiable, random
from rooflight.records.signature import AttributeValue


def check(shape: Shape) -> str | None:
    """Channels are dealt to groups evenly; the kernel fits the padded image."""
    for side in ("height", "width"):
        if shape[side] + 2 * shape["padding"] < shape["kernel"]:
            return f"kernel={shape['kernel']} is larger than {side}={shape[side]} padded"
    return divides(shape, ("c_in", "groups"), ("c_out", "groups"))


def _sizes(shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of x, the weight and the result."""
    kernel, stride, padding = shape["kernel"], shape["stride"], shape["padding"]
    out = ((shape[side] + 2 * padding - kernel) // stride + 1 for side in ("height", "width"))
    return (
        (shape["b"], shape["c_in"], shape["height"], shape["width"]),
        (shape["c_out"], shape["c_in"] // shape["groups"], kernel, kernel),
        (shape["b"], shape["c_out"], *out),
    )


def work(shape: Shape, dtype: str) -> Work:
    """x [b, c_in, height, width], weight [c_out, c_in / groups, kernel, kernel], no bias."""
    x, weight, out = (tensor(dtype, *size) for size in _sizes(shape))
    stride, padding = shape["stride"], shape["padding"]
    settings: dict[str, AttributeValue] = {
        "stride": (stride, stride),
        "padding": (padding, padding),
        "dilation": (1, 1),
        "transposed": False,
        "output_padding": (0, 0),
        "groups": shape["groups"],
    }
    gradients = {"grad_output": out, "input": x, "weight": weight}
    return Work(
        forward=(call("aten::convolution", {"input": x, "weight": weight}, out, **settings),),
        backward=(
            call("aten::convolution_backward", gradients, x, weight, **settings, output_mask=(True, True, False)),
        ),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x and the weight."""
    x, weight = (random(torch, dtype, device, *size, grad=True) for size in _sizes(shape)[:2])
    stride, padding, groups = shape["stride"], shape["padding"], shape["groups"]
    convolve = torch.nn.functional.conv2d
    return differentiable(torch, lambda: convolve(x, weight, None, stride, padding, 1, groups), [x, weight])


register(
    Operator(
        name="conv2d",
        summary="convolution of [b, c_in, height, width] to c_out channels by kernel x kernel",
        parameters=("b", "c_in", "height", "width", "c_out", "kernel", "stride", "padding", "groups"),
        family="convolution",
        work=work,
        prepare=prepare,
        check=check,
        defaults=MappingProxyType({"stride": 1, "padding": 0, "groups": 1}),
    )
)
