"""Draft: a finding before it is ranked beside others, and how one is made from the calls that a remedy spares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.touched import numbers
from rooflight.diagnosis.values import Values
from rooflight.records.account import REGIME_OF, Cause, Place, Regime
from rooflight.records.session import Int64
from rooflight.roofline.account.account import Account
from rooflight.roofline.distinct import distinct

LOW, _HIGH = 0.5, 1.9
"""Factors of a predicted gain between which the measured one is looked for; how often it was is in
docs/lab/promises.md."""
LEAST: Final = 0.03
"""A remedy that saves a smaller share of the step is no finding."""


NO_CALLS: Final[Int64] = np.empty(0, dtype=np.int64)
BESIDE_CALLS: Final = (Cause.LAUNCHES, Cause.PYTHON, Cause.SYNC, Cause.OTHER_PROGRAMS)
"""Of these causes a call may spare pieces that are in no call: launches for which a device waits, Python between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What helps against a cause: its stable ``id``, a whole change in ``short``, at most 45 letters for the first
    screen, the ``rest`` of the words, and how to verify it. ``waste``: the step does what it need not do at all, which
    is mended before anything is tuned.
    """

    id: str
    title: str
    short: str
    rest: str = ""
    verify: str = "rooflight diagnose again: the finding is gone"
    waste: bool = True

    @property
    def remedy(self) -> str:
        """All of it."""
        return f"{self.short}: {self.rest}" if self.rest else self.short


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """``remedy`` would save ``gain_s``, of the ``lost_s`` that the cause takes; ``calls`` are those it spares. Their
    pieces of the account are what is lost, and those of ``causes``, which are in no call. ``beside``: calls of which it
    spares some, which ones is not known. ``place``: the line that is to be changed, where one is known that no call is
    at. ``regime``: None for that of the calls.
    """

    remedy: Remedy
    regime: Regime | None
    evidence: str
    lost_s: float
    gain_s: float
    low_s: float
    high_s: float
    calls: Int64
    beside: Int64 = field(default_factory=lambda: NO_CALLS)
    causes: tuple[Cause, ...] = ()
    place: Place | None = None

    @property
    def touched(self) -> Int64:
        """All calls of which it spares time."""
        return np.union1d(self.calls, self.beside) if len(self.beside) else self.calls

    def within(self, account: Account) -> Draft:
        """The same, of which no more is lost than the account has, and no more gained than is lost; its interval is as
        much wider as that of the account's rows.
        """
        in_calls = account.of_calls(self.touched) if len(self.calls) else {}
        regimes = {regime: sum(each for (_, its), each in in_calls.items() if its is regime) for _, regime in in_calls}
        held_s = sum(in_calls.values())
        held_s += account.outside(*self.causes) if len(self.calls) else account.seconds(*self.causes)
        lost_s = min(self.lost_s, held_s)
        gain_s = min(self.gain_s, lost_s)
        low, high = account.spread if account.source == "measured" else (1.0, 1.0)
        return replace(
            self,
            regime=self.regime or max(regimes, key=lambda each: regimes[each], default=Regime.UNKNOWN),
            causes=tuple(dict.fromkeys((*(cause for cause, _ in in_calls), *self.causes))),
            lost_s=lost_s,
            gain_s=gain_s,
            low_s=min(self.low_s * low, gain_s),
            high_s=min(max(self.high_s * high, gain_s), account.wall_s),
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What remedies look at."""

    of: Evidence
    values: Values

    def spared(self, calls: Iterable[int], share: float = 1.0) -> float:
        """What the step is shorter by without such a share of calls."""
        these, of = numbers(calls), self.of
        host_s = float(of.host_s[these].sum()) + of.gaps_within(these)
        return of.gain(float(of.seconds[these].sum()) * share, host_s * share)

    def spared_alone(self, shares: Iterable[tuple[int, float]]) -> float:
        """The sum of what the step is shorter by without a share of one call, for each such pair."""
        of = self.of
        return sum(of.gain(float(of.seconds[call]) * share, float(of.host_s[call]) * share) for call, share in shares)

    def draft(
        self, remedy: Remedy, calls: Iterable[int], evidence: str, *, gain_s: float | None = None,
        regime: Regime | None = None, low: float = LOW, high: float = _HIGH, beside: Int64 = NO_CALLS,
        causes: tuple[Cause, ...] = BESIDE_CALLS,
    ) -> Iterable[Draft]:  # fmt: skip
        """A draft of calls that the remedy spares, whole if not ``gain_s``; none where that is little. ``causes``: of
        which it may spare pieces in no call.
        """
        these = distinct(numbers(calls))[0]
        if not len(these):
            return
        lost_s = self.spared(these)
        gain = float(min(lost_s if gain_s is None else gain_s, self.of.step_s))
        if gain >= LEAST * self.of.whole_s > 0:
            yield Draft(
                remedy=remedy,
                regime=regime,
                evidence=evidence,
                lost_s=max(lost_s, gain),
                gain_s=gain,
                low_s=low * gain,
                high_s=min(high * gain, self.of.step_s),
                calls=these,
                beside=beside,
                causes=causes,
            )

    def waiting(
        self, remedy: Remedy, causes: tuple[Cause, ...], lost_s: float, gain_s: float, evidence: str, low: float = 0.6,
        place: Place | None = None,
    ) -> Iterable[Draft]:  # fmt: skip
        """A draft of time that the pieces of such causes take, mostly at a place."""
        if gain_s >= LEAST * self.of.whole_s > 0:
            high_s = max(gain_s, min(max(lost_s, 1.7 * gain_s), self.of.whole_s))
            yield Draft(remedy=remedy, regime=REGIME_OF[causes[0]], evidence=evidence, lost_s=lost_s, gain_s=gain_s,
                        low_s=low * gain_s, high_s=high_s, calls=NO_CALLS, causes=causes, place=place)  # fmt: skip
