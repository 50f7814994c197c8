"""Another device, by its predicted time: a remedy that is offered where it is asked for (``diagnose --instead``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import structs

from rooflight.diagnosis.draft import LEAST, Remedy
from rooflight.records.account import WORDS, Cause
from rooflight.records.quantity import Quantity, percent
from rooflight.roofline.account.account import Account
from rooflight.roofline.costed import CostedSession
from rooflight.roofline.findings import Diagnosis, Finding, NotWorthIt

DEVICE: Final = Remedy(
    id="another-device",
    title="another device",
    short="run it on the device that is named",
    verify="rooflight analyze there: measured beside predicted",
    waste=False,
)


_STAYS: Final = (Cause.LOADER, Cause.SUBPROCESS, Cause.ASLEEP, Cause.CHECKPOINT, Cause.PYTHON)
"""What the host does takes as long beside any device."""


def with_devices(found: Diagnosis, account: Account, others: Iterable[CostedSession]) -> Diagnosis:
    """The diagnosis and, after its findings, devices on which the step is predicted to be shorter, the shortest first;
    those where it is not are not worth it. ``others``: the same step predicted for each. One without a predicted wall
    time says nothing. The pieces of the host, which ``account`` has where they were measured, stay as they are.
    """
    findings, rest = [], []
    stays = {cause: account.seconds(cause) for cause in _STAYS} if found.source == "measured" else {}
    left = 1 - sum(each.after_others_s for each in found.findings) / found.step_s if found.step_s else 0.0
    for other in others:
        wall = other.totals.predicted_wall
        if wall is None:
            continue
        run = other.session.run
        between = {each.name: each.seconds for each in (run.between if run is not None else ())}
        here_s, host_s = found.step_s - sum(between.values()), sum(stays.values())
        host_s = max(0.0, host_s - between.get("loader", 0.0))  # what lies between steps is in neither
        there, gain_s = Quantity(wall.time_s + host_s, "s"), here_s - wall.time_s - host_s
        if gain_s <= LEAST * found.step_s:
            slower = f"predicted to take {there} there, {Quantity(here_s, 's')} here"
            rest.append(NotWorthIt(id=DEVICE.id, title=other.device.name, reason=slower))
            continue
        evidence = f"{Quantity(here_s, 's')} here, {found.source}; {there} predicted there{_limit(stays, wall.time_s)}"
        findings.append(
            Finding(
                id=DEVICE.id,
                title=f"{DEVICE.title}: {percent(gain_s / found.step_s)} shorter on {other.device.name}",
                regime=found.regime,
                seconds_lost=gain_s,
                share=gain_s / found.step_s,
                evidence=evidence,
                short=f"run it on {other.device.name}",
                remedy=f"run it on {other.device.name}",
                predicted_gain_s=gain_s,
                predicted_gain_low_s=here_s - wall.high_s - host_s,
                predicted_gain_high_s=here_s - wall.low_s - host_s,
                after_others_s=max(0.0, left * gain_s),
                verify=DEVICE.verify,
            )
        )
    findings.sort(key=lambda each: -each.predicted_gain_s)
    return structs.replace(found, findings=(*found.findings, *findings), not_worth_it=(*found.not_worth_it, *rest))


def _limit(stays: Mapping[Cause, float], device_s: float) -> str:
    """``; your data loader becomes the limit, 31 ms of 38 ms``, where the host takes longer than the device."""
    cause = max(stays, key=lambda each: stays[each], default=None)
    if cause is None or stays[cause] <= device_s:
        return ""
    whole = Quantity(sum(stays.values()) + device_s, "s")
    return f"; there {WORDS[cause]} is the limit, {Quantity(stays[cause], 's')} of {whole}"
