"""CUDA's caching allocator in torch, by its published rules: what a program's tensors take of the device's memory.

From c10/cuda/CUDACachingAllocator.cpp: requests are rounded up to 512 B. Up to 1 MiB they come from segments of 2 MiB;
larger ones, below 10 MiB, from segments of 20 MiB, the rest from segments of their own, in whole 2 MiB. The smallest
free block that holds a request is taken, and split where more than 1 MiB remains (512 B among small ones). Freed blocks
merge with free neighbours; their segments are kept until the cache is emptied.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import count
from typing import Final

_ROUND: Final = 512
_SMALL: Final = 1 << 20
_SMALL_SEGMENT: Final = 2 << 20
_LARGE_SEGMENT: Final = 20 << 20
_OWN_SEGMENT: Final = 10 << 20
_WHOLE: Final = 2 << 20
_ALL: Final = 1 << 62


class Block:
    """A part of a segment: ``size`` bytes, between ``before`` and ``after`` of the same segment."""

    __slots__ = ("after", "before", "free", "number", "size", "small")

    def __init__(self, size: int, number: int, *, small: bool) -> None:
        self.size, self.number, self.small = size, number, small
        self.free = True
        self.before: Block | None = None
        self.after: Block | None = None


class Allocator:
    """Bytes allocated and reserved, now and at most. ``expandable``: segments grow by what is missing at their end
    (``expandable_segments:True``); blocks of ``max_split`` bytes or more are never split for smaller requests
    (``max_split_size_mb``).
    """

    def __init__(self, *, expandable: bool = False, max_split: int = _ALL) -> None:
        self.expandable, self.max_split = expandable, max_split
        self.allocated = self.reserved = self.peak = self.peak_reserved = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # by whether they are small
        self._ends: dict[bool, Block] = {}  # of segments that can grow
        self._numbers = count()

    def allocate(self, nbytes: int) -> Block:
        """A block for a request of so many bytes."""
        size = max(_ROUND, -(-nbytes // _ROUND) * _ROUND)
        small = size <= _SMALL
        block = self._found(size, small) or self._segment(size, small)
        rest = block.size - size
        if rest >= _ROUND if small or self.expandable else size < self.max_split and rest > _SMALL:
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Give a block back; it merges with free neighbours."""
        self.allocated -= block.size
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._forget(other)
                self._merge(block, other)
        self._keep(block)

    def empty(self) -> None:
        """Give the device back the segments of which nothing is in use, as ``torch.cuda.empty_cache`` does."""
        for small, blocks in self._free.items():
            whole = [each for each in blocks if each[2].before is None and each[2].after is None]
            self._free[small] = [each for each in blocks if each not in whole]
            self.reserved -= sum(size for size, _, _ in whole)
            if any(each[2] is self._ends.get(small) for each in whole):
                del self._ends[small]

    def _found(self, size: int, small: bool) -> Block | None:
        free = self._free[small]
        place = bisect_left(free, (size,))
        if place == len(free):
            return None
        held, _, block = free[place]
        if size < self.max_split <= held or (size >= self.max_split and held >= size + _LARGE_SEGMENT):
            return None
        del free[place]
        return block

    def _segment(self, size: int, small: bool) -> Block:
        if self.expandable:
            return self._grown(size, small)
        whole = _SMALL_SEGMENT if small else _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _WHOLE) * _WHOLE
        self._reserve(whole)
        return Block(whole, next(self._numbers), small=small)

    def _grown(self, size: int, small: bool) -> Block:
        """The free end of the one segment, made larger by whole pages."""
        page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        end = self._ends.get(small)
        if end is None or not end.free:
            block = Block(0, next(self._numbers), small=small)
            if end is not None:
                end.after, block.before = block, end
            end = self._ends[small] = block
        else:
            self._forget(end)
        more = -(-(size - end.size) // page) * page
        end.size += more
        self._reserve(more)
        return end

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.size - size, next(self._numbers), small=block.small)
        block.size = size
        rest.before, rest.after, block.after = block, block.after, rest
        if rest.after is not None:
            rest.after.before = rest
        if self._ends.get(block.small) is block:
            self._ends[block.small] = rest
        self._keep(rest)

    def _merge(self, block: Block, other: Block) -> None:
        block.size += other.size
        if other is block.before:
            block.before = other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        if self._ends.get(block.small) is other:
            self._ends[block.small] = block

    def _keep(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.number, block))

    def _forget(self, block: Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.number))]
