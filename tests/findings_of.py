"""The findings of a step, as rules see one that was recorded with its storages."""

from __future__ import annotations

from collections.abc import Callable

from calibrated import calibration_of, roofs_of

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.hardware.devices.calibrations import device_of
from rooflight.roofline.findings import Finding


def findings_of(step: Callable[[], object]) -> dict[str, Finding]:
    """By id those of a step whose ops take as long as their bounds on a slow CPU."""
    step()
    with rl.record(memory=True) as recording:
        step()
    here = device_of(calibration_of(roofs_of(1e9, 1e9), "test CPU"))
    return {each.id: each for each in diagnose(rl.analyze(recording.session, here)).findings}
