"""linear1: the QKV projection."""

from __future__ import annotations

from rooflight.operators.builders.linear_layer import Layer, linear_operator, tokens
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register


def layer(shape: Shape) -> Layer:
    """[l b, dim] x [dim, 3 dim / mp], with bias."""
    return Layer(tokens(shape), shape["dim"], 3 * shape["dim"] // shape["mp"])


register(linear_operator("linear1", "QKV projection: [l b, dim] x [dim, 3 dim / mp], with bias", layer, bias=True))
