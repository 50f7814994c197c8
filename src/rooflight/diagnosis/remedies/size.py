"""Size: work that is too small for the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.diagnosis.draft import NO_CALLS, Draft, Facts, Remedy
from rooflight.records.account import Cause, Regime
from rooflight.records.quantity import percent

BATCH: Final = Remedy(
    id="bigger-batch",
    title="overhead that does not grow with the batch",
    short="a bigger batch",
    rest="if the memory and the method allow it: more samples a second, no shorter step",
    verify="the step of the doubled batch takes hardly longer",
    waste=False,
)


def batch(facts: Facts) -> Iterable[Draft]:
    """Steps of which most is overhead. A bigger batch makes no step shorter: it has more samples in the same time, so
    that it promises no seconds, and comes after all that does.
    """
    account = facts.of.analysis.account
    overhead_s = account.seconds(Cause.LAUNCHES)
    if overhead_s < 0.5 * account.wall_s or not account.wall_s:
        return
    share = overhead_s / account.wall_s
    text = (
        f"dispatch and launches take {percent(share)} of the step, whatever the batch: twice the batch would take "
        f"about {2 - share:.2g} times as long, {2 / (2 - share):.2g} times the samples a second"
    )
    yield Draft(remedy=BATCH, regime=Regime.OVERHEAD, evidence=text, lost_s=overhead_s,
                gain_s=0.0, low_s=0.0, high_s=0.0, calls=NO_CALLS, causes=(Cause.LAUNCHES,))  # fmt: skip


RULES: Final = (batch,)
