"""Windows that slide along a dimension, as those of convolutions and pooling do: which elements lie under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

from rooflight.records.signature import OpSignature


class Windows(NamedTuple):
    """``steps`` windows along ``size`` elements: tap t of window i lies at i x stride + t x dilation - padding, perhaps
    outside. A transposed convolution slides over its result, one step for each element of its input.
    """

    size: int
    taps: int
    steps: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def fitting(self) -> int:
        """How many windows would fit, padding on both sides."""
        return max(0, (self.size + 2 * self.padding - self.dilation * (self.taps - 1) - 1) // self.stride + 1)

    def _inside(self) -> Iterator[tuple[int, int]]:
        """By tap, the first window in which it lies inside, and the one after the last."""
        for tap in range(self.taps):
            outside = self.padding - tap * self.dilation
            first, end = -(-outside // self.stride), -(-(self.size + outside) // self.stride)
            yield _larger(0, first), _smaller(self.steps, end)

    @property
    def pairs(self) -> int:
        """Taps inside, of all windows together."""
        if self.dilation == 1:
            return self._taps_before(self.size + self.padding) - self._taps_before(self.padding)
        return sum(_larger(0, end - first) for first, end in self._inside())

    def _taps_before(self, place: int) -> int:
        """Taps side by side that lie before a place, of all windows: the sum of clamp(place - i x stride, 0, taps)."""
        whole = _smaller(self.steps, _larger(0, (place - self.taps) // self.stride + 1))
        end = _smaller(self.steps, _larger(0, -(-place // self.stride)))
        partly = (end - whole) * place - self.stride * (end * (end - 1) - whole * (whole - 1)) // 2
        return self.taps * whole + partly

    @property
    def taps_used(self) -> int:
        """Taps that lie inside in some window."""
        if self.size < self.stride or not self.steps:  # a tap lies inside in one window at the most
            return self.pairs
        last = self.padding - (self.steps - 1) * self.stride
        return _between(-(-last // self.dilation), -(-(self.padding + self.size) // self.dilation), self.taps)

    @property
    def steps_used(self) -> int:
        """Windows of which some tap lies inside."""
        return Windows(self.size, self.steps, self.taps, self.dilation, self.padding, self.stride).taps_used

    @property
    def touched(self) -> int:
        """Elements under some tap."""
        if self.dilation == 1 and (self.stride > self.taps or not self.steps):  # no element is under two taps
            return self.pairs
        if self.dilation == 1:  # none lies between two windows
            return _larger(0, _smaller(self.size, (self.steps - 1) * self.stride + self.taps - self.padding))
        # Taps a multiple of ``apart`` away from each other meet the same residue modulo the stride, the others other
        # ones: there they cover runs of ``steps`` places, ``shift`` apart.
        apart, shift = self.stride // gcd(self.stride, self.dilation), self.dilation // gcd(self.stride, self.dilation)
        touched = 0
        for tap in range(min(self.taps, apart)):
            outside, runs = self.padding - tap * self.dilation, -(-(self.taps - tap) // apart)
            first, end = _larger(0, -(-outside // self.stride)), -(-(self.size + outside) // self.stride)
            is_one = shift <= self.steps
            length = (runs - 1) * shift + self.steps if is_one else self.steps
            for run in range(1 if is_one else runs):
                start = run * shift
                touched += _larger(0, _smaller(end, start + length) - _larger(first, start))
        return touched


def _between(first: int, end: int, count: int) -> int:
    """How many of the numbers from 0 to ``count`` lie from ``first`` on, before ``end``."""
    return _larger(0, _smaller(count, end) - _larger(0, first))


def _larger(one: int, other: int) -> int:
    return max(one, other) if type(one) is type(other) is int else _lane_by_lane("larger", one, other)


def _smaller(one: int, other: int) -> int:
    return min(one, other) if type(one) is type(other) is int else _lane_by_lane("smaller", one, other)


def _lane_by_lane(choice: str, one: int, other: int) -> int:
    from rooflight.costs import lanes  # needs numpy, which formulas do without

    chosen: int = getattr(lanes, choice)(one, other)
    return chosen


def windows_of(
    op: OpSignature, sizes: Sequence[int], taps: Sequence[int], steps: Sequence[int], stride: tuple[int, ...] = (1,)
) -> list[Windows]:
    """By dimension, an op's windows, as its ``stride``, ``padding`` and ``dilation`` have them: 1 (or ``stride``), 0
    and 1 where they were not given.
    """

    def each(name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        value = op.attribute(name)
        given: tuple[int, ...] = value if isinstance(value, tuple) else (value,) if isinstance(value, int) else ()
        given = given or default
        return given if len(given) == len(taps) else given[:1] * len(taps)

    dilation = each("dilation", (1,))
    centred = tuple(d * (t - 1) // 2 for d, t in zip(dilation, taps, strict=True))
    padding = centred if op.attribute("padding") == "same" else each("padding", (0,))
    return [Windows(*one) for one in zip(sizes, taps, steps, each("stride", stride), padding, dilation, strict=True)]
