"""linear_final: the output layer, to one rank's part of the vocabulary."""

from __future__ import annotations

from rooflight.operators.builders.linear_layer import Layer, linear_operator, tokens, vocabulary_part
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register
from rooflight.operators.tensor_parallel import anything


def layer(shape: Shape) -> Layer:
    """[l b, dim] x [dim, V], V = 50257 / mp padded to a multiple of 128."""
    return Layer(tokens(shape), shape["dim"], vocabulary_part(shape))


register(linear_operator("linear_final", "output layer: [l b, dim] x [dim, 50257 / mp padded]", layer, check=anything))
