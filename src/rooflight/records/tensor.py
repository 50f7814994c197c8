"""TensorSpec: a tensor as an operation was given it, and how many distinct bytes tensors cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from rooflight.records.dtypes import item_bytes

UNSHARED = -1
"""Value of ``TensorSpec.storage`` for a tensor that shares its memory with no other tensor of the same operation."""


def contiguous_strides(dims: Sequence[int]) -> list[int]:
    """The strides, in elements, of a contiguous tensor of a shape."""
    return [prod(max(size, 1) for size in dims[index + 1 :]) for index in range(len(dims))]


@dataclass(frozen=True, slots=True)
class Packing:
    """How a sparse or nested tensor holds the elements that it stores.

    ``layout`` is torch's name (``sparse_coo``, ``sparse_csr``, ...) or ``nested``. ``shape`` is that of the dense
    tensor that a sparse one represents, ``index_bytes`` the size of the indices that place its elements. ``parts`` are
    the shapes of the tensors of a nested one.
    """

    layout: str
    shape: tuple[int, ...] = ()
    index_bytes: int = 0
    parts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype and layout of a tensor.

    ``strides`` are in elements; None means contiguous. ``storage`` numbers the memory among the tensors of one
    operation: two tensors with the same number alias each other (``x.add_(y)``, ``mm(x, x)``, slices of one fused
    projection), ``UNSHARED`` aliases none. ``offset`` (elements) distinguishes aliases. A sparse or nested tensor is
    described by the elements that it stores, a flat list, and by its ``packing``; no size here includes its indices.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    storage: int = UNSHARED
    offset: int = 0
    packing: Packing | None = None

    @property
    def numel(self) -> int:
        """Number of elements by shape: an expanded element counts as often as it repeats."""
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return item_bytes(self.dtype)

    @property
    def extent(self) -> int:
        """Elements of memory from the first to the last one touched, gaps included."""
        if self.strides is None:
            return self.numel
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def distinct(self) -> int:
        """Distinct elements in memory: an expanded (stride 0) dimension counts once, overlaps at most once."""
        if self.strides is None:
            return self.numel
        places = prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0 or size == 0)
        return min(places, self.extent)

    def repeats(self, dim: int) -> int:
        """How often the same elements come along a dimension: expanded (stride 0), its size; else once."""
        return self.shape[dim] if self.strides is not None and self.strides[dim] == 0 else 1

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct elements: the least that reading or writing the whole tensor moves."""
        return self.distinct * self.item_bytes


def distinct_bytes(tensors: Iterable[TensorSpec]) -> int:
    """Bytes that a set of tensors covers together, memory shared between them counted once."""
    total = 0
    shared: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        if tensor.storage == UNSHARED:
            total += tensor.nbytes
        else:
            shared.setdefault(tensor.storage, []).append(tensor)
    return total + sum(group[0].nbytes if len(group) == 1 else _union_bytes(group) for group in shared.values())


def _union_bytes(found: list[TensorSpec]) -> int:
    """Bytes of aliases of one storage: their sum, but no more than the span of memory they cover."""
    if all(tensor == found[0] for tensor in found[1:]):
        return found[0].nbytes
    aliases = set(found)
    spans = sorted(
        (tensor.offset * tensor.item_bytes, (tensor.offset + tensor.extent) * tensor.item_bytes) for tensor in aliases
    )
    covered = 0
    end = spans[0][0]
    for start, stop in spans:
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return min(covered, sum(tensor.nbytes for tensor in aliases))
