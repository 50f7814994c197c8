"""A part of one of an op's results, and of its inputs: which elements, as far as that is known, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.boxes import Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Elements of a tensor: the boxes where some are known to lie, and how many there are at least, these included.
    Of every line along a dimension of ``lines``, at least one element is among them, it is not known which.
    """

    boxes: tuple[Box, ...] = ()
    elements: int = 0
    lines: frozenset[int] = frozenset()

    def mapped(self, of_box: Callable[[Box], Box | None], elements: int) -> Wanted:
        """Each box as ``of_box`` has it, or left out where that is None."""
        boxes = (of_box(box) for box in self.boxes)
        return Wanted(boxes=tuple(box for box in boxes if box is not None), elements=elements)


NOTHING: Final = Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A part of one of an op's results: ``place`` of the result, ``wanted`` of it, and ``reads``, how many elements of
    each input the op reads for all of it.
    """

    op: OpSignature
    place: int
    wanted: Wanted
    reads: Sequence[int]

    @property
    def out(self) -> TensorSpec:
        """The result."""
        return self.op.outputs[self.place]

    @property
    def share(self) -> float:
        """What share of the result it is."""
        return min(1.0, self.wanted.elements / max(1, self.out.numel))
