"""What steps leave behind: memory that there is more of after each, by who holds it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from rooflight.records.account import Place
from rooflight.records.record import Held, Owner, StorageKind
from rooflight.records.session import NO_PARENT, Session
from rooflight.sources.capture.holders import Holders, holders, keeping_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rooflight.sources.capture.record.recorder import record

LOOKS: Final = (3, 9)
"""After so many steps more what is there is compared with what was there after the first of them."""
_OF_TRAINING: Final = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)


class Left:
    """Follows what the recorded step of a session left, by weak references, and how much each name of the program
    holds, while other steps follow. ``allocated`` tells all bytes of the device, where they are known.
    """

    def __init__(self, recording: record, session: Session, allocated: Callable[[], int] | None = None) -> None:
        lifetimes = session.lifetimes
        kinds = [] if lifetimes is None else lifetimes.kind.tolist()
        self._session, self._allocated = session, allocated
        self._storages = [(number, each) for number, each in recording.left if kinds[number] not in _OF_TRAINING]
        self._first, self._before = Holders(), 0
        self.steps = 0
        self.grown: tuple[Held, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether nothing more is to be learnt."""
        return self.steps >= LOOKS[-1]

    def ended(self) -> None:
        """Another step ended."""
        self.steps += 1
        if self.steps == 1:
            self._first, self._before = holders(), self._allocated() if self._allocated is not None else 0
            self._first.storages.clear()  # or they would live on
        if self.steps in LOOKS:
            self._look(holders())

    def _look(self, held: Holders) -> None:
        """See whose memory has grown; what no name leads to, a graph keeps, or the holder that grows most."""
        steps = self.steps - 1
        grown = Counter({
            name: (size - self._first.sizes[name]) // steps
            for name, size in held.sizes.items() if size > self._first.sizes[name] and name not in held.bounded
        })  # fmt: skip
        made: Counter[Place] = Counter()
        for number, each in self._storages:
            storage = each()
            if storage is not None and storage._cdata not in held.names:
                made[self._place_of(number)] += int(self._session.storage_bytes[number])
        unnamed = sum(made.values())
        if self._allocated is not None:
            whole = (self._allocated() - self._before) // steps
            unnamed = whole - sum(grown.values())
            if whole <= 0:
                grown.clear()
        if unnamed > 0:
            nodes = {name: count - self._first.graphs[name] for name, count in held.graphs.items()}
            largest = max(nodes, key=lambda name: nodes[name], default="")
            grown[max(grown, key=lambda name: grown[name], default=largest)] += unnamed
        found = []
        for name, size in grown.most_common():
            where = keeping_line(name) or next(iter(made), Place())
            found.append(Held(bytes=size, owner=Owner(holder=name, where=where)))
        self.grown = tuple(found)

    def _place_of(self, number: int) -> Place:
        """The line that made a storage."""
        session, columns = self._session, self._session.columns
        assert session.lifetimes is not None
        record = int(session.lifetimes.made[number])
        if not 0 <= record < len(session):
            return Place()
        while columns.parent[record] != NO_PARENT:
            record = int(columns.parent[record])
        place: Place = session.places[columns.place[record]]
        return place
