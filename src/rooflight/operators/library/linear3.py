"""linear3: the up-projection of the MLP."""

from __future__ import annotations

from rooflight.operators.builders.linear_layer import Layer, linear_operator, tokens
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register


def layer(shape: Shape) -> Layer:
    """[l b, dim] x [dim, 4 dim / mp]."""
    return Layer(tokens(shape), shape["dim"], 4 * shape["dim"] // shape["mp"])


register(linear_operator("linear3", "up-projection of the MLP: [l b, dim] x [dim, 4 dim / mp]", layer))
