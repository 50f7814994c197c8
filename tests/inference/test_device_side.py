"""CUDA's side on a device that stands in for one: nothing waits in a step, events are used again and read in order."""

from __future__ import annotations

import pytest
from fake_device import FakeDevice
from measured_runs import run_of

from rooflight.hardware.machine.timing import CudaDevice
from rooflight.inference import Profiler, cpu_bucket_timer, cuda_bucket_timer
from rooflight.studies.inference.clocks import device_now
from rooflight.studies.inference.step import MOST_PENDING


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def bench(make, device):
    """On a device that nobody waits for."""
    return make(device, strict_sync=False)


def step(bench, nanoseconds, tokens=1):
    prof = bench.profiler
    with prof.step_timing_ctx():
        with cpu_bucket_timer("decode"), cuda_bucket_timer("attn.compute"):
            bench.work(nanoseconds)
        prof.set_step_tokens(tokens)


def test_without_strict_sync_nothing_waits_and_no_event_is_made_after_the_first_steps(device, bench):
    with run_of(bench.profiler):
        for _ in range(100):
            step(bench, 5)
            device.finish()
        made = device.events
        for _ in range(1000):
            step(bench, 5)
            device.finish()
        assert device.syncs == 0
        assert device.events == made < 200  # four a step, for the steps that are read together
    assert bench.summary()["stats"]["time_total_ms"] == pytest.approx(1100 * 5e-6)


def test_a_device_that_lags_is_read_later_in_order(device, bench):
    with run_of(bench.profiler):
        for number in range(1, 41):
            step(bench, number, tokens=number)
        assert bench.profiler.results.samples.seen == 0  # nothing could be read yet
        device.finish()
        step(bench, 100, tokens=41)
        assert bench.profiler.results.samples.columns()["tokens"].tolist() == list(range(1, 41))
        assert device.syncs == 0
    assert device.syncs == 1  # the last steps, after the run
    assert bench.profiler.results.samples.columns()["step_ns"].tolist() == [*range(1, 41), 100]


def test_a_device_that_never_comes_loses_steps_and_says_so(device, bench):
    with run_of(bench.profiler):
        for _ in range(MOST_PENDING + 10):
            step(bench, 5)
    summary = bench.summary()
    assert summary["stats"]["steps"] == MOST_PENDING
    assert summary["runs"][0]["meta"]["steps_lost"] == 10
    assert any("steps behind" in problem for problem in summary["problems"])


def test_strict_sync_waits_at_both_ends_of_a_step_and_of_engine_buckets(make):
    device = FakeDevice()
    bench = make(device)
    bench.profiler.begin_run()
    step(bench, 5)
    assert device.syncs == 4
    with bench.profiler.step_timing_ctx(), cuda_bucket_timer("embed"):
        pass
    assert device.syncs == 6  # model buckets wait for nothing


def test_two_clocks_give_two_times(device, bench, prof):
    with run_of(prof, bsz=1):
        for _ in range(2):
            with prof.step_timing_ctx():
                with cpu_bucket_timer("decode"), cuda_bucket_timer("embed"):
                    bench.clock.time_ns += 10  # queueing
                    device.work(1000)
                bench.clock.time_ns += 30
                prof.set_step_tokens(1)
            bench.clock.time_ns += 5
            device.work(7)
    summary = bench.summary()
    assert summary["meta"]["clock"] == "device events"
    assert summary["stats"]["mean_ms"] == pytest.approx(1000e-6)
    assert summary["buckets_model_avg_ms"] == {"embed": pytest.approx(1000e-6)}
    assert summary["unattributed_model_ms"] == 0
    assert summary["buckets_engine_avg_ms"] == {"decode": pytest.approx(10e-6)}
    assert summary["unattributed_engine_ms"] == pytest.approx(30e-6)
    assert summary["wall"] == {
        "wall_total_ms": pytest.approx(85e-6),  # 40 + 5 + 40
        "host_steps_ms": pytest.approx(80e-6),
        "gaps_total_ms": pytest.approx(5e-6),
        "gap_mean_ms": pytest.approx(5e-6),
        "step_gaps_ms": pytest.approx(7e-6),
        "throughput_tok_s": pytest.approx(2 / 85e-9),
    }


def test_a_graph_that_is_captured_gets_no_events(device, bench, prof):
    with run_of(prof), prof.step_timing_ctx():
        bench.work(1)
        device.capturing = True
        recorded = device.recorded
        with cuda_bucket_timer("embed"):
            bench.work(2)
        assert device.recorded == recorded
        device.capturing = False
        bench.work(4)
    summary = bench.summary()
    assert summary["stats"]["mean_ms"] == pytest.approx(7e-6)
    assert summary["unattributed_model_ms"] == pytest.approx(7e-6)  # its replay is one, and so is its capture


class DeviceTensor:
    """Values that must not be read before the device has come past the step."""

    is_cuda = True

    def __init__(self, device, values):
        self._device, self._values = device, values
        self._needs = 0

    def detach(self):
        return self

    def to(self, where, *, non_blocking):
        assert (where, non_blocking) == ("cpu", True)
        copy = DeviceTensor(self._device, list(self._values))
        copy.is_cuda = False
        copy._needs = self._device.recorded
        return copy

    def tolist(self):
        assert not self.is_cuda, "waits for the device"
        assert self._device.passed >= self._needs, "read before it was there"
        return self._values


def test_tensors_on_the_device_are_read_with_their_step(device, bench, prof):
    with run_of(prof):
        with prof.step_timing_ctx():
            bench.work(5)
            prof.set_step_seq_len(DeviceTensor(device, [600, 700]))
            prof.set_step_tokens(DeviceTensor(device, [3]))
            prof.set_step_speculation(4, DeviceTensor(device, [1, 0]))
        assert device.syncs == 0
    summary = bench.summary()
    assert summary["stats"]["tokens_total"] == 3
    assert summary["decode_length_buckets"]["stats"]["[512,1024)"]["steps"] == 1
    assert (summary["speculative"]["proposed"], summary["speculative"]["accepted"]) == (8, 1)
    assert summary["problems"] == {}


def test_tokens_on_a_device_are_no_delivery(make):
    device = FakeDevice()
    prof = make(device, strict_sync=False).profiler
    with run_of(prof):
        prof.begin_request("a", prompt_tokens=DeviceTensor(device, [7]))
        prof.request_tokens("a", DeviceTensor(device, [3]))
        prof.request_tokens("a", 2)
        prof.end_request("a")
    assert prof.requests.ended.columns()["tokens"].tolist() == [2]
    assert sum("would wait for it: give a number" in problem for problem in prof.problems.counts) == 2


@pytest.mark.parametrize("broken", ["event", "synchronize", "is_capturing"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_device_that_fails_does_not_stop_the_engine(make, broken, strict, monkeypatch):
    device = FakeDevice()
    bench = make(device, strict_sync=strict)
    prof = bench.profiler
    with run_of(prof):
        step(bench, 5)

        def fail():
            raise RuntimeError("CUDA error: unspecified launch failure")

        monkeypatch.setattr(device, broken, fail)
        done = 0
        for _ in range(3):
            step(bench, 7)
            done += 1
    with run_of(prof):
        step(bench, 7)
    assert done == 3
    assert prof.save_all() is not None
    assert prof.results.totals.steps >= (1 if strict else 0)


def test_cuda_is_chosen_where_torch_uses_it(monkeypatch):
    import torch

    assert device_now(None) is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert isinstance(device_now(None), CudaDevice)
    assert device_now("cpu") is None
    with pytest.raises(ValueError, match='device is "tpu"'):
        Profiler(device="tpu")
