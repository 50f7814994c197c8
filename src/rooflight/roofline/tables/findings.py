"""What a report says of a diagnosis: the regime, the findings as a table, and what is not worth it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rooflight.records.account import CAUSES, Cause
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Table, table
from rooflight.roofline.account.account import Account
from rooflight.roofline.findings import Diagnosis, Finding, HotSpot, RegimeShare

FIRST: Final = 3
"""Findings on the first screen."""
_LEAST: Final = 0.05  # of the step: a regime with less is not named
_LITTLE: Final = 0.25  # of the seconds of a hot spot: a remedy that gains less comes after it
_SHOWN: Final = 0.01  # of the wall: a cause with less is among the others


def regime_text(found: Diagnosis) -> str:
    """``overhead (62% of the time; memory 20%, compute 15%)``."""
    others = sorted(found.shares.items(), key=lambda each: -each[1])
    rest = [f"{name} {percent(share)}" for name, share in others if share >= _LEAST and name != found.regime.value]
    return f"{found.regime.value} ({percent(found.confidence)} of the time{'; ' if rest else ''}{', '.join(rest)})"


def answer(found: Diagnosis | None) -> str:
    """What to change first, and what that gains; empty where no times are known."""
    if found is None or not found.step_s or found.source == "bound":
        return ""
    timed = [each for each in found.findings if each.seconds_lost]
    gaining = (each for each in timed if each.predicted_gain_s)
    first = next(in_order(gaining, found.hot_spots), next(iter(timed), None))
    if first is None:
        return "Nothing was found that would gain 3% or more of a step."
    if isinstance(first, HotSpot):
        return _sentence(first)
    gain = f" Predicted gain: {Quantity(first.predicted_gain_s, 's')} of {Quantity(found.step_s, 's')}."
    return f"First: {first.title}. What helps: {first.short}.{gain if first.predicted_gain_s else ''}"


def in_order(findings: Iterable[Finding], spots: Iterable[HotSpot]) -> Iterator[Finding | HotSpot]:
    """The findings, each hot spot before those that gain little beside it."""
    left = list(spots)
    for finding in findings:
        while left and finding.predicted_gain_s < _LITTLE * left[0].seconds:
            yield left.pop(0)
        yield finding
    yield from left


def _sentence(spot: HotSpot) -> str:
    needs = f", where its work needs {Quantity(spot.needs_s, 's')}" if spot.needs_s else ""
    reads = f"; {spot.read_by} reads its result" if spot.read_by else ""
    line = next((f" at {place.named}" for place in spot.where if place.line), "")
    took = f"{Quantity(spot.seconds, 's')}, {percent(spot.share)}"
    return f"No remedy was found for {spot.what}{line}: {took}{needs}{reads}."


def account_text(account: Account) -> str:
    """``light 96.0 ms | loader 120 ms | … = 412 ms``, in the order of the cut."""
    sums = {Cause(name): seconds for name, seconds in account.by("cause").items()}
    shown = [cause for cause in CAUSES if sums.get(cause, 0.0) >= _SHOWN * account.wall_s]
    parts = [f"{cause.value.replace('_', ' ')} {Quantity(sums[cause], 's')}" for cause in shown]
    rest_s = account.wall_s - sum(sums[cause] for cause in shown)
    parts += [f"other {Quantity(rest_s, 's')}"] * (rest_s > 1e-3 * account.wall_s)
    return f"{' | '.join(parts)} = {Quantity(account.wall_s, 's')}"


def findings_facts(found: Diagnosis | None, account: Account | None = None) -> Iterable[tuple[str, Cell]]:
    """The regime, the account, and what is not worth it."""
    if found is None or not found.step_s:
        return
    yield "regime", regime_text(found)
    if account is not None and account.wall_s:
        yield "account", account_text(account)
    if found.not_worth_it:
        yield "not worth it", "; ".join(f"{each.title} ({each.reason})" for each in found.not_worth_it)
    if found.missing:
        yield "not looked at", "; ".join(found.missing)


def findings_table(found: Diagnosis, top: int | None = None) -> Table:
    """The findings, what gains most first."""
    return table(
        "findings",
        "What costs time, and what helps",
        found.findings,
        ("lost", "s", lambda each: each.seconds_lost or None),
        ("why", "", lambda each: f"{each.title}: {each.evidence}"),
        ("what helps", "", lambda each: each.remedy),
        ("gains", "s", lambda each: each.predicted_gain_s or None),
        ("between", "", _interval),
        ("gain left", "s", lambda each: each.after_others_s),
        ("id", "", lambda each: each.id),
        ("where", "", _line),
        top=top,
        wraps=("why", "what helps"),
        optional=("where", "gain left", "id", "between"),
        note=f"Seconds of a step of {Quantity(found.step_s, 's')} ({found.source}). Losses overlap; each gain is of "
        "the remedy alone, and what is left of it once those above are applied.",
    )


def hot_spots_table(spots: Iterable[HotSpot]) -> Table:
    """Where time is lost for which no remedy is known."""
    return table(
        "hot_spots",
        "Where time is lost for which no rule has a remedy",
        spots,
        ("lost", "s", lambda spot: spot.seconds),
        ("in", "", lambda spot: spot.what),
        ("calls", "", lambda spot: spot.calls or None),
        ("needs", "s", lambda spot: spot.needs_s or None),
        ("read by", "", lambda spot: spot.read_by or None),
        ("what may help", "", lambda spot: spot.helps or None),
        ("where", "", lambda spot: spot.where[0].named if spot.where else None),
        wraps=("in", "what may help"),
        optional=("calls", "read by"),
    )


def first_findings(findings: Iterable[Finding], spots: Iterable[HotSpot]) -> Table:
    """The first findings and hot spots in a line or two each, as the first screen has room for."""
    return table(
        "findings",
        "What costs time, and what helps",
        tuple(in_order(findings, spots))[:FIRST],
        ("lost", "s", lambda each: each.seconds if isinstance(each, HotSpot) else each.seconds_lost or None),
        ("why", "", lambda each: ", ".join(filter(None, (_what(each), _line(each))))),
        ("what helps", "", _helps),
        ("gains", "s", lambda each: None if isinstance(each, HotSpot) else each.predicted_gain_s or None),
        ("between", "", lambda each: None if isinstance(each, HotSpot) else _interval(each)),
        wraps=("why", "what helps"),
        optional=("between",),
    )


def _helps(each: Finding | HotSpot) -> str:
    if isinstance(each, Finding):
        return each.short
    return each.helps.partition(": ")[0] or "no remedy is known"


def _what(each: Finding | HotSpot) -> str:
    if isinstance(each, Finding):
        return each.title
    return f"{count_of(each.calls, 'call')} of {each.what}" if each.calls else each.what


def _line(each: Finding | HotSpot) -> str | None:
    """The first line of the program that a finding is at, ``train.py:31``, and the line that calls its function."""
    return next((place.path for place in each.where if place.line), None)


def _interval(finding: Finding) -> str | None:
    if not finding.seconds_lost:
        return None
    ends = (finding.predicted_gain_low_s, finding.predicted_gain_high_s)
    return " to ".join(str(Quantity(end, "s")) for end in ends)


def regimes_table(table_id: str, title: str, rows: Iterable[RegimeShare]) -> Table:
    """The regime of each phase or layer."""
    return table(
        table_id,
        title,
        rows,
        ("name", "", lambda each: each.name),
        ("time", "s", lambda each: each.seconds),
        ("regime", "", lambda each: each.regime.value),
        ("share of it", "%", lambda each: each.confidence),
    )
