"""Another device, by its predicted time: a remedy that is offered where it is asked for (``diagnose --instead``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from rooflight.diagnosis.draft import LEAST, Remedy
from rooflight.records.quantity import Quantity, percent
from rooflight.roofline.costed import CostedSession
from rooflight.roofline.findings import Diagnosis, Finding, NotWorthIt

DEVICE: Final = Remedy(
    id="another-device",
    title="another device",
    remedy="run it on the device that is named",
    verify="rooflight analyze there: measured beside predicted",
    waste=False,
)


def with_devices(found: Diagnosis, others: Iterable[CostedSession]) -> Diagnosis:
    """The diagnosis and, after its findings, devices on which the step is predicted to be shorter, the shortest first;
    those where it is not are not worth it. ``others``: the same step predicted for each. One without a predicted wall
    time says nothing.
    """
    findings, rest = [], []
    left = 1 - sum(each.after_others_s for each in found.findings) / found.step_s if found.step_s else 0.0
    for other in others:
        wall = other.totals.predicted_wall
        if wall is None:
            continue
        run = other.session.run
        here_s = found.step_s - sum(each.seconds for each in (run.between if run is not None else ()))
        there, gain_s = Quantity(wall.time_s, "s"), here_s - wall.time_s  # what lies between steps stays
        if gain_s <= LEAST * found.step_s:
            slower = f"predicted to take {there} there, {Quantity(here_s, 's')} here"
            rest.append(NotWorthIt(id=DEVICE.id, title=other.device.name, reason=slower))
            continue
        evidence = f"{Quantity(here_s, 's')} here, {found.source}; {there} predicted there"
        findings.append(
            Finding(
                id=DEVICE.id,
                title=f"{DEVICE.title}: {percent(gain_s / found.step_s)} shorter on {other.device.name}",
                regime=found.regime,
                seconds_lost=gain_s,
                share=gain_s / found.step_s,
                evidence=evidence,
                remedy=f"run it on {other.device.name}",
                predicted_gain_s=gain_s,
                predicted_gain_low_s=here_s - wall.high_s,
                predicted_gain_high_s=here_s - wall.low_s,
                after_others_s=max(0.0, left * gain_s),
                verify=DEVICE.verify,
            )
        )
    findings.sort(key=lambda each: -each.predicted_gain_s)
    return structs.replace(found, findings=(*found.findings, *findings), not_worth_it=(*found.not_worth_it, *rest))
