"""What steps leave behind: memory that there is more of after each, by who holds it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rooflight.records.account import Place
from rooflight.records.record import Held, Owner, StorageKind
from rooflight.records.session import NO_PARENT, Session
from rooflight.sources.capture.holders import Holders, holders, keeping_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rooflight.sources.capture.record.recorder import record

LOOKS: Final = (1, 2, 3, 9)
"""After so many steps more it is looked at what there is; at the end of the first, nothing is left of the recording."""
ENOUGH: Final = LOOKS[2]
_OF_TRAINING: Final = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)
_ALIKE: Final = 0.05  # by which equal rates of growth differ


class _Look(NamedTuple):
    """Bytes and pieces of memory after a step, by the name that holds them; the empty one has what no name leads to."""

    step: int
    sizes: Counter[str]
    pieces: Counter[str]
    graphs: Counter[str]


class Left:
    """Follows what the recorded step of a session left, by weak references, and how much each name of the program
    holds, while other steps follow. ``allocated`` tells bytes and pieces of the whole device, where they are known.
    """

    def __init__(
        self, recording: record, session: Session, allocated: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        lifetimes = session.lifetimes
        kinds = [] if lifetimes is None else lifetimes.kind.tolist()
        self._session, self._allocated = session, allocated
        self._storages = [(number, each) for number, each in recording.left if kinds[number] not in _OF_TRAINING]
        self._looks: list[_Look] = []
        self.steps = 0
        self.grown: tuple[Held, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether nothing more is to be learnt."""
        return self.steps >= LOOKS[-1]

    def ended(self) -> None:
        """Another step ended."""
        self.steps += 1
        if self.steps in LOOKS:
            self._look(holders())

    def _look(self, held: Holders) -> None:
        """See whose memory has grown. What no name leads to is of a graph, or of the holder that grows most."""
        sizes, pieces = held.sizes, held.pieces
        made: Counter[Place] = Counter()
        if self._allocated is not None:
            sizes[""], pieces[""] = (a - b.total() for a, b in zip(self._allocated(), (sizes, pieces), strict=True))
        else:
            for number, each in self._storages:
                storage = each()
                if storage is not None and storage._cdata not in held.names:
                    made[self._place_of(number)] += int(self._session.storage_bytes[number])
        self._looks.append(_Look(self.steps, sizes, pieces, held.graphs))
        if self.steps < ENOUGH:
            return
        grown = Counter({name: self._rate(name) for name in sizes if name not in held.bounded and self._grows(name)})
        unnamed = grown.pop("", 0) + made.total()
        if unnamed > 0:
            before = self._looks[0].graphs
            largest = max(held.graphs, key=lambda name: held.graphs[name] - before[name], default="")
            grown[max(grown, key=lambda name: grown[name], default=largest)] += unnamed
        self.grown = tuple(
            Held(bytes=size, owner=Owner(holder=name, where=keeping_line(name) or next(iter(made), Place())))
            for name, size in grown.most_common()
        )

    def _rate(self, name: str) -> int:
        """Bytes a step."""
        first, last = self._looks[0], self._looks[-1]
        return (last.sizes[name] - first.sizes[name]) // (last.step - first.step)

    def _grows(self, name: str) -> bool:
        """Whether there are more pieces than before, or ever larger ones: by as much each time, since what a step is
        given differs from step to step.
        """
        first, last, rate = self._looks[0], self._looks[-1], self._rate(name)
        rates = [(b.sizes[name] - a.sizes[name]) / (b.step - a.step) for a, b in pairwise(self._looks)]
        steadily = all(abs(each - rate) <= _ALIKE * rate for each in rates)
        return rate > 0 and (last.pieces[name] > first.pieces[name] or steadily)

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
