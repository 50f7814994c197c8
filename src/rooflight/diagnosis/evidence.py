"""Evidence: what a diagnosis knows of a step, call by call, as the remedies read it: its times, and what calls are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import structs

from rooflight.costs.cost import Uncosted
from rooflight.diagnosis.touched import Touched, numbers
from rooflight.records.account import Place
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import Flags, Int64
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
        """Names of the ops of some calls: the first in order of the alphabet."""
        return ", ".join(sorted({plain_name(op.name) for op in self.ops(calls)})[:most])

    def total(self, of_op: Callable[[OpSignature], float], calls: Iterable[int]) -> float:
        """The sum over calls of what is a number of their op, as its bytes."""
        counts = np.bincount(self.signature[numbers(calls)], minlength=1)
        return sum(int(counts[at]) * of_op(self.session.signatures[at]) for at in np.flatnonzero(counts).tolist())

    def named(self, *names: str) -> Int64:
        """Calls of ops that have such names."""
        these = np.array([op.name in names for op in self.session.signatures], dtype=np.bool_)
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
        """The kind of each storage; inputs where that is not known."""
        lifetimes = self.session.lifetimes
        if lifetimes is None:
            return [int(StorageKind.INPUT)] * len(self.session.storage_bytes)
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

    def parameter_read(self, call: int) -> int | None:
        """A parameter that a call reads."""
        kinds = self.kinds
        return next((each for each in self.reads[call] if kinds[each] == StorageKind.PARAMETER), None)

    def where(self, calls: Iterable[int], most: int = 2) -> tuple[Place, ...]:
        """Modules and functions in which calls take longest, with the lines of modules that are the program's own."""
        these = numbers(calls)
        session, modules = self.session, self.module[these].astype(np.int64)
        pairs = modules * len(session.functions) + session.columns.function[self.records[these]]
        pairs, which, _ = distinct(pairs)
        seconds = np.bincount(which, self.seconds[these], minlength=len(pairs))
        first = np.empty(len(pairs), dtype=np.int64)
        first[which[::-1]] = np.arange(len(which))[::-1]
        found: dict[Place, float] = {}
        for at in np.argsort(first).tolist():
            module, function = divmod(int(pairs[at]), len(session.functions))
            name = session.modules[module].class_name
            made = session.class_lines.get(name, Place())
            place = structs.replace(made, module=name, function="" if name else session.functions[function])
            if name or place.function:
                found[place] = found.get(place, 0.0) + float(seconds[at])
        return tuple(sorted(found, key=lambda place: -found[place])[:most])

    def places(self, calls: Iterable[int], most: int = 2) -> str:
        """The same in words: `` in Attention (train.py:52), F.softmax``."""
        names = (
            f"{place.module} ({place.at})" if place.line else place.module or place.function
            for place in self.where(calls, most)
        )
        text = ", ".join(names)
        return f" in {text}" if text else ""
