"""linear2: the output projection of attention."""

from __future__ import annotations

from rooflight.operators.builders.linear_layer import Layer, linear_operator, tokens
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register


def layer(shape: Shape) -> Layer:
    """[l b, dim / mp] x [dim / mp, dim]."""
    return Layer(tokens(shape), shape["dim"] // shape["mp"], shape["dim"])


register(linear_operator("linear2", "output projection of attention: [l b, dim / mp] x [dim / mp, dim]", layer))
