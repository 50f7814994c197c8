"""Tape: the columns of a session while it is being recorded."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rooflight.capture.plans import known_int
from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import NO_PARENT, Columns, Int64, Session
from rooflight.records.signature import OpSignature


class Tape:
    """Append-only columns. Kept to plain arrays of ints, because every recorded op pays for each append.

    Module, phase and direction change far less often than ops follow each other, so an op stores one ``context``
    number for the three. How many storages an op reads and writes goes with its signature; their ids follow each
    other in ``touched``, those read before those written.
    """

    __slots__ = (
        "_contexts",
        "_modules",
        "_parents",
        "_phases",
        "_signatures",
        "contexts",
        "devices",
        "keys",
        "signatures",
        "storage_bytes",
        "storage_ids",
        "touched",
    )

    def __init__(self) -> None:
        self.keys: dict[tuple[object, ...], int] = {}  # what a reader saw -> number of the signature
        self._signatures: dict[tuple[int, int, int], tuple[int, OpSignature]] = {}
        self._modules: dict[tuple[str, str], int] = {}  # (path, class) -> number
        self._phases: dict[str, int] = {}
        self._contexts: dict[tuple[int, int, int], int] = {}
        self.signatures = array("i")
        self.contexts = array("i")
        self.touched = array("i")
        self.storage_ids: dict[int, int] = {}  # address of a live storage -> its id
        self.storage_bytes = array("q")
        self.devices: set[str] = set()  # types of the devices whose tensors were seen: cpu, cuda, meta
        self._parents: dict[int, int] = {}  # by child
        self.context(self.module("", ""), self.phase(""), Direction.FORWARD)

    def __len__(self) -> int:
        return len(self.signatures)

    def module(self, path: str, class_name: str) -> int:
        """The number of a module in the session's table."""
        return self._modules.setdefault((path, class_name), len(self._modules))

    def module_path(self, number: int) -> str:
        """The qualified name of a module, by its number."""
        return list(self._modules)[number][0]

    def phase(self, name: str) -> int:
        """The number of a phase in the session's table."""
        return self._phases.setdefault(name, len(self._phases))

    def context(self, module: int, phase: int, direction: int) -> int:
        """The number that stands for a module, phase and direction together."""
        return self._contexts.setdefault((module, phase, direction), len(self._contexts))

    def signature(self, op: OpSignature, reads: int, writes: int) -> int:
        """The number of a signature whose calls touch so many storages."""
        # by identity, for hashing a signature takes longer than making one; equal ones become one in session()
        known = self._signatures.setdefault((id(op), reads, writes), (len(self._signatures), op))
        return known[0]

    def new_storage(self, address: int, nbytes: int) -> int:
        """Give the storage that now lives at ``address`` an id of its own."""
        number = len(self.storage_bytes)
        self.storage_bytes.append(nbytes if type(nbytes) is int else known_int(nbytes))
        self.storage_ids[address] = number
        return number

    def append(self, op: OpSignature, context: int, reads: Sequence[int], writes: Sequence[int]) -> int:
        """Add a record; returns its index. Readers of plain ops do the same by hand."""
        try:
            self.contexts.append(context)
            self.touched.extend(reads)
            self.touched.extend(writes)
            self.signatures.append(self.signature(op, len(reads), len(writes)))
        except BaseException:
            self.mend()
            raise
        return len(self.signatures) - 1

    def mend(self) -> None:
        """Take out the half of a record that an interrupt let through: one counts once its signature is there."""
        count = len(self.signatures)
        if len(self.contexts) > count:
            table = [reads + writes for _, reads, writes in self._signatures]
            del self.touched[sum(table[number] for number in self.signatures) :]
            del self.contexts[count:]

    def storages_of(self, records: Sequence[int]) -> tuple[dict[int, None], dict[int, None]]:
        """Storages that the last few records read and wrote, each once, in order."""
        table = list(self._signatures)
        wanted = set(records)
        reads: list[int] = []
        writes: list[int] = []
        end = len(self.touched)
        for index in range(len(self.signatures) - 1, min(wanted) - 1, -1):
            _, num_reads, num_writes = table[self.signatures[index]]
            if index in wanted:
                reads[:0] = self.touched[end - num_writes - num_reads : end - num_writes]
                writes[:0] = self.touched[end - num_writes : end]
            end -= num_reads + num_writes
        return dict.fromkeys(reads), dict.fromkeys(writes)

    def adopt(self, children: Iterable[int], parent: int) -> None:
        """Let ``parent`` account for the records ``children``."""
        self._parents.update(dict.fromkeys(children, parent))

    def session(self, environment: Mapping[str, str], notes: Sequence[str] = ()) -> Session:
        """The columns so far as an immutable session."""
        self.mend()
        count = len(self.signatures)
        contexts = np.array(list(self._contexts), dtype=np.int32)[np.array(self.contexts, dtype=np.int32)]
        numbers = np.array(self.signatures, dtype=np.int32)
        touched = np.array(self.touched, dtype=np.int32)
        table = np.array([(reads, writes) for _, reads, writes in self._signatures], dtype=np.int64).reshape(-1, 2)
        reads, writes = table[numbers].T
        is_read = np.repeat(np.tile([True, False], count), np.stack([reads, writes], axis=1).ravel())
        distinct: dict[OpSignature, int] = {}
        unique = np.array(
            [distinct.setdefault(op, len(distinct)) for _, op in self._signatures.values()], dtype=np.int32
        )
        parent = np.full(count, NO_PARENT, dtype=np.int32)
        parent[list(self._parents)] = list(self._parents.values())
        return Session(
            signatures=tuple(distinct),
            modules=tuple(ModuleEntry(path, class_name) for path, class_name in self._modules),
            phases=tuple(self._phases),
            columns=Columns(
                signature=unique[numbers],
                module=contexts[:, 0].copy(),
                phase=contexts[:, 1].copy(),
                direction=contexts[:, 2].astype(np.int8),
                parent=parent,
                read_offsets=_offsets(reads),
                read_ids=touched[is_read],
                written_offsets=_offsets(writes),
                written_ids=touched[~is_read],
            ),
            storage_bytes=np.array(self.storage_bytes, dtype=np.int64),
            environment=dict(environment),
            notes=tuple(notes),
        )


def _offsets(counts: Int64) -> Int64:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
