"""A calibration changes the roofs of a device, and which bound its predictions have; not what was measured of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import op, spec
from calibrated import calibration_of, roofs_of
from gemm_table import gemm
from measured_tables import GRID, H100_FILE, write_table

from rooflight.devices import calibrations, get
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel
from rooflight.prediction.fit.fitting import fit
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import read

NAME = "H100-SXM5-80GB"
X = spec((8, 1024, 3072), "bfloat16")  # 50 MB: it fits the L2 cache, whose speed no datasheet has
MUL = op("aten::mul", {"self": X, "other": X}, [X])
TANH = op("aten::tanh", {"self": X}, [X])
WORKS = [[MUL], [TANH], [gemm(8192, 768, 768, "bfloat16")], [gemm(512, 512, 512, "bfloat16")]]
HBM = MemoryLevel(name="HBM", bytes_per_s=3.3e12)
LEVELS = MemoryLevel(name="L2", capacity_bytes=50 << 20, bytes_per_s=7.3e12), HBM


CALIBRATION = calibration_of(
    roofs_of(6e13, 3.3e12, matrix={"bfloat16": 7.9e14}, memory=LEVELS), "NVIDIA H100 80GB HBM3", kind="cuda", key="one"
)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DeviceSpec, DeviceSpec]:
    """As it is listed, and as ``get`` finds it where a calibration is kept."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    listed = get(NAME)
    calibrations.save(CALIBRATION)
    return listed, get(NAME)


def test_measured_ops_answer_alike_with_a_calibration_whose_bound_is_lower(devices):
    listed, calibrated = devices
    shipped = Predictor()
    for before, after in zip(*(shipped.predict_many(WORKS, each) for each in devices), strict=True):
        assert after.time_s == before.time_s
        assert after.high_s == before.high_s
        assert after.source == before.source
        assert after.extrapolated == before.extrapolated
    # 2 x 50 MB through the cache: 101 MB / 7.3 TB/s; from main memory 151 MB / 3.35 TB/s for three
    assert shipped.predict([TANH], calibrated).bound_s == pytest.approx(2 * X.nbytes / 7.3e12)
    assert shipped.predict([TANH], listed).bound_s == pytest.approx(2 * X.nbytes / 3.35e12)


def test_many_shapes_answer_alike_with_a_calibration(devices):
    shipped, shapes = Predictor(), {"mp": 1, "b": 8, "l": np.array([128, 1024, 4096]), "dim": 3072}
    found = [shipped.predict_shapes("gelu", shapes, "bf16", each)["fwd"] for each in devices]
    assert (found[0].time_s == found[1].time_s).all()
    assert (found[0].bound_s > found[1].bound_s).all()
    size = np.array([512.0])
    found = [shipped.predict_products(size, size, size, "bf16", each) for each in devices]
    assert found[0].time_s == found[1].time_s
    assert found[0].bound_s > found[1].bound_s


def test_no_prediction_is_below_a_roof_that_the_datasheet_lacks(devices):
    listed = replace(devices[0], datasheet=replace(devices[0].datasheet, vector_flops_per_s={}))
    calibrated = listed.with_calibration(roofs_of(1e9, 3.3e12))  # so slow that arithmetic is all that counts
    x = spec((1 << 24,), "float32")
    estimate = Predictor().predict([op("aten::tanh", {"self": x}, [x])], calibrated)
    assert estimate.bound_s >= (1 << 24) / 1e9
    assert estimate.time_s >= estimate.bound_s


def test_a_table_teaches_alike_where_its_device_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    path = write_table(tmp_path / "tables", "gelu", [(1, *shape) for shape in GRID[:32]], noise=0.05, device=H100_FILE)
    learned = []
    for _ in range(2):
        learned.append({model.key: model.experts[0].low for model in fit(read(path)).models})
        calibrations.save(CALIBRATION)
    before, after = learned
    assert all((before[key] == after[key]).all() for key in ("aten::gelu", "aten::gelu_backward"))
