"""The GPU's measured roofs against its datasheet, and the clocks that they rest on."""

import pytest

from rooflight import devices
from rooflight.hardware.machine import calibration, environment
from rooflight.hardware.machine.timing import CudaEvents, SteadyClock, cold_cache, measure

pytestmark = pytest.mark.gpu

LOW, HIGH = 0.25, 1.15  # quick: small products, of which int8's reach 29 % on an H200


@pytest.fixture
def datasheet(torch):
    spec = devices.find_by_torch_name(torch.cuda.get_device_name())
    assert spec is not None, f"the catalog has no {torch.cuda.get_device_name()}"
    assert spec.datasheet is not None
    return spec.datasheet


def test_this_gpu_is_in_the_catalog(torch, datasheet):
    spec = devices.get(torch.cuda.get_device_name())
    assert spec.kind == "cuda"
    capacity = datasheet.memory[-1].capacity_bytes
    total = torch.cuda.get_device_properties(0).total_memory
    # drivers keep some of the memory for themselves, and some names hide two sizes
    assert 0.85 * capacity <= total <= 1.05 * capacity


def shares(measured: dict, listed: dict) -> dict[str, float]:
    return {name: measured[name] / listed[name] for name in listed if name in measured}


@pytest.mark.parametrize("unit", ["matrix", "vector"])
def test_measured_peaks_are_near_the_datasheet(measured, datasheet, unit):
    peaks = getattr(measured.roofs, f"{unit}_flops_per_s")
    found = shares(peaks, getattr(datasheet, f"{unit}_flops_per_s"))
    assert found, measured.environment
    print({name: f"{share:.0%}" for name, share in found.items()})
    assert all(LOW <= share <= HIGH for share in found.values()), found


def test_measured_bandwidth_is_near_the_datasheet(measured, datasheet):
    share = measured.roofs.memory[-1].bytes_per_s / datasheet.memory[-1].bytes_per_s
    print(f"memory: {share:.0%}")
    assert LOW <= share <= HIGH


def test_l2_is_faster_than_main_memory(measured):
    levels = measured.roofs.memory
    assert [level.name for level in levels] == ["L2", "HBM"]
    assert levels[0].bytes_per_s >= levels[1].bytes_per_s


def test_what_this_gpu_can_do_was_measured(measured):
    failed = {key: text for key, text in measured.environment.items() if text.startswith("not measured")}
    print(failed)
    needed = ("matrix float32", "matrix bfloat16", "vector float32", "memory HBM", "memory L2", "launch in a graph")
    assert not {key.removeprefix(calibration.VERDICT) for key in failed} & set(needed)


def test_a_graph_launches_faster_than_the_host(measured):
    assert 0.1e-6 < measured.roofs.launch_latency_s < 20e-6


def test_settings_and_random_state_are_as_before(torch, measured):
    state, precision = torch.cuda.get_rng_state().clone(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        calibration.calibrate("cuda", quick=True)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_events_measure_the_device_and_not_the_host(torch):
    def spin(cycles: int) -> float:
        return measure(lambda: torch.cuda._sleep(cycles), clock=CudaEvents(), box_s=0.5).minimum_s

    spin(100_000_000)  # the clocks rise from idle
    single, double = spin(20_000_000), spin(40_000_000)
    assert 1.8 < double / single < 2.2


def test_events_agree_with_the_host_on_long_work(torch):
    side = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def run():
        for _ in range(20):
            torch.mm(side, side)

    def run_and_wait():
        run()
        torch.cuda.synchronize()

    on_device = measure(run, clock=CudaEvents(), box_s=1.0).median_s
    on_host = measure(run_and_wait, clock=SteadyClock(), box_s=1.0).median_s
    assert 0.8 < on_device / on_host < 1.1


def test_a_cold_cache_is_slower(torch):
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    numbers = torch.rand(l2_bytes // 8 // 4, device="cuda")
    warm = measure(numbers.sum, clock=CudaEvents(), box_s=0.3).median_s
    cold = measure(numbers.sum, clock=CudaEvents(flush=cold_cache(l2_bytes)), box_s=0.3).median_s
    assert cold > warm


def test_the_fingerprint_is_stable_and_has_no_serial_number(torch):
    facts = environment.describe()
    assert facts["device_kind"] == "cuda"
    assert facts["fingerprint"] == environment.fingerprint("cuda") == environment.fingerprint("cuda")
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", "no uuid"))
    assert uuid not in " ".join(facts.values())
