"""A step's ops as they would be with images in channels-last order (``memory_format=torch.channels_last``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from rooflight.costs.registry import traits_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

_IMAGE: Final = 4  # dimensions: batch, channels, height, width


def in_channels_last(ops: Sequence[OpSignature]) -> Sequence[OpSignature]:
    """The ops with every image in channels-last order: what convolutions read and write, their weights, and whatever
    else has the shape of one. The same where no convolution works on images that lie channel by channel.
    """
    convolutions = [op for op in ops if traits_of(op).convolution]
    images = {tensor for op in convolutions for tensor in (*op.inputs, *op.outputs) if _is_plain(tensor)}
    shapes = {(tensor.shape, tensor.dtype) for tensor in images}
    return [_laid(op, shapes) for op in ops] if shapes else ops


def _is_plain(tensor: TensorSpec) -> bool:
    return len(tensor.shape) == _IMAGE and tensor.strides is None and tensor.packing is None


def _laid(op: OpSignature, shapes: Collection[tuple[tuple[int, ...], str]]) -> OpSignature:
    def laid(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(each, strides=_strides(each.shape))
            if _is_plain(each) and (each.shape, each.dtype) in shapes
            else each
            for each in tensors
        )

    return replace(op, inputs=laid(op.inputs), outputs=laid(op.outputs))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    _, channels, height, width = shape
    return channels * height * width, 1, width * channels, channels
