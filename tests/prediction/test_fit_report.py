"""What rooflight fit says beside its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from measured_tables import GRID, write_table

from rooflight.devices.spec import Roofs
from rooflight.prediction.fit.fitting import Fit
from rooflight.prediction.fit.tables import report_of
from rooflight.prediction.lint.findings import Finding, Rule
from rooflight.prediction.read import read


@pytest.mark.parametrize(
    ("calibrated", "rule", "count", "said"),
    [
        (True, Rule.FASTER_THAN_LIGHT, 1, True),  # 1 of 64 is more than a hundredth
        (True, Rule.FASTER_THAN_LIGHT, 0, False),
        (True, Rule.OUTLIER, 9, False),
        (False, Rule.FASTER_THAN_LIGHT, 9, False),  # a datasheet does not age
    ],
)
def test_times_that_beat_a_calibration_are_blamed_on_it(
    tmp_path: Path, calibrated: bool, rule: Rule, count: int, said: bool
):
    (table,) = read(write_table(tmp_path))
    assert len(GRID) == 64
    if calibrated:
        device = replace(table.device, datasheet=None, calibrated=Roofs(source="a slow hour"))
        table = replace(table, device=device)
    findings = [
        Finding(
            source=table.source,
            kernel="gemm",
            device=table.device.name,
            row=row,
            line=row + 2,
            direction="step",
            rule=rule,
            evidence="",
            factor=2.0,
        )
        for row in range(count)
    ]
    notes = " ".join(report_of(Fit(models=(), few={}), [table], findings, tmp_path).notes)
    assert ("faster than its calibration allows" in notes) == said
    if said:
        assert "1 of 64 times on A100-SXM4-80GB" in notes
