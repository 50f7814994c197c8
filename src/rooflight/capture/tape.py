"""Tape: the columns of a session while it is being recorded."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import NO_PARENT, Columns, Session
from rooflight.records.signature import OpSignature


class Tape:
    """Append-only columns. Kept to plain arrays of ints, because every recorded op pays for each append.

    Module, phase and direction change far less often than ops follow each other, so an op stores one ``context``
    number for the three.
    """

    __slots__ = (
        "_children",
        "_contexts",
        "_modules",
        "_parents",
        "_phases",
        "_signature_ids",
        "contexts",
        "keys",
        "read_counts",
        "reads",
        "signatures",
        "storage_bytes",
        "storage_ids",
        "written_counts",
        "writes",
    )

    def __init__(self) -> None:
        self.keys: dict[tuple[object, ...], int] = {}  # what a reader saw -> signature number
        self._signature_ids: dict[OpSignature, int] = {}
        self._modules: dict[ModuleEntry, int] = {}
        self._phases: dict[str, int] = {}
        self._contexts: dict[tuple[int, int, int], int] = {}
        self.signatures = array("i")
        self.contexts = array("i")
        self.read_counts = array("i")
        self.written_counts = array("i")
        self.reads = array("i")
        self.writes = array("i")
        self.storage_ids: dict[int, int] = {}  # address of a live storage -> its id
        self.storage_bytes = array("q")
        self._children = array("i")
        self._parents = array("i")
        self.context(self.module(ModuleEntry("", "")), self.phase(""), Direction.FORWARD)

    def __len__(self) -> int:
        return len(self.signatures)

    def module(self, entry: ModuleEntry) -> int:
        """The number of a module in the session's table."""
        return self._modules.setdefault(entry, len(self._modules))

    def module_path(self, number: int) -> str:
        """The qualified name of a module, by its number."""
        return list(self._modules)[number].path

    def phase(self, name: str) -> int:
        """The number of a phase in the session's table."""
        return self._phases.setdefault(name, len(self._phases))

    def context(self, module: int, phase: int, direction: int) -> int:
        """The number that stands for a module, phase and direction together."""
        return self._contexts.setdefault((module, phase, direction), len(self._contexts))

    def signature(self, op: OpSignature) -> int:
        """The number of a signature in the session's table."""
        return self._signature_ids.setdefault(op, len(self._signature_ids))

    def new_storage(self, address: int, nbytes: int) -> int:
        """Give the storage that now lives at ``address`` an id of its own."""
        number = len(self.storage_bytes)
        self.storage_bytes.append(nbytes)
        self.storage_ids[address] = number
        return number

    def append(self, signature: int, context: int, reads: Sequence[int], writes: Sequence[int]) -> int:
        """Add a record; returns its index."""
        self.contexts.append(context)
        self.read_counts.append(len(reads))
        self.written_counts.append(len(writes))
        self.reads.extend(reads)
        self.writes.extend(writes)
        self.signatures.append(signature)
        return len(self.signatures) - 1

    def storages_of(self, records: Sequence[int]) -> tuple[dict[int, None], dict[int, None]]:
        """Storages that the last few records read and wrote, each once, in order."""
        newest = len(self.signatures) - 1
        end_read, end_written = len(self.reads), len(self.writes)
        reads: list[int] = []
        writes: list[int] = []
        wanted = set(records)
        for index in range(newest, min(wanted) - 1, -1):
            start_read = end_read - self.read_counts[index]
            start_written = end_written - self.written_counts[index]
            if index in wanted:
                reads[:0] = self.reads[start_read:end_read]
                writes[:0] = self.writes[start_written:end_written]
            end_read, end_written = start_read, start_written
        return dict.fromkeys(reads), dict.fromkeys(writes)

    def adopt(self, children: Iterable[int], parent: int) -> None:
        """Let ``parent`` account for the records ``children``."""
        for child in children:
            self._children.append(child)
            self._parents.append(parent)

    def session(self, environment: Mapping[str, str], notes: Sequence[str] = ()) -> Session:
        """The columns so far as an immutable session."""
        # an interrupt may have fallen between two appends: the shortest column says how many records are whole
        count = min(len(self.signatures), len(self.contexts), len(self.read_counts), len(self.written_counts))
        context_table = np.array(list(self._contexts), dtype=np.int32)
        contexts = context_table[_numbers(self.contexts, np.int32)[:count]]
        read_offsets = _offsets(self.read_counts, count)
        written_offsets = _offsets(self.written_counts, count)
        parent = np.full(count, NO_PARENT, dtype=np.int32)
        pairs = min(len(self._children), len(self._parents))
        parent[_numbers(self._children, np.int32)[:pairs]] = _numbers(self._parents, np.int32)[:pairs]
        return Session(
            signatures=tuple(self._signature_ids),
            modules=tuple(self._modules),
            phases=tuple(self._phases),
            columns=Columns(
                signature=_numbers(self.signatures, np.int32)[:count],
                module=contexts[:, 0].copy(),
                phase=contexts[:, 1].copy(),
                direction=contexts[:, 2].astype(np.int8),
                parent=parent,
                read_offsets=read_offsets,
                read_ids=_numbers(self.reads, np.int32)[: read_offsets[-1]],
                written_offsets=written_offsets,
                written_ids=_numbers(self.writes, np.int32)[: written_offsets[-1]],
            ),
            storage_bytes=_numbers(self.storage_bytes, np.int64),
            environment=dict(environment),
            notes=tuple(notes),
        )


def _numbers(column: array[int], dtype: type[Any]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    return np.array(column, dtype=dtype)


def _offsets(counts: array[int], count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(_numbers(counts, np.int64)[:count], out=offsets[1:])
    return offsets
