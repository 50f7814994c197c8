"""Files that an earlier version wrote, in ``tests/written_before``: each is read still.

They were written at 909a9f22, before rooms moved into wings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import rooflight as rl
from rooflight.devices import calibrations
from rooflight.prediction.read.files import read
from rooflight.studies.compiling.hot import gain

WRITTEN = Path(__file__).parents[1] / "written_before"


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(WRITTEN / "cache"))


def test_a_session():
    session = rl.load(WRITTEN / "step.session")
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    assert len(session.measurement.wall_samples_s) == 10
    # [16, 32] @ [32, 64]: 2 * 16 * 32 * 64 = 65,536, and for its weight; [16, 64] @ [64, 8]: 16,384, three times
    assert analysis.totals.matrix_flops == 2 * 65_536 + 3 * 16_384


def test_calibrations():
    (calibration,) = calibrations.saved()
    assert calibrations.device_of(calibration).memory


def test_models():
    predictor = rl.Predictor.load(WRITTEN / "models")
    assert set(predictor.models) == {"aten::add", "other ops"}


def test_rows_of_a_sweep():
    (table,) = read(WRITTEN / "AMDEPYC-family25-model17_add_fp32_1_1.csv")
    assert table.seconds.shape == (240, 1)


def test_the_end_of_a_trial():
    found = gain.recall("0123456789abcdef0123456789abcdef")
    assert (found.outcome, found.speedup, found.compile_s) == ("compiled", 1.5, 12.0)
