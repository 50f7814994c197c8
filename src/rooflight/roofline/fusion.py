"""Which ops one kernel could do together, and what must then still move: the ground of the fused bound.

Chains of pointwise, norm, softmax and reduction ops, and of copies between them, become one *region*; a product,
convolution or attention takes what follows it into its epilogue. Ops that read the same tensor at the same stage share a
region too, so that it is read once, as inductor's horizontal fusion does.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import family_of
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes

CHAINS = frozenset(
    "activation allocation convolution copying embedding foreach indexing loss matmul moe normalization optimizer "
    "pointwise pooling prims quantized random reduction resampling softmax sorting".split()
)
"""Families whose ops fuse with each other, as far as they compute no matrix product."""

ANCHORS = frozenset({"attention", "attention_varlen", "convolution", "matmul", "moe", "quantized"})
"""Families whose products take the chain that follows into their own kernel."""

LAST = ("scatter", "index_put", "index_add", "index_copy", "index_reduce", "embedding_dense_backward", "put_")
"""Ops of chain families that any thread may write anywhere with: a chain may end with them, none goes on."""

APART = ("nonzero", "unique", "masked_select", "topk", "kthvalue", "multinomial", "ctc_loss", "embedding_bag", "histc")
"""Ops of chain families that no compiler generates code for."""

MASKS = {
    "aten::threshold_backward": "self",
    "aten::hardtanh_backward": "self",
    "aten::leaky_relu_backward": "self",
    "aten::max_pool2d_with_indices_backward": "indices",
    "aten::max_pool3d_with_indices_backward": "indices",
}
"""Arguments of which a byte an element would do, so that a mask could be written and read in their place."""


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

    ================  =====  =======
    kind              joins  goes_on
    ================  =====  =======
    chain             True   True
    end of a chain    True   False    a scatter
    anchor            False  True     a product: its inputs must be there
    barrier           False  False
    ================  =====  =======
    """

    joins: bool
    goes_on: bool
    known: bool
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Value:
    """What a storage holds from one write to the next. ``maker`` is the op that wrote it, -1 if none of the step did.

    ``given``: it can be read, but not computed again. ``stored``: it must be written. ``unpaid``: bytes of its write
    that no reader has asked for yet.
    """

    storage: int
    maker: int
    size: int
    stage: int
    given: bool
    joinable: bool
    inputs: Sequence[tuple[_Value, int]] = ()
    readers: dict[int, int] = field(default_factory=dict)  # stage -> a chain op of that stage that reads it
    is_read: bool = False
    stored: bool = False
    unpaid: int = 0


_Needs = dict[_Value, int]


@dataclass(slots=True)
class _Op:
    """One call that does something: its record, how it fuses, and what it reads."""

    record: int
    plan: _Plan
    inputs: list[tuple[_Value, int]]


def fuse(session: Session, costs: Sequence[OpCost | Uncosted]) -> Fusion:
    """The regions of a session's counted ops. ``costs`` go with its signatures."""
    plans = [_plan_of(op, cost) for op, cost in zip(session.signatures, costs, strict=True)]
    return _Graph(session, plans).cut()


class _Graph:
    """Ops and the values between them. Built in the order of the records, then cut into regions."""

    def __init__(self, session: Session, plans: Sequence[_Plan | None]) -> None:
        self._ops: list[_Op] = []
        self._joined: list[int] = []  # op -> an op of the same region, at last the region's root
        self._made: list[_Value] = []
        self._held: dict[int, _Value] = {}  # what each storage holds now
        self._stood: dict[int, _Value] = {}  # what each storage held before the step
        columns = session.columns
        signatures = columns.signature.tolist()
        read_ids, read_offsets = columns.read_ids.tolist(), columns.read_offsets.tolist()
        written_ids, written_offsets = columns.written_ids.tolist(), columns.written_offsets.tolist()
        for record in session.counted.nonzero()[0].tolist():
            plan = plans[signatures[record]]
            if plan is not None:
                reads = read_ids[read_offsets[record] : read_offsets[record + 1]]
                writes = written_ids[written_offsets[record] : written_offsets[record + 1]]
                stage = self._add(record, plan, reads)
                self._write(plan, writes, stage)

    def _add(self, record: int, plan: _Plan, reads: Sequence[int]) -> int:
        """Join an op to those that it may share a kernel with. Returns its stage."""
        held, number = self._held, len(self._ops)
        inputs: list[tuple[_Value, int]] = []
        stage = 0
        for storage, size in _by_storage(reads, plan.read):
            value = held.get(storage)
            if value is None:
                value = held[storage] = self._stood[storage] = _Value(storage, -1, 0, 0, True, False)
            value.is_read = True
            if size or not plan.known:
                inputs.append((value, size))
                if value.stage > stage:
                    stage = value.stage
                if value.maker < 0 and value.size < size:
                    value.size = size
        self._ops.append(_Op(record, plan, inputs))
        self._joined.append(number)
        if not plan.joins:
            return stage + 1
        for value, _ in inputs:
            if value.joinable and value.stage == stage:
                self._join(number, value.maker)
            self._join(number, value.readers.setdefault(stage, number))
        return stage

    def _write(self, plan: _Plan, writes: Sequence[int], stage: int) -> None:
        maker = len(self._ops) - 1
        again = plan.joins and plan.goes_on
        if plan.joins and not plan.goes_on:
            stage += 1
        for place, (storage, size) in enumerate(_by_storage(writes, plan.written)):
            made = _Value(storage, maker, size, stage, not again, plan.goes_on)
            if again:
                made.inputs = self._ops[maker].inputs
            made.is_read = place > 0  # what else an op returns and nobody reads, a compiler leaves out
            self._held[storage] = made
            self._made.append(made)

    def cut(self) -> Fusion:
        """The regions, with the bytes that cross their edges."""
        results = [
            value
            for storage, value in self._held.items()
            if value.maker >= 0 and (storage in self._stood or not value.is_read)
        ]
        for value in results:
            value.stored = True
        roots = [self._root(number) for number in range(len(self._ops))]
        regions: dict[int, Region] = {}
        whole: dict[int, _Needs] = {}
        needed: dict[int, _Needs] = {}
        for root, op in zip(roots, self._ops, strict=True):
            region = regions.get(root)
            if region is None:
                region, whole[root], needed[root] = regions.setdefault(root, Region()), {}, {}
            region.records.append(op.record)
            needs = needed[root] if op.plan.joins else whole[root]
            for value, size in op.inputs:
                if not op.plan.joins:
                    value.stored = True
                elif value.joinable and roots[value.maker] == root:
                    continue
                if needs.get(value, -1) < size:
                    needs[value] = size
        for value in self._made:
            if value.stored:
                _add_to(regions[roots[value.maker]].writes, value.storage, value.size)
            else:
                value.unpaid = value.size
        for root, region in regions.items():
            for value, amount in _least(whole[root], needed[root]):
                size = max(whole[root].get(value, 0), needed[root].get(value, 0))
                _add_to(region.reads, value.storage, min(size, amount))
                if amount > size:
                    _add_to(regions[roots[value.maker]].writes, value.storage, amount - size)
        return Fusion(
            regions=tuple(regions.values()),
            bytes_in=sum(value.size for value in self._stood.values()),
            bytes_out=sum(value.size for value in results),
        )

    def _join(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        self._joined[max(one, other)] = min(one, other)

    def _root(self, number: int) -> int:
        joined = self._joined
        while joined[number] != number:
            joined[number] = number = joined[joined[number]]
        return number


def _least(whole: _Needs, needed: _Needs) -> Iterator[tuple[_Value, int]]:
    """The least bytes that reading a region's needs moves, by value: more than its size where it is written for this.

    ``whole`` is read as it is. Of what is ``needed`` a flow is found, from what is given through what is computed.
    """
    left: _Needs = dict.fromkeys(whole, 0)  # how much more of a value this region could read
    dead: set[_Value] = set()
    yield from whole.items()
    for is_given in (True, False):
        for value, size in needed.items():
            if value.given is is_given and value not in whole:
                left[value] = size
                yield value, _flow(value, 2 * size, left, dead)


_DEEPEST = 100
"""Ops that the flow follows upwards. What lies beyond counts as nothing, so that the bound stays one."""


def _flow(value: _Value, wanted: int, left: _Needs, dead: set[_Value], depth: int = 0) -> int:
    """Send at most ``wanted`` bytes from what is given through ``value`` to a region that has ``left`` to read."""
    here = left.get(value, value.size)
    wanted = min(wanted, here + value.unpaid)
    if wanted <= 0 or value in dead:
        return 0
    found = wanted if value.given else 0
    if depth < _DEEPEST and not value.given:
        for source, _ in sorted(value.inputs, key=lambda entry: not entry[0].given):
            found += _flow(source, wanted - found, left, dead, depth + 1)
            if found == wanted:
                break
        else:
            dead.add(value)
    left[value] = here - min(here, found)
    value.unpaid -= max(0, found - here)
    return found


def _plan_of(op: OpSignature, cost: OpCost | Uncosted) -> _Plan | None:
    """None for a view: it does nothing."""
    if isinstance(cost, Uncosted):
        return _Plan(joins=False, goes_on=False, known=False)
    family = family_of(op.name)
    if family == "views":
        return None
    is_product = cost.matrix_flops > 0 and not _is_thin(op, cost)
    chain = family in CHAINS and not is_product and not any(part in op.name for part in APART)
    goes_on = family in ANCHORS if is_product else chain and not any(part in op.name for part in LAST)
    read = list(_shares(op.inputs, cost.bytes_read, op.outputs))
    mask = MASKS.get(op.name)
    for place, name in enumerate(op.input_names if mask else ()):
        if name == mask:
            read[place] = min(read[place], op.inputs[place].numel)
    written = _shares(op.outputs, cost.bytes_written)
    return _Plan(joins=chain, goes_on=goes_on, known=True, read=tuple(read), written=tuple(written))


def _is_thin(op: OpSignature, cost: OpCost) -> bool:
    """A product with a dimension of 1 uses each element of its largest tensor once: a compiler may do without it."""
    largest = max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)
    return family_of(op.name) == "matmul" and cost.matrix_flops <= 2 * largest


def _shares(tensors: Sequence[TensorSpec], total: int, mutated: Sequence[TensorSpec] = ()) -> Sequence[int]:
    """How many of an op's ``total`` bytes belong to each tensor, memory shared between them counted at the first.

    An op that touches fewer bytes than its tensors have leaves one out (what ``copy_`` overwrites, what only lends its
    shape) or touches part of the largest (a gather).
    """
    sizes: list[int] = []
    for place, tensor in enumerate(tensors):
        earlier = [other for other in tensors[:place] if other.storage == tensor.storage != UNSHARED]
        sizes.append(distinct_bytes([*earlier, tensor]) - distinct_bytes(earlier) if earlier else tensor.nbytes)
    overwritten = {tensor.storage for tensor in mutated} - {UNSHARED}
    excess = sum(sizes) - total
    while excess > 0:
        cut = max(
            range(len(sizes)),
            key=lambda place: (sizes[place] == excess, tensors[place].storage in overwritten, sizes[place]),
        )
        taken = min(excess, sizes[cut])
        sizes[cut] -= taken
        excess -= taken
    return sizes


def _by_storage(storages: Sequence[int], sizes: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Bytes by storage, summed over the places that name it. Without one size a place, the sizes' sum is shared out."""
    if len(storages) != len(sizes):
        total = sum(sizes)
        return [(storage, total // len(storages)) for storage in dict.fromkeys(storages)]
    if len(set(storages)) == len(storages):
        return list(zip(storages, sizes, strict=True))
    merged: dict[int, int] = {}
    for storage, size in zip(storages, sizes, strict=True):
        merged[storage] = merged.get(storage, 0) + size
    return list(merged.items())


def _add_to(sizes: dict[int, int], storage: int, size: int) -> None:
    if size:
        sizes[storage] = sizes.get(storage, 0) + size
