"""From an analysis to its diagnosis: the regime, and the findings that cost most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import LEAST, Draft, Facts
from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.hot_spots import hot_spots
from rooflight.diagnosis.remedies import RULES
from rooflight.diagnosis.unworthy import not_worth_it
from rooflight.diagnosis.values import MOST_CALLS, Values
from rooflight.records.account import Place, Regime
from rooflight.records.quantity import Quantity
from rooflight.roofline.account.account import Account
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.findings import Diagnosis, Finding, RegimeShare

_MOST_LAYERS: Final = 12
_ALIKE: Final = 1.08  # gains of which the larger is so many times the other
_OUTDONE: Final = 2.5  # tuning that gains so many times what mending does comes first


def diagnose(analysis: Accounted) -> Diagnosis:
    """The regime of a step, what costs it time, the remedies and what each would buy, what gains most first. Waste,
    which a step need not do at all, is mended before anything is tuned.
    """
    of = Evidence(analysis)
    facts = Facts(of, Values(of))
    drafts = [draft for rule in RULES for draft in rule(facts)] if of.whole_s else []
    account = analysis.account
    shares = account.shares
    regime = max(shares, key=lambda each: shares[each])
    pairs = ((draft, draft.within(account)) for draft in drafts)
    least_s = LEAST * of.whole_s  # what the account leaves little of is no finding
    drafts = [held for draft, held in pairs if held.gain_s >= min(draft.gain_s, least_s)]
    findings = tuple(_findings(facts, _ranked(drafts)))
    return Diagnosis(
        step_s=of.whole_s,
        source=of.source,
        regime=regime,
        confidence=shares[regime],
        shares={each.value: share for each, share in shares.items()},
        phases=tuple(_shares(account, "phase")),
        layers=tuple(_shares(account, "layer"))[:_MOST_LAYERS],
        findings=findings,
        not_worth_it=tuple(not_worth_it(facts, {draft.remedy.id for draft in drafts})),
        missing=tuple(_missing(facts)),
        hot_spots=hot_spots(facts, drafts) if of.source != "bound" else (),
    )


def _ranked(drafts: Sequence[Draft]) -> list[Draft]:
    # what may gain nothing comes last; of gains that noise would let change places the rule decides that comes first
    alike: list[list[tuple[int, Draft]]] = []
    for place, draft in sorted(enumerate(drafts), key=lambda each: (not each[1].low_s, -each[1].gain_s)):
        largest = alike[-1][0][1] if alike else None
        if largest is None or draft.gain_s * _ALIKE < largest.gain_s or bool(draft.low_s) != bool(largest.low_s):
            alike.append([])
        alike[-1].append((place, draft))
    by_gain = [draft for group in alike for _, draft in sorted(group, key=lambda each: each[0])]
    waste = [draft for draft in by_gain if draft.remedy.waste]
    most = waste[0].gain_s if waste else 0.0
    first = [draft for draft in by_gain if not draft.remedy.waste and draft.gain_s > _OUTDONE * most]
    rest = [draft for draft in by_gain if not draft.remedy.waste and draft.gain_s <= _OUTDONE * most]
    return [*first, *waste, *rest]


def _findings(facts: Facts, drafts: Iterable[Draft]) -> Iterable[Finding]:
    """Each draft with what it still saves once those before it are applied."""
    of = facts.of
    cost = of.seconds + of.host_s
    left = np.ones(len(cost))
    remaining_s = of.whole_s
    for draft in drafts:
        calls = draft.touched
        whole = float(cost[calls].sum())
        share = float((cost * left)[calls].sum()) / whole if whole else 1.0
        after_s = min(draft.gain_s * share, 0.95 * remaining_s)
        remaining_s -= after_s
        left[calls] *= max(0.0, 1 - draft.gain_s / draft.lost_s) if draft.lost_s else 1.0
        yield Finding(
            id=draft.remedy.id,
            title=draft.remedy.title,
            regime=draft.regime or Regime.UNKNOWN,
            seconds_lost=draft.lost_s,
            share=min(1.0, draft.lost_s / of.whole_s),
            evidence=draft.evidence,
            short=draft.remedy.short,
            remedy=draft.remedy.remedy,
            predicted_gain_s=draft.gain_s,
            predicted_gain_low_s=min(draft.low_s, draft.gain_s),
            predicted_gain_high_s=max(draft.high_s, draft.gain_s),
            after_others_s=after_s,
            verify=draft.remedy.verify,
            causes=draft.causes,
            where=_where(facts, draft),
        )


def _where(facts: Facts, draft: Draft) -> tuple[Place, ...]:
    """The lines and modules of a draft: its own, of its calls, else of the rows of its causes."""
    if draft.place is not None:
        return (draft.place,)
    if len(draft.calls):
        return facts.of.where(draft.calls)
    rows = facts.of.analysis.account.rows
    return tuple(dict.fromkeys(place for row in rows if row.cause in draft.causes for place in row.where))


def _shares(account: Account, key: str) -> Iterable[RegimeShare]:
    """The regime of each phase or layer, and of what is in none, those with most time first."""
    for name, regimes in account.regimes_by(key).items():
        seconds = sum(regimes.values())
        regime = max(regimes, key=lambda each: regimes[each])
        yield RegimeShare(name=name, seconds=seconds, regime=regime, confidence=regimes[regime] / seconds)


def _missing(facts: Facts) -> Iterable[str]:
    of = facts.of
    if of.idle is not None and of.idle.unknown_s > LEAST * of.step_s:
        yield f"the cause of {Quantity(of.idle.unknown_s, 's')} of idle time: a trace that begins earlier has it"
    if of.source == "bound":
        yield "times: they are not measured here, and bounds alone say little (--predict adds them)"
    if of.on_cpu and of.measured and not of.lines:
        yield "lines of the host between ops: only a function of yours is sampled (train.py:make_step)"
    if len(of.records) > MOST_CALLS:
        yield f"values: the step has over {MOST_CALLS:,} ops"
    elif not facts.values.known:
        yield "values: the ops are without their storages, as in a trace"
