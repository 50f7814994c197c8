"""Which ops one kernel could do together, and what must then still move: the ground of the fused bound.

Chains of pointwise, norm, softmax and reduction ops, and of copies between them, become one *region*; a product,
convolution or attention takes what follows it into its epilogue. Inside a region nothing moves: only what enters it is
read, once, and only what leaves it is written: what another region reads, what was there before the step, and what
nobody reads any more (it is a result). Ops that read the same tensor at the same stage share a region too, so that it is
read once, as inductor's horizontal fusion does.

Two ops can share a kernel only if no op between them must run outside it. Each op has a *stage*: the number of anchors
(products and everything else that is no chain) on the longest path that leads to it. Ops of one stage that touch each
other never need an anchor between them, so they form legal regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import family_of
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec, distinct_bytes

CHAINS = frozenset(
    {
        "activation",
        "allocation",
        "copying",
        "embedding",
        "foreach",
        "indexing",
        "loss",
        "normalization",
        "optimizer",
        "pointwise",
        "prims",
        "random",
        "reduction",
        "softmax",
    }
)
"""Families whose ops fuse with each other."""

ANCHORS_WITH_EPILOGUE = frozenset({"attention", "convolution", "matmul", "moe", "quantized"})
"""Families whose ops take the chain that follows into their own kernel."""

SCATTERS = ("scatter", "index_put", "index_add", "embedding_dense_backward", "sort", "topk", "unique", "nonzero")
"""Ops of those families that other threads' results depend on, so that a chain ends with them."""


@dataclass(slots=True)
class Region:
    """Ops that one kernel could do. Bytes are by storage, each once."""

    records: list[int] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    @property
    def bytes_read(self) -> int:
        """Bytes that must enter the kernel."""
        return sum(self.reads.values())

    @property
    def bytes_written(self) -> int:
        """Bytes that must leave the kernel."""
        return sum(self.writes.values())


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes of one call of a signature, by place: one entry an input, one an output."""

    read: tuple[int, ...]
    written: tuple[int, ...]


@dataclass(slots=True)
class _Value:
    """What a storage holds now: the record that made it (-1: it was there before), its stage, who read it."""

    maker: int = -1
    stage: int = 0
    readers: dict[int, int] = field(default_factory=dict)  # stage -> a chain op of that stage that read it


def regions_of(session: Session, costs: Sequence[OpCost | Uncosted]) -> list[Region]:
    """The regions of a session's counted ops, in the order in which they begin. ``costs`` go with its signatures."""
    flow = _Flow(session, costs)
    flow.walk()
    return flow.regions()


class _Flow:
    """One walk over the records that finds stages and joins, then one that adds up what crosses the regions' edges."""

    def __init__(self, session: Session, costs: Sequence[OpCost | Uncosted]) -> None:
        self._session = session
        self._traffic = [
            None if isinstance(cost, Uncosted) else _traffic_of(op, cost)
            for op, cost in zip(session.signatures, costs, strict=True)
        ]
        self._kinds = [_kind(op.name) for op in session.signatures]
        self._joined: dict[int, int] = {}
        columns = session.columns
        self._records = [int(index) for index in session.counted.nonzero()[0]]
        self._signatures = columns.signature.tolist()
        self._read_ids, self._read_offsets = columns.read_ids.tolist(), columns.read_offsets.tolist()
        self._written_ids, self._written_offsets = columns.written_ids.tolist(), columns.written_offsets.tolist()

    def walk(self) -> None:
        """Give each op its stage and join it to the ops that it may share a kernel with."""
        values: dict[int, _Value] = {}
        stages: dict[int, int] = {}
        for record in self._records:
            kind = self._kinds[self._signatures[record]]
            reads, writes = self._touched(record)
            if kind == "view" or not (reads or writes):
                continue
            inputs = [values.setdefault(storage, _Value()) for storage in reads]
            stage = max((value.stage for value in inputs), default=0)
            if kind != "chain":
                stage += 1
            stages[record] = stage
            self._joined[record] = record
            if kind == "chain":
                for value in inputs:
                    maker_joins = value.maker >= 0 and stages[value.maker] == stage
                    if maker_joins and self._kinds[self._signatures[value.maker]] != "barrier":
                        self._join(record, value.maker)
                    sibling = value.readers.setdefault(stage, record)
                    self._join(record, sibling)
            for storage in writes:
                values[storage] = _Value(maker=record, stage=stage)

    def regions(self) -> list[Region]:
        """The joined ops with the bytes that cross each region's edge."""
        regions: dict[int, Region] = {}
        makers: dict[int, tuple[int, int]] = {}  # storage -> record that made what it holds, bytes it wrote
        unread: set[int] = set()
        outside_before = self._standing()
        for record in self._records:
            if record not in self._joined:
                continue
            root = self._root(record)
            region = regions.setdefault(root, Region())
            region.records.append(record)
            reads, writes = self._touched(record)
            traffic = self._traffic[self._signatures[record]]
            for storage, size in _by_storage(reads, traffic.read if traffic else ()):
                unread.discard(storage)
                maker, written = makers.get(storage, (-1, 0))
                if maker >= 0 and self._root(maker) == root:
                    continue
                region.reads[storage] = max(size, region.reads.get(storage, 0))
                if maker >= 0:
                    _keep(regions[self._root(maker)].writes, storage, written)
            for place, (storage, size) in enumerate(_by_storage(writes, traffic.written if traffic else ())):
                makers[storage] = (record, size)
                if storage in outside_before:
                    _keep(region.writes, storage, size)
                elif place == 0:  # what else an op returns and nobody reads, a compiler leaves out
                    unread.add(storage)
        for storage in unread:
            maker, written = makers[storage]
            _keep(regions[self._root(maker)].writes, storage, written)
        return list(regions.values())

    def _standing(self) -> set[int]:
        """Storages that were read before any op of the step wrote them: parameters, states, inputs."""
        written: set[int] = set()
        standing: set[int] = set()
        for record in self._records:
            reads, writes = self._touched(record)
            standing.update(storage for storage in reads if storage not in written)
            written.update(writes)
        return standing

    def _touched(self, record: int) -> tuple[list[int], list[int]]:
        reads = self._read_ids[self._read_offsets[record] : self._read_offsets[record + 1]]
        return reads, self._written_ids[self._written_offsets[record] : self._written_offsets[record + 1]]

    def _join(self, one: int, other: int) -> None:
        self._joined[self._root(one)] = self._root(other)

    def _root(self, record: int) -> int:
        joined = self._joined
        while joined[record] != record:
            joined[record] = joined[joined[record]]
            record = joined[record]
        return record


def _kind(name: str) -> str:
    """ "chain", "anchor" (what follows may join it), "barrier" (nothing may) or "view"."""
    family = family_of(name)
    if family == "views":
        return "view"
    if family in CHAINS and not any(part in name for part in SCATTERS):
        return "chain"
    return "anchor" if family in ANCHORS_WITH_EPILOGUE else "barrier"


def _traffic_of(op: OpSignature, cost: OpCost) -> _Traffic:
    return _Traffic(_shares(op.inputs, cost.bytes_read), _shares(op.outputs, cost.bytes_written))


def _shares(tensors: Sequence[TensorSpec], total: int) -> tuple[int, ...]:
    """How many of an op's ``total`` bytes belong to each tensor, memory shared between them counted at the first.

    An op that touches fewer bytes than its tensors have (a gather) touches part of the largest.
    """
    sizes: list[int] = []
    for place, tensor in enumerate(tensors):
        earlier = [other for other in tensors[:place] if other.storage == tensor.storage]
        shared = tensor.storage >= 0 and bool(earlier)
        sizes.append(distinct_bytes([*earlier, tensor]) - distinct_bytes(earlier) if shared else tensor.nbytes)
    excess = sum(sizes) - total
    while excess > 0:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        cut = min(excess, sizes[largest])
        sizes[largest] -= cut
        excess -= cut
    return tuple(sizes)


def _by_storage(storages: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Bytes by storage, summed over the places that name it. Without one size a place, the sizes' sum is shared out."""
    if len(storages) != len(sizes):
        total = sum(sizes)
        return [(storage, total // len(storages)) for storage in storages]
    merged: dict[int, int] = {}
    for storage, size in zip(storages, sizes, strict=True):
        merged[storage] = merged.get(storage, 0) + size
    return list(merged.items())


def _keep(sizes: dict[int, int], storage: int, size: int) -> None:
    sizes[storage] = max(size, sizes.get(storage, 0))
