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

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.measurement import Float64, undisturbed
from rooflight.records.record import GIVEN, OF_MODULES, Direction, StorageKind
from rooflight.records.session import KEPT, STOOD, Flags, Int64, Session
from rooflight.roofline.fusion.apart import Copies, columns_of, stretches
from rooflight.roofline.fusion.graph import Alone, OpGraph, Region
from rooflight.roofline.fusion.masks import masked_attention
from rooflight.roofline.fusion.narrowing import narrowed_calls
from rooflight.roofline.fusion.ops import OpFusion, op_fusion_of, partial_touches, touched_by
from rooflight.roofline.fusion.parts import Part, union_bytes
from rooflight.roofline.fusion.repeated import repeated_products

_DEEPEST = 200
"""Ops that a flow follows upwards. What lies beyond counts as nothing, so that the bound stays one."""

_UPDATE = 25
"""As how many of these an update in place counts: a long loop updates its weights again and again, and every one of its
regions would follow all of these updates.
"""

_MOST_TURNS = 4
"""Beginnings and ends of backward passes at which it is found what must be alive."""

_NOWHERE = -1
"""In place of the region that made a value: none did."""


class _Traffic:
    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        first_ops = graph.first_ops()
        self._homes = [first_ops[maker] if maker >= 0 else _NOWHERE for maker in graph.makers]  # by value
        self._regions: dict[int, Region] = {}  # by first op
        self._ops: dict[int, list[int]] = {}
        for op, first in enumerate(first_ops):
            self._ops.setdefault(first, []).append(op)
        for first, ops in self._ops.items():
            self._regions[first] = Region(records=sorted(record for op in ops for record in graph.records_of(op)))
        self._flow = _Flow(graph)

    def regions(self, results: Mapping[int, int]) -> tuple[Region, ...]:
        """The graph's, in the order in which they begin, with what they must read and write. ``results`` are the values
        that must be there in the end, with the bytes of each.
        """
        for value, size in self._written(results).items():
            self._flow.mark_written(value)
            if self._homes[value] != _NOWHERE:
                self._write(value, size)
        for first, ops in self._ops.items():
            self._supply(self._regions[first], *self._needs(first, ops))
        return tuple(self._regions.values())

    def _written(self, results: Mapping[int, int]) -> dict[int, int]:
        """Results, and what ops read that cannot compute it again, with the bytes of each that must be written."""
        graph, sizes, parts = self._graph, self._graph.sizes, self._graph.parts_read
        written = dict(results)
        read: dict[int, set[Part]] = {}
        for value, size in graph.taken.items():
            written[value] = max(size, written.get(value, 0))
        for op, fusion in enumerate(graph.fusions):
            if fusion.with_makers:
                continue
            for place, (value, size) in enumerate(zip(graph.inputs_of(op), fusion.read, strict=True)):
                if parts and (op, place) in parts:
                    read.setdefault(value, set()).add(parts[op, place])
                elif size or not fusion.known:
                    written[value] = sizes[value]
        for value, touched in read.items():
            written[value] = max(min(union_bytes(touched), sizes[value]), written.get(value, 0))
        return written

    def _needs(self, first: int, ops: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Bytes that a region needs of values of others: those its anchors take whole, and those of its chains."""
        graph, homes = self._graph, self._homes
        whole: dict[int, int] = {}
        needed: dict[int, int] = {}
        parts: dict[tuple[bool, int], set[Part]] = {}
        for op in ops:
            fusion, inputs = graph.fusions[op], graph.inputs_of(op)
            needs = needed if fusion.with_makers else whole
            sizes: Iterable[tuple[int, int]] = zip(inputs, fusion.read, strict=True)
            for value, size in _summed(sizes) if fusion.aliased else sizes:
                if size and homes[value] != first and needs.get(value, 0) < size and value not in graph.between:
                    needs[value] = size
            for place, value in enumerate(inputs) if graph.parts_read or graph.from_before else ():
                if (op, place) in graph.from_before:
                    stood, size = graph.from_before[op, place]
                    needs[stood] = max(needs.get(stood, 0), size)
                    if value in needs:
                        needs[value] = min(needs[value], fusion.read[place] - size)
                elif (op, place) in graph.parts_read and value in needs:
                    parts.setdefault((fusion.with_makers, value), set()).add(graph.parts_read[op, place])
        for (computes, value), touched in parts.items():
            needs = needed if computes else whole
            needs[value] = max(needs[value], union_bytes(touched))
        return whole, needed

    def _supply(self, region: Region, whole: dict[int, int], needed: dict[int, int]) -> None:
        """Let the least move that gives a region what it needs.

        What is given goes first, since it must be read as it is; it may then serve to compute the rest.
        """
        flow, storages = self._flow, self._graph.storages
        flow.begin(whole)
        for value, size in whole.items():
            _add_to(region.reads, storages[value], size)
        for value in flow.given_first([value for value in needed if value not in whole]):
            size = needed[value]
            sent = flow.send(value, size)
            _add_to(region.reads, storages[value], min(size, sent))
            if sent > size:
                self._write(value, sent - size)

    def _write(self, value: int, size: int) -> None:
        _add_to(self._regions[self._homes[value]].writes, self._graph.storages[value], size)


class _Flow:
    """Bytes sent from what is *given* (there before the step, or made by ops that are no chain) through what chains
    compute from it, to one region after another.

    A value lets each region read its size once; to be written, it lets its size through once for all regions.
    """

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._sizes: Sequence[int] = graph.sizes
        chains = [fusion.is_chain for fusion in graph.fusions]
        self._computed = bytearray(  # 1 of what is not given
            graph.inside[storage] if maker < 0 else chains[maker]
            for storage, maker in zip(graph.storages, graph.makers, strict=True)
        )
        self._unwritten = [size if maker >= 0 else 0 for maker, size in zip(graph.makers, graph.sizes, strict=True)]
        self._unread: dict[int, int] = {}  # what the region in hand could still read of a value, its size if not here
        self._dry: set[int] = set()  # values through which the region in hand gets no more

    def mark_written(self, value: int) -> None:
        self._unwritten[value] = 0  # it is written anyway: no region pays for it

    def begin(self, read: Iterable[int]) -> None:
        """Turn to the next region, which reads these values whole anyway."""
        self._dry.clear()
        self._unread = dict.fromkeys(read, 0)

    def given_first(self, values: Sequence[int]) -> list[int]:
        return sorted(values, key=self._computed.__getitem__)

    def send(self, value: int, size: int) -> int:
        """Bytes that must move for the region in hand to have ``size`` of a value: what exceeds ``size`` is written."""
        self._unread[value] = size
        return self._through(value, 2 * size, _DEEPEST)

    def _through(self, value: int, wanted: int, depth: int) -> int:
        unread = self._unread.get(value, self._sizes[value])
        unwritten = self._unwritten[value]
        wanted = min(wanted, unread + unwritten)
        if wanted <= 0:
            return 0
        sent = self._into(value, wanted, depth) if self._computed[value] else wanted
        if sent > unread:
            self._unwritten[value] = unwritten - (sent - unread)
            self._unread[value] = 0
        else:
            self._unread[value] = unread - sent
        return sent

    def _into(self, value: int, wanted: int, depth: int) -> int:
        """The same, from what a value is computed from; first from what is given, the shorter way."""
        if depth <= 0 or value in self._dry or self._graph.makers[value] < 0:
            return 0
        sent = 0
        sources, storages = self._graph.sources_of(value), self._graph.storages
        for source in self.given_first([*sources]):
            further = depth - (_UPDATE if storages[source] == storages[value] else 1)
            sent += self._through(source, min(wanted - sent, sources[source]), further)
            if sent == wanted:
                return sent
        self._dry.add(value)
        return sent


class _Kept(_Flow):
    """Bytes that must be alive when an op begins, beside what stood before the step: what later ops read that cannot be
    computed again then, or what it is computed from, whichever is less. Only chains are computed again.
    """

    def __init__(self, graph: OpGraph, op: int) -> None:
        super().__init__(graph)
        self._sizes = [0] * len(graph.sizes)
        made_later = [sys.maxsize if fusion.is_chain else 0 for fusion in graph.fusions]
        self._unwritten = [
            made_later[maker] if maker >= op else size if maker >= 0 and storage not in graph.stood else 0
            for storage, maker, size in zip(graph.storages, graph.makers, graph.sizes, strict=True)
        ]
        later = range(op, len(graph.fusions))
        self._read = [(graph.inputs_of(each), graph.fusions[each]) for each in later]

    def nbytes(self, results: Mapping[int, int]) -> int:
        """How many, where ``results`` must be there in the end."""
        read = ((values, fusion.read) for values, fusion in self._read if not fusion.with_makers)
        needed = (each for values, sizes in read for each in zip(values, sizes, strict=True))
        return sum(self._through(value, size, _DEEPEST) for value, size in (*needed, *results.items()))


def _kept(session: Session, graph: OpGraph, lasting: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """Records, where backward passes begin and end and after the last, and the bytes that must then be alive: of a
    graph that computes again what the program does, such as checkpoints.
    """
    results = _results(graph, lasting, _local(session))
    graph.leave_out_between(results)
    storages, stood = graph.storages, graph.stood
    results = {value: n for value, n in results.items() if storages[value] in stood or storages[value] in lasting}
    backward = session.columns.direction[graph.records] == Direction.BACKWARD
    turns = np.flatnonzero(backward[1:] != backward[:-1])[:_MOST_TURNS] + 1
    found = [(graph.records[op], _Kept(graph, op).nbytes(results)) for op in turns.tolist()]
    return (*found, (len(session), _Kept(graph, len(graph.fusions)).nbytes(results)))


def _summed(sizes: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    merged: dict[int, int] = {}
    for value, size in sizes:
        merged[value] = merged.get(value, 0) + size
    return merged.items()


def _add_to(sizes: dict[int, int], storage: int, size: int) -> None:
    if size:
        sizes[storage] = sizes.get(storage, 0) + size


def unused_calls(session: Session, costs: Sequence[OpCost | Uncosted]) -> Flags:
    """By record, whether its results are read by no op that is needed, and were freed before the call of the outermost
    module that made them returned. ``costs`` go with the session's signatures.

    Such are a mean of attention weights that a model drops, and all that was computed for it. Calls that send, have no
    cost or write nothing are needed. Without lifetimes all are.
    """
    found = np.zeros(len(session), dtype=np.bool_)
    lifetimes = session.lifetimes
    if lifetimes is None or not lifetimes.local.any():
        return found
    needed = bytearray((~lifetimes.local).tobytes())  # by storage: one that is written in parts is needed whole
    droppable = [isinstance(cost, OpCost) and not cost.bytes_sent for cost in costs]
    for record, signature, reads, writes in touched_by(session, np.flatnonzero(session.counted)[::-1]):
        if writes and droppable[signature] and not any(needed[storage] for storage in writes):
            found[record] = True
            continue
        for storage in reads:
            needed[storage] = True
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The regions of a session, in the order in which they begin, and its compulsory bytes: ``bytes_in`` of what was
    there before the step and is read, ``bytes_out`` of what is there after it and was written. ``stood_bytes`` and
    ``kept_bytes``: those of ``bytes_in`` in memory allocated before the step, and those of ``bytes_out`` in memory not
    freed before its last op ran; memory that the step allocates or frees may be the same again and again, and never
    leave a cache. ``stood_by_kind``: of ``bytes_in``, those of parameters and of inputs. ``attending``: records
    of products that a softmax makes attention of. ``work``: by record of an op of whose results only a part is read
    or not hidden by a mask, the share of its FLOPs that this part takes. ``unknown_masks``: products that make scores,
    of which the recording could not see what a mask hides.
    ``repeated``: records of products that the program had computed before. ``kept``: records, and the bytes made in the
    step that must be alive when they begin, if no product is computed twice; of compiled programs alone.
    """

    regions: Sequence[Region]
    bytes_in: int
    bytes_out: int
    stood_bytes: int = 0
    stood_by_kind: Mapping[StorageKind, int] = field(default_factory=dict)
    kept_bytes: int = 0
    attending: frozenset[int] = frozenset()
    work: Mapping[int, float] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()
    unknown_masks: frozenset[int] = frozenset()
    kept: tuple[tuple[int, int], ...] = ()

    def columns(self) -> tuple[Int64, Int64, Float64, Float64]:
        """All records, region by region, and of each region how many it has and the bytes that it reads and writes."""
        regions = self.regions
        if isinstance(regions, Alone):
            nothing = np.zeros(len(regions))
            return regions.records, np.ones(len(regions), dtype=np.int64), nothing, nothing
        return regions.columns() if isinstance(regions, Copies) else columns_of(regions)


@undisturbed()
def fuse(session: Session, costs: Sequence[OpCost | Uncosted], *, whole: bool = False) -> Fusion:
    """The regions of a session's counted ops but the unused ones. ``costs`` go with its signatures. ``whole``: each op
    computes all of its results, as today's compilers have it, whatever part of them is read.
    """
    fusions = [op_fusion_of(op, cost) for op, cost in zip(session.signatures, costs, strict=True)]
    if not len(session.columns.read_ids) and not len(session.columns.written_ids):
        calls = session.counted & ~unused_calls(session, costs)
        runs = np.array([fusion is not None for fusion in fusions], dtype=np.bool_)[session.columns.signature]
        return Fusion(regions=Alone(np.flatnonzero(calls & runs)), bytes_in=0, bytes_out=0)
    apart = None if whole else _fused_apart(session, costs, fusions)
    found = _reading(_fused(session, costs, fusions, whole=whole)) if apart is None else apart
    return found if whole else _without_spared(found, session, costs)


def _without_spared(found: Fusion, session: Session, costs: Sequence[OpCost | Uncosted]) -> Fusion:
    """The same without the bytes that stood before the step, or are there after it, which other data spare."""
    read, written = (_spared(session, costs, way) for way in ("read", "written"))
    if not read.any() and not written.any():
        return found
    lifetimes, stood = session.lifetimes, found.stood_by_kind
    if lifetimes is not None:
        stood = {kind: size - int(read[lifetimes.kind == kind].sum()) for kind, size in stood.items()}
    less_in, less_out = int(read.sum()), int(written.sum())
    return replace(
        found,
        bytes_in=max(0, found.bytes_in - less_in),
        bytes_out=max(0, found.bytes_out - less_out),
        stood_bytes=max(0, found.stood_bytes - less_in),
        kept_bytes=max(0, found.kept_bytes - less_out),
        stood_by_kind=stood,
    )


def _spared(session: Session, costs: Sequence[OpCost | Uncosted], way: str) -> Int64:
    """By storage, how many bytes of what the step did not write, or of what it wrote, all ops that read or write it can
    do without: of each op the storage is the largest that it touches.
    """
    columns, found = session.columns, np.zeros(len(session.storage_bytes), dtype=np.int64)
    avoidable = np.array([getattr(cost, f"avoidable_{way}", 0) for cost in costs], dtype=np.int64)
    if not avoidable.any():
        return found
    ids, offsets = getattr(columns, f"{way}_ids"), getattr(columns, f"{way}_offsets")
    record = np.repeat(np.arange(len(session)), np.diff(offsets))
    by_size = np.lexsort((-session.storage_bytes[ids], record))
    _, first = np.unique(record[by_size], return_index=True)
    largest = by_size[first]
    spared = np.zeros(len(ids), dtype=np.int64)
    spared[largest] = avoidable[columns.signature[record[largest]]]
    least = np.full(len(found), np.iinfo(np.int64).max)
    np.minimum.at(least, ids, spared)
    touched = np.setdiff1d(ids, columns.written_ids) if way == "read" else np.unique(ids)
    found[touched] = least[touched]
    return found


def _reading(found: Fusion, nbytes: int | None = None) -> Fusion:
    """The same with no more bytes from before the step than its regions read, ``nbytes`` if that is known."""
    read = sum(region.bytes_read for region in found.regions) if nbytes is None else nbytes
    bytes_in = min(found.bytes_in, read)
    return replace(found, bytes_in=bytes_in, stood_bytes=min(bytes_in, found.stood_bytes))


def _fused_apart(
    session: Session, costs: Sequence[OpCost | Uncosted], fusions: Sequence[OpFusion | None]
) -> Fusion | None:
    """``fuse`` stretch by stretch; None of a session that is but one."""
    regions, known, nbytes = Copies(), dict[bytes, tuple[Fusion, int]](), 0
    sums, by_kind = Counter[str](), Counter[StorageKind]()
    records: dict[str, list[int]] = {name: [] for name in ("attending", "unknown_masks", "repeated")}
    work: dict[int, float] = {}
    for stretch in stretches(session):
        if stretch.key not in known:
            fused = _fused(stretch.session, costs, fusions)
            known[stretch.key] = fused, sum(region.bytes_read for region in fused.regions)
        found, read = known[stretch.key]
        nbytes += read
        regions.add(stretch, found.regions)
        by_kind.update(found.stood_by_kind)
        for name in ("bytes_in", "bytes_out", "stood_bytes", "kept_bytes"):
            sums[name] += getattr(found, name)
        for name, each in records.items():
            each += [record + stretch.start for record in getattr(found, name)]
        work |= {record + stretch.start: share for record, share in found.work.items()}
    if not known:
        return None
    whole: dict[str, Any] = {**sums, **{name: frozenset(each) for name, each in records.items()}}
    return _reading(Fusion(regions=regions, work=work, stood_by_kind=by_kind, **whole), nbytes)


def _fused(
    session: Session, costs: Sequence[OpCost | Uncosted], fusions: Sequence[OpFusion | None], *, whole: bool = False
) -> Fusion:
    """``fuse``, but that bytes from before the step may be more than its regions read."""
    calls = session.counted & ~unused_calls(session, costs)
    partial = partial_touches(session)
    narrowed = {} if whole else narrowed_calls(session, fusions, costs, calls, partial)
    masked = masked_attention(session, fusions, calls)
    narrowed = masked.narrowing(narrowed, session, fusions, partial)
    work = {record: less.work for record, less in narrowed.items() if less.work < 1}
    for record, visible in masked.work.items():
        work[record] = max(0.0, visible + work.get(record, 1.0) - 1)  # what is not needed may all be visible
    repeated, equal = repeated_products(session, costs, calls)
    given = session, fusions, calls, partial, narrowed
    graph = OpGraph(*given, equal)
    lasting = _lasting(session)
    results = _results(graph, lasting, _local(session))
    graph.leave_out_between(results)
    regions = _Traffic(graph).regions(results)
    stood, kept = _at_the_ends(session)
    return Fusion(
        regions=regions,
        bytes_in=graph.bytes_in(),
        bytes_out=sum(results.values()),
        stood_bytes=graph.bytes_in(stood),
        stood_by_kind=_by_kind(session, graph),
        kept_bytes=sum(size for value, size in results.items() if kept[graph.storages[value]]),
        attending=frozenset(graph.records[op] for op in graph.attending),
        work=work,
        unknown_masks=frozenset(masked.unknown),
        repeated=repeated,
        kept=_kept(session, OpGraph(*given, {}) if equal else graph, lasting) if session.compiled else (),
    )


def _results(graph: OpGraph, lasting: frozenset[int], local: frozenset[int]) -> dict[int, int]:
    """Values that must be there after the step, and bytes: updates of what stood before it, what lasts, and what
    nothing reads unless its maker's caller never had it.
    """
    found: dict[int, int] = {}
    for storage in graph.held:
        needed = storage in graph.stood or storage in lasting
        if needed or storage not in local:
            found |= {value: size for value, size in graph.in_storage(storage) if needed or not graph.is_read[value]}
    return found


def _at_the_ends(session: Session) -> tuple[Flags, Flags]:
    """By storage: whether it was there when the step began, and when its last op ended; all where that is unknown."""
    lifetimes = session.lifetimes
    if lifetimes is None:
        both = np.ones(len(session.storage_bytes), dtype=np.bool_)
        return both, both
    return lifetimes.made == STOOD, (lifetimes.freed == KEPT) | (lifetimes.freed >= len(session))


def _by_kind(session: Session, graph: OpGraph) -> dict[StorageKind, int]:
    lifetimes = session.lifetimes
    if lifetimes is None:
        return {}
    return {kind: graph.bytes_in(lifetimes.kind == kind) for kind in (*OF_MODULES, *GIVEN)}


def _local(session: Session) -> frozenset[int]:
    return frozenset() if session.lifetimes is None else frozenset(np.flatnonzero(session.lifetimes.local).tolist())


def _lasting(session: Session) -> frozenset[int]:
    """Gradients and optimizer states that the step made and its caller kept. What else is left may be held by a cycle,
    a local variable or a backward pass still to come: a compiler need not write it.
    """
    lifetimes = session.lifetimes
    if lifetimes is None:
        return frozenset()
    certain = np.isin(lifetimes.kind, (StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE))
    return frozenset(np.flatnonzero((lifetimes.freed == KEPT) & (lifetimes.made != STOOD) & certain).tolist())
