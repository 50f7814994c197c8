"""Account: the pieces of an iteration's wall, and their sums by cause, phase, layer, op or line.

One iteration is cut into pieces once; each sum over pieces, by whatever key, is the same wall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from rooflight.records.account import REGIME_OF, REGIMES, Cause, Place, Regime, Row, hottest
from rooflight.records.document import Fields
from rooflight.records.measurement import Float64
from rooflight.records.session import Int8, Int32, Int64

_NO_CALLS: Final[Int32] = np.empty(0, dtype=np.int32)
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
    """Pieces of an iteration of one cause: ``seconds``, their ``regime`` by its place in ``REGIMES``, and the ``call``
    of the session that each belongs to, in order; without calls, one piece at a ``place``. ``seen``: in how many
    iterations.
    """

    cause: Cause
    seconds: Float64
    regime: Int8
    call: Int32
    seen: int
    place: Place | None = None

    @classmethod
    def of_calls(cls, cause: Cause, seconds: Float64, regime: Int8 | None, seen: int) -> Pieces:
        """A piece for each call that has seconds; ``regime`` [calls], that of the cause if None."""
        calls = np.flatnonzero(seconds > 0).astype(np.int32)
        of_cause = REGIMES.index(REGIME_OF.get(cause, Regime.UNKNOWN))
        own = np.broadcast_to(np.int8(of_cause), len(calls)) if regime is None else regime[calls]
        return cls(cause=cause, seconds=np.asarray(seconds[calls], dtype=np.float64), regime=own, call=calls, seen=seen)

    @classmethod
    def waited(
        cls, cause: Cause, seconds: float, seen: int, place: Place | None = None, regime: Regime | None = None
    ) -> Pieces:
        """One piece in no call; none of no time."""
        some = np.full(int(seconds > 0), seconds, dtype=np.float64)
        own = np.full(len(some), REGIMES.index(regime or REGIME_OF[cause]), dtype=np.int8)
        return cls(cause=cause, seconds=some, regime=own, call=_NO_CALLS, seen=seen, place=place)

    def of(self, calls: Int64) -> Int64:
        """The places of the pieces of some calls."""
        count = len(self.call)
        if count and self.call[-1] == count - 1:  # each call has one
            return calls[calls < count]
        at = np.minimum(np.searchsorted(self.call, calls), max(0, count - 1))
        return at[self.call[at] == calls] if count else at[:0]

    @property
    def total_s(self) -> float:
        """Their sum."""
        return float(self.seconds.sum())

    def scaled(self, factor: float) -> Pieces:
        """The same pieces, each so many times as long."""
        return replace(self, seconds=self.seconds * factor)


class Account:
    """``pieces`` of an iteration sum to ``wall_s``, the mean of ``walls``. ``names_of`` gives the group of each call by
    a key, and the groups' names; ``disturbed``: the share of the time, of 1, that other programs took.
    """

    def __init__(
        self,
        pieces: Iterable[Pieces],
        walls: Float64,
        source: str,
        names_of: Callable[[str], tuple[Int64, Sequence[str]]],
        disturbed: float = 0.0,
        spread: tuple[float, float] | None = None,
    ) -> None:
        self.pieces = tuple(each for each in pieces if len(each.seconds))
        self.walls = np.asarray(walls, dtype=np.float64)
        self.source, self.disturbed = source, disturbed
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
        rest = [
            each.scaled(1 - moved_s / held_s) if each.cause is Cause.COMMUNICATION else each for each in self.pieces
        ]
        pieces = (*rest, Pieces.waited(Cause.RANK, moved_s, self.iterations))
        return Account(pieces, self.walls, self.source, self._names_of, self.disturbed, self._given_spread)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def seconds(self, *causes: Cause) -> float:
        """The sum of the pieces of these causes, of all if none is given."""
        return sum(each.total_s for each in self.pieces if not causes or each.cause in causes)

    def outside(self, *causes: Cause) -> float:
        """The sum of the pieces of these causes that are in no call."""
        return sum(each.total_s for each in self.pieces if each.cause in causes and not len(each.call))

    def of_calls(self, calls: Int64) -> Mapping[tuple[Cause, Regime], float]:
        """The sums of the pieces of some calls by cause and regime, the longest first."""
        sums: dict[tuple[Cause, Regime], float] = {}
        for each in self.pieces:
            mine = each.of(calls)
            if len(mine):
                _add(sums, each.cause, each.regime[mine], each.seconds[mine])
        return dict(sorted(sums.items(), key=lambda each: -each[1]))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The sums by cause and regime, the longest first."""
        sums: dict[tuple[Cause, Regime], float] = {}
        for each in self.pieces:
            _add(sums, each.cause, each.regime, each.seconds)
        low, high = self.spread
        found = [
            Row(
                cause=cause,
                regime=regime,
                seconds=seconds,
                low_s=seconds * low,
                high_s=seconds * high,
                share=seconds / self.wall_s if self.wall_s else 0.0,
                source=self.source,
                seen=(max(each.seen for each in self.pieces if each.cause is cause), self.iterations),
                where=self._places(cause),
            )
            for (cause, regime), seconds in sums.items()
        ]
        return tuple(sorted(found, key=lambda row: -row.seconds))

    def _places(self, cause: Cause) -> tuple[Place, ...]:
        sums: dict[Place, float] = {}
        for each in self.pieces:
            if each.cause is cause and each.place is not None:
                sums[each.place] = sums.get(each.place, 0.0) + each.total_s
        return hottest(sums, _MOST_PLACES)

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
        found: dict[str, dict[Regime, float]] = {}
        of_call, called = (np.empty(0, dtype=np.int64), ()) if key in ("cause", "line") else self._names_of(key)
        for each in self.pieces:
            if len(each.call) and len(called):
                groups = of_call[each.call] * len(REGIMES) + each.regime
                sums = np.bincount(groups, each.seconds, len(called) * len(REGIMES))
                names = [called[at // len(REGIMES)] for at in np.flatnonzero(sums).tolist()]
            else:
                name = str(each.place) if key == "line" and each.place is not None else each.cause.value
                sums = np.bincount(each.regime, each.seconds, len(REGIMES))
                names = [name] * int(np.count_nonzero(sums))
            for name, at in zip(names, np.flatnonzero(sums).tolist(), strict=True):
                mine = found.setdefault(name, dict.fromkeys(REGIMES, 0.0))
                mine[REGIMES[at % len(REGIMES)]] += float(sums[at])
        return dict(sorted(found.items(), key=lambda each: -sum(each[1].values())))

    @cached_property
    def shares(self) -> Mapping[Regime, float]:
        """The share of the wall, of 1, of each regime."""
        shares = dict.fromkeys(REGIMES, 0.0)
        for row in self.rows:
            shares[row.regime] += row.share
        return shares


def _add(sums: dict[tuple[Cause, Regime], float], cause: Cause, regime: Int8, seconds: Float64) -> None:
    totals = np.bincount(regime, seconds, len(REGIMES))
    for at in np.flatnonzero(totals).tolist():
        sums[cause, REGIMES[at]] = sums.get((cause, REGIMES[at]), 0.0) + float(totals[at])
