"""What a step leaves behind: memory that it made and that is still there when others have followed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from rooflight.records.record import Held, Owner, StorageKind
from rooflight.records.session import NO_PARENT, Session
from rooflight.sources.capture.holders import holders, keeping_line

if TYPE_CHECKING:
    from rooflight.records.account import Place
    from rooflight.sources.capture.record.recorder import record

LOOKS: Final = (2, 8)
"""After so many steps more: after one, variables still have what they were given in the recorded step."""
_OF_TRAINING: Final = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)


class Left:
    """Follows what the recorded step of a session left, by weak references, while other steps follow."""

    def __init__(self, recording: record, session: Session) -> None:
        lifetimes = session.lifetimes
        kinds = [] if lifetimes is None else lifetimes.kind.tolist()
        self._session = session
        self._storages = [(number, each) for number, each in recording.left if kinds[number] not in _OF_TRAINING]
        self.steps = 0
        self.grown: tuple[Held, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether nothing more is to be learnt."""
        return self.steps >= LOOKS[-1] or not self._storages

    @property
    def followed(self) -> int:
        """After how many steps it is known; all where nothing is left to follow."""
        return self.steps if self._storages else LOOKS[-1]

    def ended(self) -> None:
        """Another step ended."""
        self.steps += 1
        if self.steps in LOOKS:
            self.look()

    def look(self) -> None:
        """See what is still there, who holds it, and which line made it."""
        alive = [(number, storage) for number, each in self._storages if (storage := each()) is not None]
        self._storages = [(number, each) for number, each in self._storages if each() is not None]
        if not alive:
            self.grown = ()
            return
        held, places = holders(), self._places()
        lines: dict[str, Place | None] = {"": None}
        grown: Counter[Owner] = Counter()
        for number, storage in alive:
            if storage._cdata not in held.bounded:
                name = held.names.get(storage._cdata) or held.of_graphs
                if name not in lines:
                    lines[name] = keeping_line(name)
                grown[Owner(holder=name, where=lines[name] or places[number])] += int(
                    self._session.storage_bytes[number]
                )
        self.grown = tuple(Held(bytes=size, owner=owner) for owner, size in grown.most_common())

    def _places(self) -> list[Place]:
        """The line that made each storage."""
        session, columns = self._session, self._session.columns
        assert session.lifetimes is not None
        found = []
        for made in session.lifetimes.made.tolist():
            record = made if 0 <= made < len(session) else NO_PARENT
            while record != NO_PARENT and columns.parent[record] != NO_PARENT:
                record = columns.parent[record]
            found.append(session.places[columns.place[record] if record != NO_PARENT else 0])
        return found
