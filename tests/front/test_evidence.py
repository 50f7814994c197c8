"""Roofs that a measured step passed are raised, in the analysis and in the stored calibration."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rooflight as rl
from rooflight.devices import calibrations
from rooflight.front.evidence import with_evidence
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.records.measurement import Measurement
from rooflight.roofline.analysis import Analysis

ROOFS = Roofs(
    source="calibration on a toy",
    matrix_flops_per_s={"float32": 1e12},
    vector_flops_per_s={"float32": 5e11},
    memory=(MemoryLevel(name="L2", capacity_bytes=1000, bytes_per_s=5e10), MemoryLevel(name="DRAM", bytes_per_s=4e10)),
    threads=2,
)
CPU = DeviceSpec(name="toy", vendor="", architecture="", kind="cpu", calibrated=ROOFS)


def session(seconds: float, program=lambda: torch.empty(10_000_000).add_(1.0)):
    """One op: 80 MB through memory, which takes 2 ms at 40 GB/s."""
    with rl.record() as recording:
        program()
    found = recording.session
    times = np.full((1, len(found)), np.nan)
    times[0, -1] = seconds
    return replace(found, environment={**found.environment, "fingerprint": "toy"}).with_measurement(
        Measurement(wall_samples_s=np.array([seconds]), op_samples_s=times, clock="test")
    )


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    calibrations.save(
        Calibration(fingerprint="toy", device_name="toy", kind="cpu", roofs=ROOFS, measured_at="2026-01-01T00:00:00")
    )


@pytest.mark.usefixtures("kept")
def test_a_faster_op_raises_memory_in_the_analysis_and_on_disk():
    analysis = with_evidence(Analysis(session(0.0016), CPU))
    assert analysis.device.dram_bytes_per_s == pytest.approx(8e7 / 0.0016, rel=1e-3)
    assert analysis.contradictions == ()
    assert "DRAM 50.0 GB/s" in analysis.device.roofs_used
    stored = calibrations.load("toy", ROOFS.threads).roofs
    assert stored.memory[-1].bytes_per_s == analysis.device.dram_bytes_per_s
    assert stored.memory[0].bytes_per_s >= 5e10
    again = with_evidence(Analysis(session(0.0014), replace(CPU, calibrated=stored)))
    assert again.device.calibrated.source.count("raised") == 1
    assert calibrations.load("toy", ROOFS.threads).roofs.memory[-1].bytes_per_s == pytest.approx(8e7 / 0.0014, rel=1e-3)


def test_a_short_op_raises_the_cache_whose_roof_it_passed_and_what_is_nearer():
    """Of 1 MB read and 1 MB written, 100 kB each lie nearer than L3, whose roof of 40 GB/s the rest passes at 50; all
    of it passes L2's roof of 45."""
    levels = (
        MemoryLevel(name="L2", capacity_bytes=100_000, bytes_per_s=45e9),
        MemoryLevel(name="L3", capacity_bytes=30_000_000, bytes_per_s=4e10),
        MemoryLevel(name="DRAM", bytes_per_s=2e10),
    )
    cpu = replace(CPU, calibrated=replace(ROOFS, memory=levels))
    analysis = with_evidence(Analysis(session(1.8e6 / 5e10, lambda: torch.empty(250_000).add_(1.0)), cpu))
    assert [level.bytes_per_s for level in analysis.device.memory] == pytest.approx(
        [2e6 / 3.6e-5, 5e10, 2e10], rel=1e-6
    )
    assert analysis.contradictions == ()


@pytest.mark.usefixtures("kept")
def test_a_faster_product_raises_the_matrix_peak():
    def product() -> None:
        torch.mm(a, a)

    a = torch.ones(1024, 1024)
    analysis = with_evidence(Analysis(session(0.002, product), CPU))
    assert analysis.device.matrix_peak("float32") == pytest.approx(2 * 1024**3 / 0.002, rel=1e-6)
    assert analysis.device.dram_bytes_per_s == 4e10


@pytest.mark.parametrize("matrix", [5e10, 1e12], ids=["below the vector peak", "above it"])
def test_a_product_raises_what_its_bound_took(matrix):
    """float32 products run on the vector units where those are the faster; 2.1 GFLOP at 1.8 times the peak."""

    def product() -> None:
        torch.mm(a, a)

    a = torch.ones(1024, 1024)
    roofs = replace(ROOFS, matrix_flops_per_s={"float32": matrix}, disturbed=True)
    reached = 1.8 * max(matrix, 5e11)
    analysis = with_evidence(Analysis(session(2 * 1024**3 / reached, product), replace(CPU, calibrated=roofs)))
    assert analysis.device.matrix_peak("float32") == pytest.approx(reached, rel=1e-6)
    assert analysis.contradictions == ()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("seconds", [0.0021, 0.0009], ids=["slower", "more than twice as fast: a cost is wrong"])
def test_what_proves_nothing_raises_nothing(seconds):
    before = Analysis(session(seconds), CPU)
    assert with_evidence(before) is before
    assert calibrations.load("toy", ROOFS.threads).roofs == ROOFS


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("factor", [6.3, 11.0], ids=["as the machine is now", "more than it reaches: a cost is wrong"])
def test_roofs_measured_beside_other_programs_are_raised_as_far_as_a_second_look_allows(monkeypatch, factor):
    roofs = replace(ROOFS, disturbed=True)
    calibrations.save(replace(calibrations.load("toy", ROOFS.threads), roofs=roofs))
    now = replace(roofs, memory=tuple(replace(level, bytes_per_s=2e11) for level in ROOFS.memory))
    monkeypatch.setattr("rooflight.hardware.machine.environment.fingerprint", lambda *_: "toy")
    again = replace(calibrations.load("toy", ROOFS.threads), roofs=now)
    monkeypatch.setattr("rooflight.hardware.machine.calibration.calibrate", lambda *_, **options: again)
    analysis = with_evidence(Analysis(session(0.002 / factor), replace(CPU, calibrated=roofs)))
    proves = factor * 4e10 <= 2 * 2e11
    assert analysis.device.dram_bytes_per_s == pytest.approx(factor * 4e10 if proves else 2e11, rel=1e-3)
    assert bool(analysis.contradictions) != proves
    assert calibrations.load("toy", ROOFS.threads).roofs == analysis.device.calibrated
    assert calibrations.load("toy", ROOFS.threads).roofs.disturbed


@pytest.mark.usefixtures("kept")
def test_disturbed_roofs_of_another_machine_are_not_raised_without_limit():
    before = Analysis(session(0.002 / 6.3), replace(CPU, calibrated=replace(ROOFS, disturbed=True)))
    assert with_evidence(before) is before


def test_another_devices_roofs_and_datasheets_stay():
    gpu = replace(CPU, kind="cuda", calibrated=None, datasheet=ROOFS)
    before = Analysis(session(0.0016), gpu)
    assert with_evidence(before) is before


def test_roofs_that_cannot_be_kept_are_raised_here(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "none"))
    assert with_evidence(Analysis(session(0.0016), CPU)).device.dram_bytes_per_s > 4e10
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("theirs", [4.5e10, 6e10])
def test_what_two_processes_reached_is_kept_whichever_saves_last(theirs):
    """This one analyses with the roofs of before: memory reached 50 GB/s; another one saved meanwhile."""
    other = replace(ROOFS, memory=(ROOFS.memory[0], MemoryLevel(name="DRAM", bytes_per_s=theirs)))
    calibrations.save(
        replace(calibrations.load("toy", ROOFS.threads), roofs=replace(other, matrix_flops_per_s={"float32": 3e12}))
    )
    with_evidence(Analysis(session(0.0016), CPU))
    stored = calibrations.load("toy", ROOFS.threads).roofs
    assert stored.memory[-1].bytes_per_s == pytest.approx(max(theirs, 5e10), rel=1e-3)
    assert stored.matrix_flops_per_s == {"float32": 3e12}
