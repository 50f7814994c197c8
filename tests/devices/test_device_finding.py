"""A name finds a device with the roofs of its newest calibration, and its datasheet where it has none."""

from dataclasses import replace

import pytest

from rooflight import devices
from rooflight.devices import MemoryLevel, Roofs, calibrations
from rooflight.hardware.devices.calibrations import Calibration, CalibrationWarning
from rooflight.hardware.devices.spec import roofs_used_by

ROOFS = Roofs(
    source="calibration on NVIDIA H100 80GB HBM3, 2026-01-02",
    matrix_flops_per_s={"bfloat16": 1200e12},
    memory=(MemoryLevel(name="HBM", bytes_per_s=3e12),),
)
H100 = Calibration(
    fingerprint="one H100",
    device_name="NVIDIA H100 80GB HBM3",
    kind="cuda",
    roofs=ROOFS,
    measured_at="2026-01-02T00:00:00+00:00",
)
CPU = Calibration(
    fingerprint="some CPU",
    device_name="AMD EPYC 7763",
    kind="cpu",
    roofs=Roofs(source="calibration on AMD EPYC 7763, 2026-01-03", vector_flops_per_s={"float32": 1e11}),
    measured_at="2026-01-03T00:00:00+00:00",
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))


def test_without_a_calibration_a_device_is_its_datasheet():
    found = devices.get("H100-SXM5-80GB")
    assert found.calibrated is None
    assert found.matrix_peak("bf16") == 989.4e12
    assert found.roofs_used == "datasheet"


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "h100-sxm5", "NVIDIA H100 80GB HBM3", "NVIDIAH10080GBHBM3"])
def test_every_name_of_a_device_finds_its_calibration(name):
    calibrations.save(H100)
    found = devices.get(name)
    assert found.name == "H100-SXM5-80GB"
    assert found.calibrated == ROOFS
    assert found.matrix_peak("bf16") == 1200e12  # measured above the datasheet's 989.4
    assert found.dram_bytes_per_s == 3.35e12  # measured below it
    assert found.roofs_used == (
        "datasheet, or calibration on NVIDIA H100 80GB HBM3, 2026-01-02: the higher of the two, figure by figure"
    )
    assert found in devices.all_devices()


def test_the_newest_of_several_calibrations_counts_wherever_it_was_measured():
    later = replace(ROOFS, matrix_flops_per_s={"bfloat16": 1100e12})
    for fingerprint, roofs, day in (("a", ROOFS, 2), ("b", later, 9), ("c", ROOFS, 5)):
        calibrations.save(replace(H100, fingerprint=fingerprint, roofs=roofs, measured_at=f"2026-01-0{day}"))
    assert devices.get("H100-SXM5-80GB").matrix_peak("bf16") == 1100e12


def test_other_devices_are_left_alone():
    calibrations.save(H100)
    calibrations.save(CPU)
    for name in ("H100-PCIe-80GB", "A100-SXM4-80GB"):
        assert devices.get(name).calibrated is None


def test_a_device_that_was_only_measured_is_found_by_its_name():
    calibrations.save(CPU)
    found = devices.get("amd epyc 7763")
    assert found == calibrations.device_of(CPU)
    assert found.roofs_used == "calibration on AMD EPYC 7763, 2026-01-03"
    with pytest.raises(ValueError, match="unknown device"):
        devices.get("AMD EPYC")  # it may be another


def test_a_device_of_the_user_has_the_calibration_of_what_its_driver_prints(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "Mine"\nvendor = "Acme"\nsource = ["here"]\nmatch = ["NVIDIA H100 80GB HBM3"]\n')
    calibrations.save(H100)
    assert devices.get(str(path)).name == "Mine"
    assert devices.get(str(path)).calibrated == ROOFS


@pytest.mark.parametrize("name", ["cpu", "CPU", "cuda"])
def test_what_is_here_is_no_name_of_a_device(name):
    with pytest.raises(ValueError, match=rf'rooflight.current_device\("{name.lower()}"\)'):
        devices.get(name)


def test_a_broken_calibration_is_told_and_stops_no_other_device():
    calibrations.save(H100)
    path = calibrations.save(CPU)
    path.write_text("{")
    with pytest.warns(CalibrationWarning, match="delete it, or run rooflight calibrate --force"):
        assert devices.get("H100-SXM5-80GB").calibrated == H100.roofs
    with pytest.raises(ValueError, match="delete it"):  # its own machine does not go on without it
        calibrations.load(CPU.fingerprint)


@pytest.mark.parametrize("figure", [1e30, 1e-9, 5e-324, 1e300])
@pytest.mark.parametrize("place", ["memory", "matrix", "vector", "launch latency"])
def test_a_calibration_of_what_nothing_reaches_is_broken(figure, place):
    changed = {
        "memory": {"memory": (MemoryLevel(name="DRAM", bytes_per_s=figure),)},
        "matrix": {"matrix_flops_per_s": {"float32": figure}},
        "vector": {"vector_flops_per_s": {"float32": figure}},
        "launch latency": {"launch_latency_s": min(figure, 1e-10) if figure < 1 else figure},
    }
    calibrations.save(replace(CPU, roofs=replace(CPU.roofs, **changed[place])))
    with pytest.raises(ValueError, match=f"{place}.* is .*, which nothing reaches"):
        calibrations.load(CPU.fingerprint)


def test_the_roofs_of_several_devices_are_told_together():
    calibrations.save(H100)
    a100, b200, h100 = (devices.get(name) for name in ("A100-SXM4-80GB", "B200-SXM", "H100-SXM5-80GB"))
    assert roofs_used_by([a100, b200, a100]) == "datasheet"
    assert roofs_used_by([a100, h100, b200]) == f"datasheet; H100-SXM5-80GB: {h100.roofs_used}"
    assert roofs_used_by([h100]) == f"H100-SXM5-80GB: {h100.roofs_used}"
    assert roofs_used_by([replace(a100, datasheet=None)]) == "unknown"
