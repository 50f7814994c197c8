"""Calibration end to end on this CPU, in the small, and what it must leave alone."""

from dataclasses import replace
from itertools import pairwise

import pytest
from fake_clock import FakeClock

from rooflight.devices import calibrations
from rooflight.hardware.devices.spec import MemoryLevel, Roofs
from rooflight.hardware.machine import calibration, environment
from rooflight.hardware.machine import cpu_load as bystander
from rooflight.hardware.machine.cpu_load import CpuTime
from rooflight.hardware.machine.hardware import Cache
from rooflight.hardware.machine.probes import Figure
from rooflight.hardware.machine.timing import Timing

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def measured():
    return calibration.calibrate("cpu", quick=True)


def test_every_roof_is_positive_and_named(measured):
    roofs = measured.roofs
    assert set(roofs.matrix_flops_per_s) >= {"float32", "float64", "bfloat16", "float16"}
    assert all(peak > 0 for peak in (*roofs.matrix_flops_per_s.values(), *roofs.vector_flops_per_s.values()))
    assert roofs.memory[-1].name == "DRAM"
    assert roofs.memory[-1].bytes_per_s > 0
    assert roofs.launch_latency_s > 0
    assert measured.kind == "cpu"
    assert "quick" in roofs.source


def test_nearer_memory_is_smaller_and_not_slower(measured):
    levels = [level for level in measured.roofs.memory if level.bytes_per_s is not None]
    for near, far in pairwise(levels):
        assert near.bytes_per_s >= far.bytes_per_s
        assert far.capacity_bytes is None or near.capacity_bytes <= far.capacity_bytes


def test_raw_samples_and_patterns_are_kept(measured):
    roof, samples = measured.roofs.matrix_flops_per_s["float64"], measured.environment["samples: matrix float64"]
    work, rest = samples.split(" FLOP per call; s per call: ")
    fastest = min(map(float, rest.split()))
    assert roof == pytest.approx(float(work) / fastest, rel=1e-3)
    assert " by " in measured.environment["calibration: matrix float64"]


def test_a_calibration_survives_the_disk(measured):
    calibrations.save(measured)
    assert calibrations.load(measured.fingerprint, measured.roofs.threads) == measured


def torch_state() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.random.get_rng_state().tolist(),
        torch.get_default_dtype(),
    )


@pytest.fixture
def tf32():
    """Products of the program in fewer bits than calibrations measure."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32")
def test_torch_is_as_before():
    before = torch_state()
    calibration.calibrate("cpu", quick=True, clock=FakeClock(call_s=0.5))
    assert torch_state() == before


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(("threads", "after"), [(None, 0.2), (1, -1.0)])
def test_an_interrupted_calibration_writes_nothing_and_restores_torch(folder, threads, after):
    before = torch_state()

    def stop(name, fraction):
        if fraction > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibration.calibrate("cpu", stop, quick=True, threads=threads)
    assert torch_state() == before
    assert not folder.exists() or not list(folder.iterdir())


def figure(name: str, rate: float | None, unit: str = "FLOP") -> Figure:
    if rate is None:
        return Figure(name=name, unit=unit, reason="no such unit")
    return Figure(name=name, unit=unit, pattern="p", work=rate, timing=Timing(samples_s=(1.0,)))


def cpu_figures(**changes: float | None) -> dict[str, Figure]:
    rates = {
        "matrix float32": 200e9,
        "matrix bfloat16": 400e9,
        "matrix float16": 30e9,
        "matrix float64": 100e9,
        "matrix int8": None,
        "vector float32": 50e9,
        "memory L1": 400e9,
        "memory L2": 410e9,
        "memory L3": None,
        "memory DRAM": 60e9,
        "launch": 2e6,
    } | changes
    return {name: figure(name, rate) for name, rate in rates.items()}


@pytest.fixture
def three_caches(monkeypatch):
    caches = tuple(
        Cache(name=f"L{level}", instance_bytes=size, instance_count=1) for level, size in ((1, 32), (2, 64), (3, 96))
    )
    monkeypatch.setattr(calibration, "data_caches", lambda: caches)


@pytest.mark.usefixtures("three_caches")
def test_formats_that_a_kernel_may_convert_have_at_least_the_float32_roof():
    roofs = calibration._cpu_roofs(cpu_figures(), "test")
    assert roofs.matrix_flops_per_s == {
        "float32": 200e9,
        "bfloat16": 400e9,
        "float16": 200e9,  # measured 30, but a kernel may multiply in float32
        "float64": 100e9,
        "int8": 200e9,
    }
    assert roofs.vector_flops_per_s == {"float32": 200e9, "float64": 100e9}
    assert roofs.launch_latency_s == 1 / 2e6


@pytest.mark.usefixtures("three_caches")
def test_what_a_farther_level_delivers_came_through_the_nearer():
    l1, l2, l3, dram = calibration._cpu_roofs(cpu_figures(), "test").memory
    assert (l1.bytes_per_s, l2.bytes_per_s, l3.bytes_per_s, dram.bytes_per_s) == (410e9, 410e9, None, 60e9)


@pytest.mark.usefixtures("three_caches")
def test_what_was_not_measured_is_unknown_and_never_zero():
    nothing = calibration._cpu_roofs(cpu_figures(**dict.fromkeys(cpu_figures(), None)), "test")
    assert nothing.matrix_flops_per_s == {}
    assert nothing.vector_flops_per_s == {}
    assert nothing.launch_latency_s is None
    assert [level.bytes_per_s for level in nothing.memory] == [None] * 4


def test_a_later_trial_lowers_no_roof(measured):
    roofs = replace(
        measured.roofs,
        matrix_flops_per_s={"float32": 1.0, "int8": 5.0},
        memory=(MemoryLevel(name="DRAM", bytes_per_s=7.0),),
        launch_latency_s=2.0,
    )
    low = replace(measured, roofs=roofs, environment={"calibration: matrix float32": "1 FLOP/s by luck"})
    high = replace(
        low,
        roofs=Roofs(
            source="earlier",
            matrix_flops_per_s={"float32": 3.0, "bfloat16": 4.0},
            memory=(MemoryLevel(name="DRAM", bytes_per_s=6.0),),
            launch_latency_s=1.0,
            threads=measured.roofs.threads,
        ),
        environment={"calibration: matrix float32": "3 FLOP/s by mm", "samples: matrix float32": "3 FLOP a call"},
    )
    best = calibration.raised(low, high)
    assert best.roofs.matrix_flops_per_s == {"float32": 3.0, "int8": 5.0, "bfloat16": 4.0}
    assert best.roofs.memory[-1].bytes_per_s == 7.0
    assert best.roofs.launch_latency_s == 1.0
    assert "earlier" in best.roofs.source
    # the samples shown are those of the roof that stayed
    assert best.environment == high.environment


def test_calibrations_of_different_machines_are_not_mixed(measured):
    with pytest.raises(ValueError, match="different machines"):
        calibration.raised(measured, replace(measured, fingerprint="another"))


def test_nothing_measured_is_an_error(monkeypatch):
    monkeypatch.setattr(calibration.cpu, "probes", lambda quick: ())
    monkeypatch.setattr(calibration, "search", lambda *_, **__: {"launch": figure("launch", None)})
    with pytest.raises(RuntimeError, match="nothing could be measured on cpu: no such unit"):
        calibration.calibrate("cpu")


def test_roofs_are_of_the_threads_asked_for_and_torch_has_its_own_again():
    before = torch.get_num_threads()
    one = calibration.calibrate("cpu", threads=1, quick=True, clock=FakeClock(call_s=0.5))
    assert torch.get_num_threads() == before
    assert one.roofs.threads == 1
    assert one.environment["torch_threads"] == "1"
    assert one.fingerprint == environment.fingerprint("cpu")
    assert ", 1 thread, " in one.roofs.source


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_threads_that_cannot_be_had_are_refused(threads):
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="a CPU is calibrated on 1 to"):
        calibration.calibrate("cpu", threads=threads, quick=True)
    assert torch.get_num_threads() == before


def test_roofs_measured_beside_other_programs_say_so(monkeypatch):
    moments = iter((CpuTime(wall_s=0, own_s=0, all_s=0, cores=1), CpuTime(wall_s=10, own_s=0, all_s=3.8, cores=1)))
    monkeypatch.setattr(bystander, "cpu_time", lambda: next(moments))
    found = calibration.calibrate("cpu", quick=True, clock=FakeClock(call_s=0.5))
    assert found.environment[calibration.BUSY] == "38 %"
    assert calibration.busy_share(found) == 0.38
    assert found.roofs.source.endswith(", beside other programs")
    assert found.roofs.disturbed
    quiet = replace(found, roofs=replace(found.roofs, disturbed=False))
    assert calibration.raised(found, found).roofs.disturbed
    assert not calibration.raised(found, quiet).roofs.disturbed  # none is lower than that of the quiet one
    assert not calibration.raised(quiet, found).roofs.disturbed
