"""Values: which calls of a step compute what never changes, what was computed before, and what nobody reads."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from rooflight.diagnosis.evidence import Evidence
from rooflight.hardware.network.collectives import kind_of
from rooflight.records.record import OF_MODULES, Direction, StorageKind
from rooflight.records.session import KEPT, NOWHERE, STOOD, Flags, Int64
from rooflight.records.signature import OpSignature

MOST_CALLS: Final = 200_000
"""Of a longer step no values are followed: a step repeats itself, and the report is to stay quick."""

_FOR_PYTHON: Final = 1024
_RANDOM: Final = ("rand", "normal", "bernoulli", "dropout", "multinomial", "exponential", "empty", "uniform", "poisson")
_SCALED: Final = frozenset(
    f"aten::{name}" for name in (
        "mul", "add", "sub", "rsub", "div", "pow", "clamp", "clamp_min", "clamp_max", "leaky_relu", "threshold",
        "hardtanh", "elu", "softplus", "masked_fill", "lerp", "true_divide", "eq", "ne", "gt", "lt", "ge", "le",
    )
)  # fmt: skip
"""Ops that may take a number in a tensor's place, which no signature has."""
_IN_PLACE: Final = frozenset(
    f"aten::{name}_" for name in ("scatter_add", "index_add", "masked_fill", "index_put", "index_copy", "copy")
)
_MADE_OF_NOTHING: Final = ("aten::zeros", "aten::ones", "aten::arange")


class Values:
    """By call of a step, see the properties. Nothing is known of a step without storages, or with too many calls."""

    def __init__(self, evidence: Evidence) -> None:
        self._of = evidence
        self.known = not evidence.analysis.without_storages and len(evidence.records) <= MOST_CALLS
        self._pure = [_is_pure(op) for op in evidence.session.signatures]
        self._numbered = [_lacks_number(op) for op in evidence.session.signatures]
        self._random = [any(part in op.name for part in _RANDOM) for op in evidence.session.signatures]

    @cached_property
    def _none(self) -> Flags:
        return np.zeros(len(self._of.records), dtype=np.bool_)

    @cached_property
    def constant(self) -> Flags:
        """Calls that compute from parameters and buffers that no op of the step writes, and from numbers, alone, and
        whose results no other call writes into; the same op at the same line never computes from anything else.
        """
        found, of = self._none.copy(), self._of
        if not self.known:
            return found
        written = set(of.writes.of(np.arange(len(of.records))).tolist())
        kinds = of.kinds
        same = [kind in OF_MODULES and number not in written for number, kind in enumerate(kinds)]
        signature = of.signature.tolist()
        for call, (reads, writes) in enumerate(zip(of.reads, of.writes, strict=True)):
            fixed = not self._random[signature[call]] and all(same[storage] for storage in reads)
            found[call] = fixed
            for storage in writes:
                same[storage] = fixed
        # what the step writes into can be kept by no buffer: it has to be made anew
        changed = of.writes.by([storage for storage, stays in enumerate(same) if not stays])
        found &= of.works & ~of.collectives & ~changed
        # the first turn of a loop, which begins with numbers: the others do the same with what it makes
        columns = of.session.columns
        turns = np.stack([of.signature, of.module, columns.place[of.records]], axis=1)
        _, turn = np.unique(turns, axis=0, return_inverse=True)
        varies = np.bincount(turn.ravel(), ~found, minlength=1) > 0
        return np.asarray(found & ~varies[turn.ravel()]) if len(found) else found

    @cached_property
    def repeated(self) -> Flags:
        """Calls of which an earlier one has computed the same of the same values. Where a signature lacks a number, it
        is taken for the same in another module that has computed all it reads again.
        """
        found, of = self._none.copy(), self._of
        if not self.known:
            return found
        values: dict[int, object] = {}
        seen: dict[object, int] = {}
        met: set[int] = set()  # storages
        again: set[int] = set()  # of these, whose values were computed again
        starts, offsets = of.session.columns.read_starts, of.session.columns.read_offsets.tolist()
        signature, module = of.signature.tolist(), of.module.tolist()
        for call, (record, reads, writes) in enumerate(zip(of.records.tolist(), of.reads, of.writes, strict=True)):
            first = offsets[record]
            where = starts[first : first + len(reads)].tolist()
            key: object = (
                signature[call],
                *((values.get(storage, storage), start) for storage, start in zip(reads, where, strict=True)),
            )
            met.update(reads)
            over = [storage in reads for storage in writes if storage in met]
            pure = self._pure[signature[call]] and NOWHERE not in where and all(over)
            earlier = seen.get(key) if pure else None
            if earlier is not None and self._numbered[signature[call]]:
                earlier = earlier if module[earlier] != module[call] and again.issuperset(reads) else None
            found[call] = earlier is not None and bool(reads)
            number = call if earlier is None else earlier
            if pure:
                seen.setdefault(key, call)
            for place, storage in enumerate(writes):
                values[storage] = (number, place)
            met.update(writes)
            (again.update if earlier is not None else again.difference_update)(writes)
        return found & of.works

    @cached_property
    def unread(self) -> Flags:
        """Calls whose results no other call reads, and which were gone when the step ended. What Python may have read
        by ``tolist`` or ``numpy``, which no op shows, is not taken for unread: integers and short lists.
        """
        return self._dead(frozenset())

    @cached_property
    def unused_gradients(self) -> Flags:
        """Calls that serve only gradients of which no optimizer reads any, in a step that has one."""
        of = self._of
        if not self.known or not of.optimizes:
            return self._none
        stepping = np.flatnonzero(of.direction == Direction.OPTIMIZER)
        used = set(of.reads.of(stepping).tolist())
        gradients = {number for number, kind in enumerate(of.kinds) if kind == StorageKind.GRADIENT}
        return self._dead(frozenset(gradients - used)) & ~self.unread

    @cached_property
    def statistics(self) -> Flags:
        """Calls of the forward pass, in a step with an optimizer, that serve only what is kept and that no op reads."""
        of, lifetimes = self._of, self._of.session.lifetimes
        if not self.known or not of.optimizes or lifetimes is None:
            return self._none
        kinds = np.asarray(of.kinds)
        made = (lifetimes.made != STOOD) & np.isin(kinds, (StorageKind.ACTIVATION, StorageKind.TEMPORARY))
        made[self._of_next_step] = False
        found = self._dead(frozenset(np.flatnonzero(made).tolist()))
        found &= ~self.unread & ~self.repeated & ~self.constant
        return np.asarray(found & (of.direction == Direction.FORWARD), dtype=np.bool_)

    @property
    def _of_next_step(self) -> list[int]:
        """Storages in the place of one that stood before the step, from which they were made, as an average's is: the
        next step reads them.
        """
        of, lifetimes, size = self._of, self._of.session.lifetimes, self._of.session.storage_bytes
        assert lifetimes is not None
        replaced = (lifetimes.made == STOOD) & (lifetimes.freed != KEPT)
        replaced &= ~np.isin(np.asarray(of.kinds), (*OF_MODULES, StorageKind.GRADIENT))
        stands = set(np.flatnonzero(replaced).tolist())
        for reads, writes in zip(*self._touched, strict=True):
            sizes = {int(size[read]) for read in reads if read in stands}
            stands.update(written for written in writes if int(size[written]) in sizes)
        return list(stands)

    @cached_property
    def for_syncs(self) -> Flags:
        """Calls that serve nothing but numbers which the host reads, those reads included."""
        return self._dead(frozenset(), reads_count=False) & ~self.unread

    def _dead(self, unwanted: frozenset[int], *, reads_count: bool = True) -> Flags:
        found, of, lifetimes = self._none.copy(), self._of, self._of.session.lifetimes
        if not self.known or lifetimes is None:
            return found
        freed, made, end = lifetimes.freed, lifetimes.made, len(of.session)
        stays = (freed == KEPT) | (freed >= end) | (made == STOOD)
        wanted = set(np.flatnonzero(stays).tolist()) - unwanted
        kept = (of.collectives | ~of.works | (of.syncs & reads_count)).tolist()
        all_reads, all_writes = self._touched
        for call in range(len(of.records) - 1, -1, -1):
            writes = all_writes[call]
            read = any(storage in wanted for storage in writes) or (not unwanted and self._for_python(call))
            if kept[call] or (not writes and (reads_count or not of.syncs[call])) or read:
                wanted.update(all_reads[call] if of.works[call] else ())
            else:
                found[call] = True
        return found

    @cached_property
    def _touched(self) -> tuple[list[list[int]], list[list[int]]]:
        return list(self._of.reads), list(self._of.writes)

    def _for_python(self, call: int) -> bool:
        """Whether no op reads what a call makes, and Python may: by ``tolist`` or ``numpy``."""
        of, op = self._of, self._of.op(call)
        if not of.writes[call] or any(after > call for storage in of.writes[call] for after in of.readers[storage]):
            return False
        return all("float" not in tensor.dtype or tensor.numel < _FOR_PYTHON for tensor in op.outputs)


def _is_pure(op: OpSignature) -> bool:
    """Whether equal signatures of equal values give equal results, but for a number left out."""
    if any(part in op.name for part in _RANDOM) or kind_of(op.name) is not None or not op.outputs:
        return False
    return op.name in _IN_PLACE if op.name.endswith("_") else bool(op.inputs) or op.name in _MADE_OF_NOTHING


def _lacks_number(op: OpSignature) -> bool:
    name = op.name.removesuffix("_")
    return name == "aten::arange" or (name in _SCALED and len(op.inputs) < (3 if name == "aten::masked_fill" else 2))


def levels(of: Evidence) -> Int64:
    """Of each call how many others, one after the other, must have run before it: those of one level could be one."""
    above: dict[int, int] = {}
    found = np.zeros(len(of.records), dtype=np.int64)
    working = of.works.tolist()
    for call, (reads, writes) in enumerate(zip(of.reads, of.writes, strict=True)):
        level = max((above.get(storage, 0) for storage in reads), default=0)
        found[call] = level
        for storage in writes:
            above[storage] = max(above.get(storage, 0), level + working[call])
    return found
