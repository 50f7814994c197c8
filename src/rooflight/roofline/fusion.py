"""Which ops one kernel could do together, and what must then still move: the ground of the fused bound.

Chains of pointwise, norm, softmax and reduction ops, and of copies between them, become one *region*; a product,
convolution or attention takes what follows it into its epilogue. Ops that read the same tensor at the same stage share
a region too, so that it is read once, as inductor's horizontal fusion does.

Two ops can share a kernel only if no op between them must run outside it. Each op has a *stage*: the number of anchors
(products and everything else that is no chain) on the longest path that leads to it. Ops of one stage that touch each
other never need an anchor between them, so they form legal regions.

Inside a region nothing moves. An anchor reads its inputs whole, so they must have been written; so must results and
whatever was there before the step and is updated. What a chain needs from another region it may read, or compute again
from something smaller, as inductor's partitioner does between forward and backward. The least that this moves is a
minimum cut; here it is bounded from below by a flow, which never exceeds a cut: each value lets its size through once
for every region that reads it, and once more, for all of them together, to be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.record import StorageKind
from rooflight.records.session import KEPT, STOOD, Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes


@dataclass(slots=True)
class Region:
    """Ops that one kernel could do. Bytes are by storage."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The regions of a session, in the order in which they begin, and its compulsory bytes: ``bytes_in`` of what was
    there before the step and is read, ``bytes_out`` of what is there after it and was written.
    """

    regions: tuple[Region, ...]
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a call of one signature moves, by place: one entry an input, one an output. How it fuses:

    ============  =====  =======
    kind          joins  goes_on
    ============  =====  =======
    chain         True   True
    chain's end   True   False    a scatter
    anchor        False  True     a product: its inputs must be there
    barrier       False  False
    ============  =====  =======

    ``aliased``: some inputs share memory. ``feeds`` names the places of the inputs that an output depends on: one entry
    for all outputs, or one for each.
    """

    joins: bool
    goes_on: bool
    known: bool = True
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    aliased: bool = False
    feeds: tuple[tuple[int, ...], ...] = ((),)


def fuse(session: Session, costs: Sequence[OpCost | Uncosted]) -> Fusion:
    """The regions of a session's counted ops. ``costs`` go with its signatures."""
    plans = [_plan_of(op, cost) for op, cost in zip(session.signatures, costs, strict=True)]
    return _Cut(_Graph(session, plans), _kept(session)).fusion()


def _kept(session: Session) -> frozenset[int]:
    """Gradients and optimizer states that the step made and its caller kept. What else is left may be held by a cycle,
    a local variable or a backward pass still to come: a compiler need not write it.
    """
    lifetimes = session.lifetimes
    if lifetimes is None:
        return frozenset()
    certain = np.isin(lifetimes.kind, (StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE))
    kept = (lifetimes.freed == KEPT) & (lifetimes.made != STOOD) & certain
    return frozenset(np.flatnonzero(kept).tolist())


class _Graph:
    """Ops, the values between them and which ops may share a kernel.

    A value is what a storage holds from one write to the next. Ops and values are numbers into lists, for speed.
    """

    def __init__(self, session: Session, plans: Sequence[_Plan | None]) -> None:
        self.records: list[int] = []  # by op
        self.plans: list[_Plan] = []
        self.inputs: list[int] = []  # values, op by op and place by place
        self.first_input = [0]
        self.first_made: list[int] = []  # number of the op's first value
        self.storages: list[int] = []  # by value
        self.makers: list[int] = []  # op that wrote it, -1 if none of the step did
        self.sizes: list[int] = []
        self.is_read = bytearray()
        self.held: dict[int, int] = {}  # storage -> the value it holds now
        self.stood: dict[int, int] = {}  # storage -> the value it held before the step
        self._stages: list[int] = []  # by value
        self._op_stages: list[int] = []
        self._joined: list[int] = []  # op -> an earlier op of the same region, or itself
        self._readers: list[int] = []  # by value: a chain op that reads it, -1 if none does
        self._siblings: dict[tuple[int, int], int] = {}  # value, stage -> the same for further stages
        columns = session.columns
        in_parts = np.repeat(~session.counted, np.diff(columns.written_offsets))
        self.inside = frozenset(columns.written_ids[in_parts].tolist())  # storages made by parts of composites
        signatures = columns.signature.tolist()
        read_ids, read_offsets = columns.read_ids.tolist(), columns.read_offsets.tolist()
        written_ids, written_offsets = columns.written_ids.tolist(), columns.written_offsets.tolist()
        for record in session.counted.nonzero()[0].tolist():
            plan = plans[signatures[record]]
            if plan is not None:
                reads = read_ids[read_offsets[record] : read_offsets[record + 1]]
                writes = written_ids[written_offsets[record] : written_offsets[record + 1]]
                if len(reads) != len(plan.read) or len(writes) != len(plan.written):
                    plan = _shared_out(plan, len(reads), len(writes))
                self.records.append(record)
                self._write(plan, writes, self._read(plan, reads))

    def inputs_of(self, op: int) -> list[int]:
        """The values an op reads, by place."""
        return self.inputs[self.first_input[op] : self.first_input[op + 1]]

    def root(self, op: int) -> int:
        """The first op of an op's region."""
        joined = self._joined
        while joined[op] != op:
            joined[op] = op = joined[joined[op]]
        return op

    def _read(self, plan: _Plan, reads: Sequence[int]) -> int:
        """Join an op to those that it may share a kernel with. Returns its stage."""
        op, stage = len(self.plans), 0
        held, stages, makers, sizes, is_read = self.held, self._stages, self.makers, self.sizes, self.is_read
        inputs: list[int] = []
        for storage, size in zip(reads, plan.read, strict=True):
            value = held.get(storage, -1)
            if value < 0:
                value = self._stand(storage)
            inputs.append(value)
            is_read[value] = True
            if size or not plan.known:
                stage = max(stage, stages[value])
                if makers[value] < 0 and sizes[value] < size:
                    sizes[value] = size
        self.plans.append(plan)
        self.inputs += inputs
        self.first_input.append(len(self.inputs))
        self._joined.append(op)
        self._op_stages.append(stage)
        if not plan.joins:
            return stage + 1
        readers, plans = self._readers, self.plans
        for value, size in zip(inputs, plan.read, strict=True):
            if size:
                maker = makers[value]
                if maker >= 0 and stages[value] == stage and plans[maker].goes_on:
                    self._join(op, maker)
                reader = readers[value]
                if reader < 0:
                    readers[value] = op
                elif self._op_stages[reader] == stage:
                    self._join(op, reader)
                else:
                    self._join(op, self._siblings.setdefault((value, stage), op))
        return stage

    def _write(self, plan: _Plan, writes: Sequence[int], stage: int) -> None:
        op, first = len(self.plans) - 1, len(self.makers)
        self.first_made.append(first)
        count = len(writes)
        if plan.joins and not plan.goes_on:
            stage += 1
        self.storages += writes
        self.sizes += plan.written
        self.makers += [op] * count
        self._stages += [stage] * count
        self._readers += [-1] * count
        self.is_read += b"\x01" * count
        if count:
            self.is_read[first] = False  # what else an op returns and nobody reads, a compiler leaves out
        self.held.update(zip(writes, range(first, first + count), strict=True))

    def _stand(self, storage: int) -> int:
        """What a storage held that no counted op wrote: it was there before, or a part of a composite made it."""
        value = self.held[storage] = len(self.makers)
        if storage not in self.inside:
            self.stood[storage] = value
        self.storages.append(storage)
        self.makers.append(-1)
        self.sizes.append(0)
        self._stages.append(0)
        self._readers.append(-1)
        self.is_read.append(True)
        return value

    def _join(self, one: int, other: int) -> None:
        one, other = self.root(one), self.root(other)
        if one != other:
            self._joined[max(one, other)] = min(one, other)


class _Cut:
    """The bytes that cross the regions' edges."""

    def __init__(self, graph: _Graph, kept: frozenset[int]) -> None:
        self._graph = graph
        self._roots = [graph.root(op) for op in range(len(graph.plans))]
        self._given = bytearray(
            storage not in graph.inside if maker < 0 else not (graph.plans[maker].joins and graph.plans[maker].goes_on)
            for storage, maker in zip(graph.storages, graph.makers, strict=True)
        )
        self._results = [
            value
            for storage, value in graph.held.items()
            if graph.makers[value] >= 0 and (storage in graph.stood or storage in kept or not graph.is_read[value])
        ]
        self._unpaid = [size if maker >= 0 else 0 for maker, size in zip(graph.makers, graph.sizes, strict=True)]
        self._left: dict[int, int] = {}  # how much more of a value the region in hand could read
        self._dead: set[int] = set()  # values through which it gets no more

    def fusion(self) -> Fusion:
        """The regions in order, and the compulsory bytes."""
        graph, roots = self._graph, self._roots
        members: dict[int, list[int]] = {}
        for op, root in enumerate(roots):
            members.setdefault(root, []).append(op)
        regions = {root: Region(records=[graph.records[op] for op in ops]) for root, ops in members.items()}
        stored = set(self._results)
        for op, plan in enumerate(graph.plans):
            if not plan.joins:
                taken = zip(graph.inputs_of(op), plan.read, strict=True)
                stored.update(value for value, size in taken if size or not plan.known)
        for value in stored:
            self._unpaid[value] = 0
            if graph.makers[value] >= 0:
                _add_to(regions[roots[graph.makers[value]]].writes, graph.storages[value], graph.sizes[value])
        for root, ops in members.items():
            for value, size, moved in self._least(*self._needs(root, ops)):
                _add_to(regions[root].reads, graph.storages[value], min(size, moved))
                if moved > size:
                    _add_to(regions[roots[graph.makers[value]]].writes, graph.storages[value], moved - size)
        return Fusion(
            regions=tuple(regions.values()),
            bytes_in=sum(graph.sizes[value] for value in graph.stood.values()),
            bytes_out=sum(graph.sizes[value] for value in self._results),
        )

    def _needs(self, root: int, ops: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """What a region reads of others: values that its anchors take whole, and those that its chains need."""
        graph, makers, roots = self._graph, self._graph.makers, self._roots
        whole: dict[int, int] = {}
        needed: dict[int, int] = {}
        for op in ops:
            plan, inputs = graph.plans[op], graph.inputs_of(op)
            needs = needed if plan.joins else whole
            sizes: Iterable[tuple[int, int]] = zip(inputs, plan.read, strict=True)
            for value, size in _summed(sizes) if plan.aliased else sizes:
                maker = makers[value]
                if size and (maker < 0 or roots[maker] != root) and needs.get(value, 0) < size:
                    needs[value] = size
        return whole, needed

    def _least(self, whole: dict[int, int], needed: dict[int, int]) -> Iterator[tuple[int, int, int]]:
        """The least that a region's needs move: value, size, bytes. They exceed the size where it is written for this.

        What is given goes first, since it must be read as it is; it may then serve to compute the rest.
        """
        given, unpaid = self._given, self._unpaid
        self._dead.clear()
        self._left = left = dict.fromkeys(whole, 0)
        computed: list[int] = []
        for value, size in whole.items():
            yield value, size, size
        for value, size in needed.items():
            if value in whole:
                continue
            if given[value]:
                left[value] = 0
                write = min(size, unpaid[value])
                unpaid[value] -= write
                yield value, size, size + write
            else:
                computed.append(value)
        for value in computed:
            left[value] = size = needed[value]
            yield value, size, self._flow(value, 2 * size, _DEEPEST)

    def _flow(self, value: int, wanted: int, depth: int) -> int:
        """Send at most ``wanted`` bytes from what is given through ``value`` to the region in hand."""
        here = self._left.get(value)
        if here is None:
            here = self._graph.sizes[value]
        unpaid = self._unpaid[value]
        wanted = min(wanted, here + unpaid)
        if wanted <= 0:
            return 0
        found = wanted if self._given[value] else self._flow_into(value, wanted, depth)
        self._left[value] = here - min(here, found)
        if found > here:
            self._unpaid[value] = unpaid - (found - here)
        return found

    def _flow_into(self, value: int, wanted: int, depth: int) -> int:
        """The same, through what ``value`` is computed from; first what is given, which is the shorter way."""
        graph, given = self._graph, self._given
        maker = graph.makers[value]
        if maker < 0 or depth == 0 or value in self._dead:
            return 0
        plan, inputs = graph.plans[maker], graph.inputs_of(maker)
        lane = value - graph.first_made[maker] if len(plan.feeds) > 1 else 0
        sources = [inputs[place] for place in plan.feeds[lane]]
        found = 0
        for first in (True, False):
            for source in sources:
                if given[source] == first:
                    found += self._flow(source, wanted - found, depth - 1)
                    if found == wanted:
                        return found
        self._dead.add(value)
        return found


_DEEPEST = 200
"""Ops that a flow follows upwards. What lies beyond counts as nothing, so that the bound stays one."""


def _plan_of(op: OpSignature, cost: OpCost | Uncosted) -> _Plan | None:
    """None for a view: it does nothing."""
    if isinstance(cost, Uncosted):
        return _Plan(joins=False, goes_on=False, known=False)
    traits = traits_of(op.name)
    if traits.view:
        return None
    is_product = cost.matrix_flops > 0 and not (traits.product and _is_thin(op, cost))
    chain = traits.fusable and not is_product
    goes_on = traits.epilogue if is_product else chain and not traits.ends_chain
    read = _shares(op.inputs, cost.bytes_read, op.outputs)
    for place, name in enumerate(op.input_names if traits.mask_input else ()):
        if name == traits.mask_input:
            read[place] = min(read[place], op.inputs[place].numel)
    return _Plan(
        joins=chain,
        goes_on=goes_on,
        read=tuple(read),
        written=tuple(_shares(op.outputs, cost.bytes_written)),
        aliased=any(tensor.storage != UNSHARED for tensor in op.inputs),
        feeds=_feeds(op, read),
    )


def _is_thin(op: OpSignature, cost: OpCost) -> bool:
    """A product with a dimension of 1 uses each element of its largest tensor once: a compiler may do without it."""
    largest = max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)
    return cost.matrix_flops <= 2 * largest


def _feeds(op: OpSignature, read: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Each output depends on all that is read, those of ``_foreach_add([a, b], [c, d])`` on a and c, b and d."""
    everything = tuple(place for place, size in enumerate(read) if size)
    lists = Counter(op.input_names)
    lanes = len(op.outputs)
    if lanes < 2 or not traits_of(op.name).over_lists or lanes not in lists.values():
        return (everything,)
    feeds: list[list[int]] = [[] for _ in range(lanes)]
    for place in everything:
        name = op.input_names[place]
        lane = place - op.input_names.index(name)
        for feed in [feeds[lane]] if lists[name] == lanes else feeds:
            feed.append(place)
    return tuple(map(tuple, feeds))


def _shares(tensors: Sequence[TensorSpec], total: int, mutated: Sequence[TensorSpec] = ()) -> list[int]:
    """How many of an op's ``total`` bytes belong to each tensor, memory shared between them counted at the first.

    An op that touches fewer bytes than its tensors have leaves one out (what ``copy_`` overwrites, what only lends its
    shape) or touches part of the largest (a gather).
    """
    sizes: list[int] = []
    aliases: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        earlier = [] if tensor.storage == UNSHARED else aliases.setdefault(tensor.storage, [])
        sizes.append(distinct_bytes([*earlier, tensor]) - distinct_bytes(earlier) if earlier else tensor.nbytes)
        earlier.append(tensor)
    overwritten = {tensor.storage for tensor in mutated} - {UNSHARED}
    excess = sum(sizes) - total
    while excess > 0:
        ranks = [
            (size == excess, tensor.storage in overwritten, size) for tensor, size in zip(tensors, sizes, strict=True)
        ]
        largest = ranks.index(max(ranks))
        taken = min(excess, sizes[largest])
        sizes[largest] -= taken
        excess -= taken
    return sizes


def _shared_out(plan: _Plan, num_reads: int, num_writes: int) -> _Plan:
    """The plan of a call that touched other storages than its signature has tensors: their bytes in even shares."""

    def even(sizes: Sequence[int], count: int) -> tuple[int, ...]:
        return tuple(sizes) if len(sizes) == count else (sum(sizes) // max(1, count),) * count

    everything = tuple(range(num_reads))
    return replace(
        plan, read=even(plan.read, num_reads), written=even(plan.written, num_writes), aliased=True, feeds=(everything,)
    )


def _summed(sizes: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    merged: dict[int, int] = {}
    for value, size in sizes:
        merged[value] = merged.get(value, 0) + size
    return merged.items()


def _add_to(sizes: dict[int, int], storage: int, size: int) -> None:
    if size:
        sizes[storage] = sizes.get(storage, 0) + size
