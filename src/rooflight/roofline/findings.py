"""Findings: what costs a program time, with the evidence, the remedy and what that would buy. ``diagnosis`` makes them,
every report of an analysis can show them.
"""

from __future__ import annotations

from rooflight.records.account import Cause, Place, Regime
from rooflight.records.document import Fields


class RegimeShare(Fields, frozen=True, kw_only=True):
    """A phase or layer: its ``seconds``, the regime of most of them, and the share, of 1, that this has."""

    name: str
    seconds: float
    regime: Regime
    confidence: float


class Finding(Fields, frozen=True, kw_only=True):
    """A cause that takes ``seconds_lost`` of a step, ``share`` of it, of 1, and its remedy, ``short`` and whole: alone
    it is predicted to save ``predicted_gain_s``, between low and high: docs/lab/promises.md says how often that holds.
    ``after_others_s`` is what it still saves once all remedies before it are applied. ``verify``: how to see that it
    helped. ``causes``: the rows of the account of which it is a part; ``where``: its lines and modules.
    """

    id: str
    title: str
    regime: Regime
    seconds_lost: float
    share: float
    evidence: str
    short: str
    remedy: str
    predicted_gain_s: float
    predicted_gain_low_s: float
    predicted_gain_high_s: float
    after_others_s: float
    verify: str
    causes: tuple[Cause, ...] = ()
    where: tuple[Place, ...] = ()


class HotSpot(Fields, frozen=True, kw_only=True):
    """So many ``calls`` of ops at one line, or a cause in no op, that take ``seconds`` beyond their work's need,
    ``share`` of the iteration, of 1, and have no remedy among the findings. ``needs_s`` is the time at their bound,
    ``read_by`` what reads the result of the longest, ``helps`` what may help where no rule knows better.
    """

    what: str
    seconds: float
    share: float
    needs_s: float
    calls: int
    read_by: str
    helps: str
    causes: tuple[Cause, ...]
    where: tuple[Place, ...]


class NotWorthIt(Fields, frozen=True, kw_only=True):
    """A remedy that people would try here, and why it gains nothing or harms."""

    id: str
    title: str
    reason: str


class Diagnosis(Fields, frozen=True, kw_only=True):
    """A step of ``step_s`` seconds, measured or predicted (``source``), with what lies before it in a script: its
    regime, ``shares`` of all regimes, those of its phases and layers, the findings, what gains most first, what is
    not worth it, which evidence was missing, and where time is lost for which there is no finding.
    """

    step_s: float
    source: str
    regime: Regime
    confidence: float
    shares: dict[str, float]
    phases: tuple[RegimeShare, ...]
    layers: tuple[RegimeShare, ...]
    findings: tuple[Finding, ...]
    not_worth_it: tuple[NotWorthIt, ...]
    missing: tuple[str, ...]
    hot_spots: tuple[HotSpot, ...] = ()


class Applied(Fields, frozen=True, kw_only=True):
    """A remedy that was tried on the step: what it was predicted to gain and what it gained, None where it could not be
    tried; ``results``: whether the step gave the same, or why it was not tried.
    """

    id: str
    predicted_gain_s: float
    measured_gain_s: float | None
    results: str


class Scaling(Fields, frozen=True, kw_only=True):
    """A step with its batch doubled: by which factors its ``work``, the op bound, and its ``time`` grew."""

    work: float
    time: float

    @property
    def is_overhead(self) -> bool:
        """Whether the time grew by less than half of what the work did."""
        return self.time - 1 < 0.5 * (self.work - 1)
