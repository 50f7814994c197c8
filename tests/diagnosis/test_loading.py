"""How many workers a loader needs, by hand: what sleeps shares itself, what computes needs cores, and nothing is hidden
below the step.
"""

from __future__ import annotations

import pytest

from rooflight.diagnosis.remedies.loading import Loading


def loading(waits_s: float, rest_s: float, *, asleep: float, workers: int = 0) -> Loading:
    return Loading(waits_s=waits_s, rest_s=rest_s, asleep=asleep, workers=workers, line=None, evidence="")


@pytest.mark.parametrize(
    ("found", "cores", "threads", "busy", "count", "takes_s"),
    [
        # 320 ms asleep beside a step of 1 ms, on however many cores: eight workers share it
        (loading(0.32, 0.001, asleep=1.0), 2, 1, 0.0, 8, 0.04),
        # 30 ms asleep beside a step of 20 ms: two hide it
        (loading(0.03, 0.02, asleep=1.0), 2, 1, 0.0, 2, 0.02),
        # 30 ms of computing beside a step of 20 ms on one core of four: two workers hide it
        (loading(0.03, 0.02, asleep=0.0), 4, 1, 0.0, 2, 0.02),
        # the same where the step has both cores: 30 of computing and 40 on two cores
        (loading(0.03, 0.02, asleep=0.0), 2, 2, 0.0, 1, 0.035),
        # on one core there is nothing to gain
        (loading(0.03, 0.02, asleep=0.0), 1, 1, 0.0, 1, 0.05),
        # two workers that sleep let wait 40 ms for a step of 10: four take 25 each, ten would hide it
        (loading(0.04, 0.01, asleep=1.0, workers=2), 2, 1, 0.0, 8, 0.0125),
        # two workers that keep both cores busy: no more of them help
        (loading(0.04, 0.01, asleep=1.0, workers=2), 2, 1, 2.0, 2, 0.055),
    ],
)
def test_workers_are_counted(found, cores, threads, busy, count, takes_s) -> None:
    assert found.with_workers(cores, threads, busy) == (count, pytest.approx(takes_s))
