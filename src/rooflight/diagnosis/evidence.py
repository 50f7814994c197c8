"""Evidence: what a diagnosis knows of a step, call by call, as the remedies read it: its times, and what calls are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import structs

from rooflight.costs.cost import Uncosted
from rooflight.diagnosis.touched import Touched, numbers
from rooflight.records.account import Place, hottest
from rooflight.records.record import OF_MODULES, Direction, StorageKind
from rooflight.records.session import KEPT, Flags, Int64
from rooflight.records.signature import ON_HOST, OpSignature
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.account.times import Times
from rooflight.roofline.distinct import distinct
from rooflight.roofline.groups import plain_name
from rooflight.roofline.host import SYNCS


class Evidence(Times):
    """The times of an analysis, and what its counted calls are, read and write."""

    analysis: Accounted

    @cached_property
    def runs_eagerly(self) -> bool:
        """Whether a part of a program that is compiled runs eagerly: beyond the recompile limit, or at graph breaks."""
        measurement = self.analysis.measurement
        seen = measurement.host.compilations if measurement is not None and measurement.host is not None else ()
        return any(each.limited or (not each.times and each.reason) for each in seen)

    def op(self, call: int) -> OpSignature:
        """The signature of a call."""
        return self.session.signatures[int(self.signature[call])]

    def ops(self, calls: Int64) -> Sequence[OpSignature]:
        """The distinct signatures of some calls."""
        return [self.session.signatures[number] for number in distinct(self.signature[calls])[0].tolist()]

    def names(self, calls: Int64, most: int = 3) -> str:
        """Names of the ops of which some calls take longest."""
        sums: dict[str, float] = {}
        totals = np.bincount(self.signature[calls], (self.seconds + self.host_s)[calls])
        for op, seconds in zip(self.ops(calls), totals[np.unique(self.signature[calls])].tolist(), strict=True):
            name = plain_name(op.name)
            sums[name] = sums.get(name, 0.0) + seconds
        return ", ".join(sorted(sums, key=lambda name: -sums[name])[:most])

    def total(self, of_op: Callable[[OpSignature], float], calls: Iterable[int]) -> float:
        """The sum over calls of what is a number of their op, as its bytes."""
        counts = np.bincount(self.signature[numbers(calls)], minlength=1)
        return sum(int(counts[at]) * of_op(self.session.signatures[at]) for at in np.flatnonzero(counts).tolist())

    def named(self, *names: str) -> Int64:
        """Calls of ops that have such names, on tensors of which all elements are stored: shapes say what they do."""
        these = np.array([op.name in names and not _packed(op) for op in self.session.signatures], dtype=np.bool_)
        return np.flatnonzero(these[self.signature]) if len(these) else np.empty(0, dtype=np.int64)

    @cached_property
    def products(self) -> Flags:
        """Calls that multiply matrices."""
        costs = self.analysis.costs
        return self.where_op(not isinstance(cost, Uncosted) and cost.matrix_flops > 0 for cost in costs)

    @cached_property
    def syncs(self) -> Flags:
        """Calls whose results the host waits for."""
        return self.where_op(op.name in SYNCS and ON_HOST not in op.attributes for op in self.session.signatures)

    @cached_property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return bool((self.direction == Direction.BACKWARD).any())

    @cached_property
    def optimizes(self) -> bool:
        """Whether an optimizer steps."""
        return bool((self.direction == Direction.OPTIMIZER).any())

    @cached_property
    def kinds(self) -> Sequence[int]:
        """The kind of each storage; data where that is not known."""
        lifetimes = self.session.lifetimes
        if lifetimes is None:
            return [int(StorageKind.DATA)] * len(self.session.storage_bytes)
        return [int(kind) for kind in lifetimes.kind]

    @cached_property
    def reads(self) -> Touched:
        """Storages that each call reads."""
        return self._touched(self.session.columns.read_offsets, self.session.columns.read_ids)

    @cached_property
    def writes(self) -> Touched:
        """Storages that each call writes."""
        return self._touched(self.session.columns.written_offsets, self.session.columns.written_ids)

    def _touched(self, offsets: Int64, ids: np.ndarray) -> Touched:
        return Touched(offsets[self.records], offsets[self.records + 1], ids)

    @cached_property
    def readers(self) -> Touched:
        """The calls that read each storage."""
        return self.reads.inverse(len(self.session.storage_bytes))

    def share_read(self, call: int) -> float:
        """Which share of a call's results later ops read, of 1 at most; 1 where the step may return them, or where it
        is not known what is read.
        """
        lifetimes, writes = self.session.lifetimes, self.writes[call]
        readers = [each for storage in writes for each in self.readers[storage] if each > call and self.works[each]]
        freed = [int(lifetimes.freed[storage]) for storage in writes] if lifetimes is not None else [KEPT]
        late = max(freed, default=KEPT) >= len(self.session) and max(readers, default=0) < self.last
        if not readers or KEPT in freed or late:
            return 1.0
        read = 0
        for reader in readers:
            op, reads = self.op(reader), self.reads[reader]
            if len(reads) != len(op.inputs):
                return 1.0
            read += sum(tensor.nbytes for tensor, each in zip(op.inputs, reads, strict=True) if each in writes)
        return min(1.0, read / max(1, self.op(call).output_bytes))

    @cached_property
    def last(self) -> int:
        """The last call that works."""
        return int(np.flatnonzero(self.works).max(initial=0))

    def parameter_read(self, call: int) -> int | None:
        """A parameter that a call reads."""
        kinds = self.kinds
        return next((each for each in self.reads[call] if kinds[each] in OF_MODULES), None)

    def places_of(self) -> tuple[Int64, int]:
        """A number for the line and the class of module of each call, or for its op where no line is known, and how
        many numbers there are.
        """
        session, columns = self.session, self.session.columns
        lines: dict[tuple[str, int], int] = {("", 0): 0}
        line_of = np.array([lines.setdefault((each.file, each.line), len(lines)) for each in session.places], np.int64)
        line, module = line_of[columns.place[self.records]], columns.module[self.records]
        classes: dict[str, int] = {}
        class_of = np.array([classes.setdefault(each.class_name, len(classes)) for each in session.modules], np.int64)
        ops, names = self.analysis.labels("op")
        keys = np.where(line > 0, len(names) + line * len(classes) + class_of[module], ops[self.records])
        _, groups, counts = distinct(keys)
        return groups, len(counts)

    def where(self, calls: Iterable[int], most: int = 2) -> tuple[Place, ...]:
        """Lines of the program's own, and modules, in which calls, and the views before them, take longest; torch's
        function where neither is known.
        """
        wanted = np.zeros(len(self.records), dtype=np.bool_)
        wanted[numbers(calls)] = True
        working = np.flatnonzero(self.works)
        serves = working[np.minimum(np.searchsorted(working, np.arange(len(wanted))), max(0, len(working) - 1))]
        these = np.flatnonzero(wanted | wanted[serves] if len(working) else wanted)
        took_s = self.op_s + self.gaps_s
        session, columns = self.session, self.session.columns
        tables = (columns.place, len(session.places)), (columns.module, len(session.modules))
        keys = columns.function[self.records[these]].astype(np.int64)
        for column, size in tables:
            keys = keys * size + column[self.records[these]]
        keys, which, _ = distinct(keys)
        found: dict[Place, float] = {}
        for key, seconds in zip(keys.tolist(), np.bincount(which, took_s[these]).tolist(), strict=True):
            rest, module = divmod(key, len(session.modules))
            function, line = divmod(rest, len(session.places))
            place = structs.replace(session.places[line], module=session.modules[module].class_name)
            if not place:
                place = structs.replace(place, function=session.functions[function])
            found[place] = found.get(place, 0.0) + float(seconds)
        return hottest({place: seconds for place, seconds in found.items() if place}, most)

    def places(self, calls: Iterable[int], most: int = 2) -> str:
        """The same in words: `` in Attention.forward (train.py:52), F.softmax``."""
        text = ", ".join(place.named for place in self.where(calls, most))
        return f" in {text}" if text else ""


def _packed(op: OpSignature) -> bool:
    return any(tensor.packing is not None for tensor in (*op.inputs, *op.outputs))
