"""The CUDA probes as far as they go without a GPU: torch is told "cpu" wherever they say "cuda"."""

from types import SimpleNamespace

import pytest
from fake_clock import FakeClock

from rooflight.hardware.machine import calibration, cuda
from rooflight.hardware.machine import timing as clocks
from rooflight.hardware.machine.probes import Figure, search
from rooflight.hardware.machine.timing import Timing

torch = pytest.importorskip("torch")

UNITS = 1


@pytest.fixture
def on_cpu(monkeypatch):
    """What the probes put on the GPU lands on the CPU; the properties are those of a small GPU."""
    properties = SimpleNamespace(
        name="NVIDIA Test", multi_processor_count=UNITS, L2_cache_size=1 << 20, total_memory=1 << 26, major=9, minor=0
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)

    class OnCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    with OnCpu():
        yield properties


@pytest.mark.parametrize("precision", cuda.MATRIX_PRECISIONS)
def test_products_of_every_precision_have_the_shape_they_are_counted_for(on_cpu, precision):
    trial = cuda._product(precision, 32, 64, 48)
    assert trial.work == 2 * 32 * 64 * 48
    before = torch.get_float32_matmul_precision()
    out = trial.prepare()()
    assert torch.get_float32_matmul_precision() == before
    assert out is None or out.shape == (32, 64)


def test_tf32_is_used_for_its_own_product_only(on_cpu, monkeypatch):
    seen, mm = [], torch.mm

    def watched(*args, **kwargs):
        seen.append(torch.get_float32_matmul_precision())
        return mm(*args, **kwargs)

    monkeypatch.setattr(torch, "mm", watched)
    cuda._product("tfloat32", 16, 16, 16).prepare()()
    cuda._product("float32", 16, 16, 16).prepare()()
    assert seen == ["high", "highest"]


def test_streams_run_and_claim_whole_arrays(on_cpu):
    for trial in cuda._streams(6 << 10, repeats=1, label="6 KiB"):
        trial.prepare()()
        # 1, 2 or 3 arrays share 6 KiB; each is touched once for every read and write
        reads_and_writes = {"sum": 1, "mul_": 2, "copy_": 1, "add_": 1.5, "add": 1, "fill_": 1}[
            trial.pattern.split()[0]
        ]
        assert trial.work == reads_and_writes * (6 << 10)


def test_every_probe_can_be_listed(on_cpu):
    names = [probe.name for probe in cuda.probes(quick=True)]
    assert names[:2] == ["matrix float32", "matrix tfloat32"]
    assert names[-4:] == ["memory L2", "memory HBM", "launch in a stream", "launch in a graph"]
    assert all(probe.trials for probe in cuda.probes())


def test_without_cuda_every_probe_says_why(on_cpu):
    probes = [probe for probe in cuda.probes(quick=True) if not probe.name.startswith("matrix")]
    figures = search(probes, clock=FakeClock(call_s=0.01), budget_s=0.01)
    failed = [figure.verdict() for figure in figures.values() if figure.rate is None]
    assert failed
    assert all(text.startswith("not measured: ") and len(text) > 20 for text in failed)


def test_kernels_are_complete_sources():
    for real in ("float", "double"):
        flops = cuda.multiply_add(real, unit_count=2).work
        # 2 FLOPs * 16 chains * 4 steps * 512 rounds * 2 * 64 blocks * 256 threads
        assert flops == 2 * 16 * 4 * 512 * 2 * 64 * 256
    assert cuda._MULTIPLY_ADD.count("{") == cuda._MULTIPLY_ADD.count("}")
    assert cuda._READ.count("{") == cuda._READ.count("}")
    # 64 passes over 1 MiB
    assert cuda.read_again(1 << 20, unit_count=2).work == 64 * (1 << 20)


def test_roofs_of_a_gpu(on_cpu):
    rates = {"matrix bfloat16": 700e12, "vector float32": 60e12, "memory L2": 5e12, "memory HBM": 4e12}
    rates |= {"launch in a stream": 3e5, "launch in a graph": 1e6}
    names = [probe.name for probe in cuda.probes(quick=True)]
    figures = {
        name: Figure(name=name, unit="?", work=rates[name], timing=Timing(samples_s=(1.0,)))
        if name in rates
        else Figure(name=name, unit="?", reason="not here")
        for name in names
    }
    roofs = calibration._cuda_roofs(figures, "test")
    assert roofs.matrix_flops_per_s == {"bfloat16": 700e12}
    assert roofs.vector_flops_per_s == {"float32": 60e12}
    assert [(level.name, level.capacity_bytes, level.bytes_per_s) for level in roofs.memory] == [
        ("L2", 1 << 20, 5e12),
        ("HBM", 1 << 26, 4e12),
    ]
    assert roofs.launch_latency_s == 1e-6


class Event:
    """A CUDA event on a clock that the test moves: elapsed_time is in milliseconds, as torch's."""

    clock = FakeClock()

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at_ns = self.clock.time_ns

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at_ns - self.at_ns) / 1e6


def test_events_time_the_call_and_neither_flush_nor_spin(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _cycles: Event.clock.advance(5.0), raising=False)
    events = clocks.CudaEvents(flush=lambda: Event.clock.advance(7.0))
    assert events.time_s(lambda: Event.clock.advance(0.25)) == 0.25


def test_a_cold_cache_reads_at_least_four_times_the_cache(on_cpu):
    flush = clocks.cold_cache(100 << 20)
    assert flush.__self__.numel() * 4 >= 400 << 20
    assert float(flush()) == 0.0
