"""linear4: the down-projection of the MLP."""

from __future__ import annotations

from rooflight.operators.builders.linear_layer import Layer, linear_operator, tokens
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register


def layer(shape: Shape) -> Layer:
    """[l b, 4 dim / mp] x [4 dim / mp, dim]."""
    return Layer(tokens(shape), 4 * shape["dim"] // shape["mp"], shape["dim"])


register(linear_operator("linear4", "down-projection of the MLP: [l b, 4 dim / mp] x [4 dim / mp, dim]", layer))
