"""Account: the pieces of an iteration's wall, and their sums by cause, phase, layer, op or line.

One iteration is cut into pieces once; each sum over pieces, by whatever key, is the same wall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from rooflight.records.account import CAUSES, REGIME_OF, REGIMES, Cause, Place, Regime, Row
from rooflight.records.document import Fields
from rooflight.records.measurement import Float64
from rooflight.records.session import Flags, Int8, Int32, Int64

NOWHERE: Final = -1
_MOST_PLACES: Final = 3
_RESAMPLED: Final = 400
_FEW: Final = 5  # iterations: of fewer an interval says little, and is widened
_KEYS: Final = ("cause", "phase", "layer", "op", "line")


class AccountFields(Fields, frozen=True, kw_only=True):
    """Where the wall of an iteration goes: the mean ``wall_s`` of so many ``iterations``, beside it their median, the
    least and the mean of the slowest tenth; ``rows`` sum to ``wall_s``, the longest first.
    """

    wall_s: float
    median_s: float
    least_s: float
    slow_s: float
    iterations: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Pieces of an iteration, in arrays: ``seconds``; ``cause`` and ``regime`` by their places in ``CAUSES`` and
    ``REGIMES``; the ``call`` of the session that each belongs to, and its ``place`` among ``places``, ``NOWHERE``
    (-1) where there is none; in how many iterations each was ``seen``.
    """

    seconds: Float64
    cause: Int8
    regime: Int8
    call: Int32
    place: Int32
    seen: Int32
    places: tuple[Place, ...] = ()

    @classmethod
    def of_calls(cls, cause: Cause, seconds: Float64, regime: Int8 | None, seen: int) -> Pieces:
        """A piece for each call that has seconds; ``regime`` [calls], that of the cause if None."""
        calls = np.flatnonzero(seconds > 0)
        own = REGIMES.index(REGIME_OF[cause]) if regime is None else regime[calls]
        return cls._made(np.asarray(seconds[calls], dtype=np.float64), cause, own, calls, NOWHERE, seen)

    @classmethod
    def waited(
        cls, cause: Cause, seconds: float, seen: int, place: Place | None = None, regime: Regime | None = None
    ) -> Pieces:
        """One piece in no call; none of no time."""
        some = np.full(int(seconds > 0), seconds, dtype=np.float64)
        own, where = REGIMES.index(regime or REGIME_OF[cause]), NOWHERE if place is None else 0
        return cls._made(some, cause, own, NOWHERE, where, seen, () if place is None else (place,))

    @classmethod
    def _made(
        cls, seconds: Float64, cause: Cause, regime: Int8 | int, call: Int64 | int, place: int, seen: int,
        places: tuple[Place, ...] = (),
    ) -> Pieces:  # fmt: skip
        one = len(seconds)
        return cls(
            seconds=seconds,
            cause=np.full(one, CAUSES.index(cause), dtype=np.int8),
            regime=np.full(one, regime, dtype=np.int8),
            call=np.full(one, call, dtype=np.int32),
            place=np.full(one, place, dtype=np.int32),
            seen=np.full(one, seen, dtype=np.int32),
            places=places,
        )

    @classmethod
    def joined(cls, parts: Iterable[Pieces]) -> Pieces:
        """All pieces of several."""
        parts = [part for part in parts if len(part)] or [cls.waited(Cause.UNKNOWN, 0.0, 0)]
        places = tuple(dict.fromkeys(place for part in parts for place in part.places))
        number = {place: at for at, place in enumerate(places)}
        own = [np.array([*(number[each] for each in part.places), NOWHERE], dtype=np.int32) for part in parts]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("seconds", "cause", "regime", "call", "seen")
        }
        place = np.concatenate([numbers[part.place] for numbers, part in zip(own, parts, strict=True)])
        return cls(**columns, place=place, places=places)

    def scaled(self, factor: float) -> Pieces:
        """The same pieces, each so many times as long."""
        return replace(self, seconds=self.seconds * factor)

    def __len__(self) -> int:
        return len(self.seconds)


class Account:
    """``pieces`` of an iteration sum to ``wall_s``, the mean of ``walls``. ``names_of`` gives the group of each call by
    a key, and the groups' names; ``disturbed``: the share of the time, of 1, that other programs took.
    """

    def __init__(
        self,
        pieces: Pieces,
        walls: Float64,
        source: str,
        names_of: Callable[[str], tuple[Int64, Sequence[str]]],
        disturbed: float = 0.0,
        spread: tuple[float, float] | None = None,
    ) -> None:
        self.pieces, self.source, self.disturbed = pieces, source, disturbed
        self.walls = np.asarray(walls, dtype=np.float64)
        self._names_of, self._given_spread = names_of, spread

    # -- the wall ------------------------------------------------------------------------------------------------------

    @property
    def wall_s(self) -> float:
        """Seconds of an iteration, in the mean."""
        return float(self.walls.mean()) if len(self.walls) else 0.0

    @property
    def median_s(self) -> float:
        """Seconds of the iteration in the middle."""
        return float(np.median(self.walls)) if len(self.walls) else 0.0

    @property
    def least_s(self) -> float:
        """Seconds of the fastest iteration."""
        return float(self.walls.min(initial=np.inf)) if len(self.walls) else 0.0

    @property
    def slow_s(self) -> float:
        """The mean of the slowest tenth of the iterations."""
        return float(np.sort(self.walls)[-max(1, len(self.walls) // 10) :].mean()) if len(self.walls) else 0.0

    @property
    def iterations(self) -> int:
        """How many iterations there are; of what is predicted or bounded, one."""
        return len(self.walls)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Factors of a row's seconds between which its mean lies nine times in ten: by resampling iterations, wider
        where they are few, and down by what other programs took.
        """
        if self._given_spread is not None:
            return self._given_spread
        if self.source == "bound" or not self.wall_s:
            return 1.0, 1.0
        picks = np.random.default_rng(0).integers(0, self.iterations, (_RESAMPLED, self.iterations))
        low, high = np.quantile(self.walls[picks].mean(axis=1), (0.05, 0.95)) / self.wall_s
        few = max(1.0, (_FEW / self.iterations) ** 0.5)
        widths = (1 - low) * few + self.disturbed, (high - 1) * few + 0.02 * (few - 1)
        return float(max(0.0, 1 - widths[0])), float(1 + widths[1])

    def waiting_for_ranks(self, seconds: float) -> Account:
        """The same account, of whose communication so many seconds were spent waiting for other ranks."""
        held_s = self.seconds(Cause.COMMUNICATION)
        moved_s = min(seconds, held_s)
        if not moved_s:
            return self
        shares = np.where(self.pieces.cause == CAUSES.index(Cause.COMMUNICATION), 1 - moved_s / held_s, 1.0)
        rest = replace(self.pieces, seconds=self.pieces.seconds * shares)
        pieces = Pieces.joined([rest, Pieces.waited(Cause.RANK, moved_s, self.iterations)])
        return Account(pieces, self.walls, self.source, self._names_of, self.disturbed, self._given_spread)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def seconds(self, *causes: Cause, calls: Int64 | None = None, regime: Regime | None = None) -> float:
        """The sum of the pieces of these causes, of all if none is given; of such calls alone, and of such a regime."""
        return float(self.pieces.seconds[self._chosen(causes, calls, regime)].sum())

    def regime_of(self, calls: Int64) -> Regime:
        """The regime of most of the time of some calls."""
        mine = self._chosen((), calls, None)
        sums = np.bincount(self.pieces.regime[mine], self.pieces.seconds[mine], len(REGIMES))
        return REGIMES[int(np.argmax(sums))]

    def causes_of(self, calls: Int64) -> tuple[Cause, ...]:
        """The causes of the pieces of some calls, what takes most first."""
        mine = self._chosen((), calls, None)
        sums = np.bincount(self.pieces.cause[mine], self.pieces.seconds[mine], len(CAUSES))
        return tuple(CAUSES[at] for at in np.argsort(-sums, kind="stable").tolist() if sums[at] > 0)

    def _chosen(self, causes: Sequence[Cause], calls: Int64 | None, regime: Regime | None) -> Flags:
        pieces = self.pieces
        chosen = np.ones(len(pieces), dtype=np.bool_)
        if causes:
            chosen &= np.isin(pieces.cause, [CAUSES.index(cause) for cause in causes])
        if calls is not None:
            last = max(int(pieces.call.max(initial=0)), int(calls.max(initial=0)))
            inside = np.zeros(last + 2, dtype=np.bool_)  # the last is that of no call
            inside[calls] = True
            chosen &= inside[pieces.call]
        return chosen & (pieces.regime == REGIMES.index(regime)) if regime is not None else chosen

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The sums by cause and regime, the longest first."""
        pieces, low, high = self.pieces, *self.spread
        kinds = pieces.cause.astype(np.int16) * len(REGIMES) + pieces.regime
        found = []
        for kind in np.unique(kinds).tolist():
            mine = np.flatnonzero(kinds == kind)
            seconds = float(pieces.seconds[mine].sum())
            found.append(
                Row(
                    cause=CAUSES[kind // len(REGIMES)],
                    regime=REGIMES[kind % len(REGIMES)],
                    seconds=seconds,
                    low_s=seconds * low,
                    high_s=seconds * high,
                    share=seconds / self.wall_s if self.wall_s else 0.0,
                    source=self.source,
                    seen=(int(pieces.seen[mine].max()), self.iterations),
                    where=self._places(mine),
                )
            )
        return tuple(sorted(found, key=lambda row: -row.seconds))

    def _places(self, chosen: Int64) -> tuple[Place, ...]:
        mine = chosen[self.pieces.place[chosen] != NOWHERE]
        sums = np.bincount(self.pieces.place[mine], self.pieces.seconds[mine], len(self.pieces.places))
        longest = np.argsort(-sums, kind="stable")[:_MOST_PLACES].tolist()
        return tuple(self.pieces.places[at] for at in longest if sums[at] > 0)

    def by(self, key: str) -> dict[str, float]:
        """Seconds by ``"cause"``, ``"phase"``, ``"layer"`` (class of module), ``"op"`` or ``"line"``, the longest
        first; they sum to the wall. What no call or no line is known of has the name of its cause. Raises ValueError
        for another key.
        """
        return {name: sum(regimes.values()) for name, regimes in self.regimes_by(key).items()}

    def regimes_by(self, key: str) -> dict[str, dict[Regime, float]]:
        """The same, by regime."""
        if key not in _KEYS:
            raise ValueError(f'no account by "{key}": use one of {", ".join(_KEYS)}')
        pieces, causes = self.pieces, [cause.value for cause in CAUSES]
        names, group = causes, pieces.cause.astype(np.int64)
        if key == "line":
            names = [*causes, *map(str, pieces.places)]
            group = np.where(pieces.place == NOWHERE, group, pieces.place + len(causes))
        elif key != "cause":
            of_call, called = self._names_of(key)
            names = [*causes, *called]
            known = pieces.call != NOWHERE
            group[known] = of_call[pieces.call[known]] + len(causes)
        sums = np.bincount(group * len(REGIMES) + pieces.regime, pieces.seconds, len(names) * len(REGIMES))
        found: dict[str, dict[Regime, float]] = {}
        for at in np.flatnonzero(sums).tolist():
            mine = found.setdefault(names[at // len(REGIMES)], dict.fromkeys(REGIMES, 0.0))
            mine[REGIMES[at % len(REGIMES)]] += float(sums[at])
        return dict(sorted(found.items(), key=lambda each: -sum(each[1].values())))

    @cached_property
    def shares(self) -> Mapping[Regime, float]:
        """The share of the wall, of 1, of each regime."""
        sums = np.bincount(self.pieces.regime, self.pieces.seconds, len(REGIMES))
        total = float(sums.sum())
        return {regime: float(each) / total if total else 0.0 for regime, each in zip(REGIMES, sums, strict=True)}
