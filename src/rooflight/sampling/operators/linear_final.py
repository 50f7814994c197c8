"""linear_final: the output layer, to one rank's part of the vocabulary."""

from __future__ import annotations

from rooflight.sampling.linear_layer import Layer, linear_operator, tokens, vocabulary_part
from rooflight.sampling.operator import Shape
from rooflight.sampling.registry import register
from rooflight.sampling.shards import anything


def layer(shape: Shape) -> Layer:
    """[l b, dim] x [dim, V], V = 50257 / mp padded to a multiple of 128."""
    return Layer(tokens(shape), shape["dim"], vocabulary_part(shape))


register(linear_operator("linear_final", "output layer: [l b, dim] x [dim, 50257 / mp padded]", layer, check=anything))
