"""What a part of a convolution's result needs: x [B, Cin, in...], weight [Cout, Cin / g, k...] to [B, Cout, out...]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rooflight.costs.rules import integers
from rooflight.records.signature import OpSignature
from rooflight.roofline.fusion.boxes import NOTHING, Axis, Box, Demand, Wanted, up_to, whole_box


def convolved(demand: Demand) -> list[Wanted]:
    """By input, what a part of the result needs of it."""
    op, out = demand.op, demand.out.shape
    x, weight = op.inputs[:2]
    found = [NOTHING for _ in op.inputs]
    if len(out) != len(x.shape) or len(weight.shape) != len(out):
        return found
    window = None if _is_transposed(op) else _window_of(op, len(out) - 2)
    images = [box for box in demand.wanted.boxes if box[1:] == whole_box(out[1:])]
    if images:  # the same of x, be it convolved or transposed
        found = [Wanted(boxes=(whole_box(tensor.shape),), elements=tensor.numel) for tensor in op.inputs]
        boxes = tuple((box[0], *whole_box(x.shape[1:])) for box in images)
        read = demand.reads[0] * max(box[0].size for box in images) // max(1, out[0])
        found[0] = Wanted(boxes=boxes, elements=read)
        return found
    if _is_transposed(op):
        found[0] = Wanted(elements=int(_transposed_share(demand) * x.numel))
        return found
    if window is None:
        return found
    grouped = weight.shape[1] != x.shape[1]
    boxes_of_x: list[Box] = []
    filters: list[Axis] = []
    for box in demand.wanted.boxes:
        spatial = [window.under(dim, axis, demand) for dim, axis in enumerate(box[2:])]
        if not grouped or box[1] == up_to(out[1]):
            known = [axis for axis in spatial if axis is not None]
            if len(known) == len(spatial):
                boxes_of_x.append((box[0], up_to(x.shape[1]), *known))
        if all(window.is_inside(dim, axis, demand) for dim, axis in enumerate(box[2:])):
            filters.append(box[1])
    found[0] = Wanted(boxes=tuple(boxes_of_x))
    found[1] = Wanted(boxes=tuple((axis, *whole_box(weight.shape[1:])) for axis in filters))
    for place, tensor in enumerate(op.inputs[2:], start=2):
        if tensor.shape == out[1:2]:  # the bias
            found[place] = Wanted(boxes=tuple((box[1],) for box in demand.wanted.boxes))
    return found


def convolution_needed(demand: Demand) -> float:
    """The share of the FLOPs that a part of the result takes, padded taps included."""
    whole = whole_box(demand.out.shape[1:])
    if _is_transposed(demand.op) and not any(box[1:] == whole for box in demand.wanted.boxes):
        return _transposed_share(demand)
    return demand.share


def _transposed_share(demand: Demand) -> float:
    """Of products and of x, if all results that are not wanted are sums of as many products as any: each input entry
    meets Cout / g filters' taps, each result at most Cin / g entries under ceil(k / stride) taps of each dimension.
    """
    op = demand.op
    x, weight = op.inputs[:2]
    taps = weight.shape[2:]
    strides = _each(integers(op, "stride"), len(taps)) or (1,) * len(taps)
    groups = max(1, demand.out.shape[1] // max(1, weight.shape[1]))
    most = x.shape[1] // groups * prod(-(-size // max(1, step)) for size, step in zip(taps, strides, strict=True))
    products = x.numel * prod(weight.shape[1:])
    unread = demand.out.numel - demand.wanted.elements
    return max(0.0, 1 - unread * most / max(1, products))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Strides and padding of each dimension."""

    strides: Sequence[int]
    padding: Sequence[int]

    def under(self, dim: int, axis: Axis, demand: Demand) -> Axis | None:
        """The indices of x under the windows of results; None where they are none or not all between two."""
        size, taps = demand.op.inputs[0].shape[dim + 2], demand.op.inputs[1].shape[dim + 2]
        step, pad = self.strides[dim], self.padding[dim]
        if step > taps or any(each != 1 for _, each in axis.runs) or len(axis.runs) > 1:
            return None
        first, end = max(0, axis.first * step - pad), min(size, axis.last * step - pad + taps)
        return Axis(first, up_to(end - first).runs) if end > first else None

    def is_inside(self, dim: int, axis: Axis, demand: Demand) -> bool:
        """Whether all taps of some window lie on x."""
        size, taps = demand.op.inputs[0].shape[dim + 2], demand.op.inputs[1].shape[dim + 2]
        step, pad = self.strides[dim], self.padding[dim]
        if any(each != 1 for _, each in axis.runs) or len(axis.runs) > 1:
            return False
        return max(axis.first, -(-pad // step)) <= min(axis.last, (size + pad - taps) // step)


def _window_of(op: OpSignature, rank: int) -> _Window | None:
    """None where taps are apart, or it is not known how the windows lie."""
    strides, padding, dilation = (_each(integers(op, name), rank) for name in ("stride", "padding", "dilation"))
    if not strides or not padding or any(each != 1 for each in dilation) or min(strides) < 1:
        return None
    return _Window(strides=strides, padding=padding)


def _each(given: Sequence[int], rank: int) -> Sequence[int]:
    """A setting of each dimension, given once for all or for each."""
    return given if len(given) == rank else tuple(given) * rank if len(given) == 1 else ()


def _is_transposed(op: OpSignature) -> bool:
    return bool(op.attribute("transposed")) or "transpose" in op.name
