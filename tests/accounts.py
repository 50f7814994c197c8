"""What every account and the diagnosis that reads it must hold, whatever was measured, predicted or bounded."""

from __future__ import annotations

import numpy as np

from rooflight.diagnosis.diagnose import diagnose
from rooflight.records.account import Cause, Regime
from rooflight.roofline.analysis import Analysis

KEYS = ("cause", "phase", "layer", "op", "line")


def violations(analysis: Analysis) -> list[str]:
    """What an account and the diagnosis that reads it must hold, and do not."""
    account, found, wrong = analysis.account, diagnose(analysis), []
    whole = account.wall_s * (1 + 1e-9)
    sums = {key: sum(account.by(key).values()) for key in KEYS}
    wrong += [key for key, total in sums.items() if abs(total - account.wall_s) > 1e-9 * account.wall_s]
    wrong += [f"{row.cause} below zero" for row in account.rows if row.seconds < 0]
    exchange_s = sum(each.bound_s or 0.0 for each in analysis.communication.collectives)
    fused_s = np.inf if analysis.without_storages else (analysis.program.fused_bound_s + exchange_s) * (1 + 1e-9)
    if account.seconds(Cause.LIGHT) > min(fused_s, whole):
        wrong.append("more light than the fused bound")
    by_regime = {regime: sum(row.share for row in account.rows if row.regime is regime) for regime in Regime}
    wrong += [str(regime) for regime in Regime if abs(found.shares[regime] - by_regime[regime]) > 1e-9]
    for each in found.findings:
        held_s = sum(row.seconds for row in account.rows if row.cause in each.causes) * (1 + 1e-9)
        if each.seconds_lost > held_s:
            wrong.append(f"{each.id} loses more than its pieces")
        if each.predicted_gain_s > each.seconds_lost * (1 + 1e-9):
            wrong.append(f"{each.id} gains more than it loses")
    timeline = analysis.timeline
    if timeline is not None and analysis.measurement is not None and timeline.waits:
        steps = [step.idle_s for step in timeline.steps if step.in_session] or [timeline.idle_s]
        idle_s = sum(each.seconds for each in timeline.waits if each.cause not in (Cause.COPIES, Cause.COMMUNICATION))
        if idle_s > np.mean(steps) * (1 + 1e-6) + 1e-9:
            wrong.append("more idle than the timeline")
    return wrong
