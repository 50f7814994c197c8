"""CUDA graphs on a device that stands in for one, with torch's names: what capture shows, and replays timed as one."""

from __future__ import annotations

import pytest
import torch
from fake_device import FakeDevice
from measured_runs import run_of
from torch import nn

from rooflight.inference import Profiler, cuda_bucket_timer


class Graph:
    """``torch.cuda.CUDAGraph`` on the device ``device``: what is queued while it captures runs when it is replayed."""

    device: FakeDevice
    fails = False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self._begun = self.device.queued_ns
        self.device.capturing = True

    def capture_end(self):
        self.device.capturing = False
        self.held_ns = self.device.queued_ns - self._begun
        self.device.queued_ns = self._begun
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")

    def replay(self):
        self.device.work(self.held_ns)


class Work(nn.Module):
    def __init__(self, device: FakeDevice, nanoseconds: int) -> None:
        super().__init__()
        self._work = lambda: device.work(nanoseconds)

    def forward(self):
        self._work()


class Decoder(nn.Module):
    """Two buckets of 10 and 20 ns, and 5 ns of its own."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.q_proj, self.o_proj = Work(device, 10), Work(device, 20)
        self._own = lambda: device.work(5)

    def forward(self):
        self.q_proj()
        self.q_proj()
        self.o_proj()
        self._own()


@pytest.fixture
def device(monkeypatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (), dict(vars(Graph)) | {"device": device}))
    return device


@pytest.fixture
def bench(make, device):
    return make(device, strict_sync=False)


@pytest.fixture
def model(device) -> Decoder:
    return Decoder(device)


def report(bench) -> str:
    return bench.report().replace("\\", "")  # Markdown's escapes


def captured(model) -> Graph:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="global")
    model()
    graph.capture_end()
    return graph


def test_a_graph_captured_before_the_runs_and_replayed_in_steps(device, bench, prof, model):
    prof.attach_model(model)
    graph = captured(model)
    assert not prof.step.measuring
    with run_of(prof, bsz=1):
        recorded = device.recorded
        for _ in range(3):
            with prof.step_timing_ctx():
                graph.replay()
                device.work(7)
                prof.set_step_tokens(1)
            device.finish()
        assert device.recorded - recorded == 3 * 4  # a step's two ends, and the replay's
        assert device.syncs == 0
    summary = bench.summary()
    assert summary["graphs"] == [
        {"graphs": 1, "replays": 3, "buckets": {"attn.compute": 1, "attn.o_proj": 1, "attn.qkv_proj": 2}}
    ]
    assert summary["stats"]["mean_ms"] == pytest.approx(52e-6)  # 10 + 10 + 20 + 5 inside, and 7
    assert summary["others_detail"]["model"] == {"cuda_graph": pytest.approx(45e-6)}
    assert summary["unattributed_model_ms"] == pytest.approx(7e-6)
    assert "attn.compute, attn.qkv_proj (2), attn.o_proj" in report(bench)
    assert "A replay is timed as one, in bucket cuda_graph" in report(bench)
    assert summary["problems"] == {}


def test_graphs_of_others_are_not_shown(device, bench, prof, model):
    """Those that a calibration captures beside an attached profiler hold no bucket, and no step replays them."""
    prof.attach_model(model)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    device.work(3)
    graph.capture_end()
    graph.replay()
    with run_of(prof, bsz=1), prof.step_timing_ctx():
        device.work(7)
    assert bench.summary()["graphs"] == []
    assert "CUDA graphs" not in report(bench)


def test_a_graph_captured_in_a_step(device, bench, prof, model):
    prof.attach_model(model)
    with run_of(prof, bsz=1), prof.step_timing_ctx(), cuda_bucket_timer("embed"):
        device.work(3)
        graph = captured(model)
        graph.replay()
        model()  # eager again
        prof.set_step_tokens(1)
    summary = bench.summary()
    assert [(each["graphs"], each["replays"]) for each in summary["graphs"]] == [(1, 1)]
    assert summary["buckets_model_avg_ms"] == {
        "embed": pytest.approx(3e-6), "attn.qkv_proj": pytest.approx(20e-6), "attn.o_proj": pytest.approx(20e-6),
        "attn.compute": pytest.approx(5e-6), "others": pytest.approx(45e-6)}  # fmt: skip
    assert summary["stats"]["mean_ms"] == pytest.approx(93e-6)
    calls = {row["name"]: row["calls_per_step"] for row in summary["buckets"]["model"]}
    assert calls["attn.qkv_proj"] == 2  # the eager ones


def test_graphs_that_hold_the_same_are_one_row_and_unknown_ones_another(device, bench, prof, model):
    before = captured(model)
    prof.attach_model(model)
    graphs = [captured(model) for _ in range(3)] + [captured(model.q_proj)]
    with run_of(prof, bsz=1), prof.step_timing_ctx():
        for graph in (*graphs, before):
            graph.replay()
        prof.set_step_tokens(1)
    found = bench.summary()["graphs"]
    assert [(each["graphs"], each["replays"], each["buckets"] and sum(each["buckets"].values())) for each in found] == [
        (3, 3, 4), (1, 1, 1), (1, 1, None)]  # fmt: skip
    assert "not known: captured before attach_model()" in report(bench)


def test_a_capture_that_fails_or_never_ends_spoils_no_run(device, bench, prof, model):
    prof.attach_model(model)
    graph = torch.cuda.CUDAGraph()
    graph.fails = True
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.capture_end()
    torch.cuda.CUDAGraph().capture_begin()  # and its program gave up
    device.capturing = False
    with run_of(prof, bsz=1), prof.step_timing_ctx():
        model()
        prof.set_step_tokens(1)
    assert bench.summary()["buckets_model_avg_ms"]["attn.qkv_proj"] == pytest.approx(20e-6)


def test_buckets_that_are_opened_by_hand_are_seen_too_and_all_is_undone(device, bench):
    before = dict(vars(torch.cuda.CUDAGraph))
    prof, other = bench.profiler, Profiler({"model_profiling": True, "output_dir": bench.profiler.out_dir})
    prof.attach_model(nn.Sequential(Decoder(device)))
    other.attach_model(nn.Sequential(Decoder(device)))

    def step():
        with cuda_bucket_timer("embed"), cuda_bucket_timer("embed"), cuda_bucket_timer("engine.decode"):
            device.work(1)

    captured(step)
    assert prof.summary().graphs[0].buckets == {"embed": 2}
    assert not other.summary().graphs  # it is not the active one: none of its buckets was opened, and nothing replayed
    prof.detach()
    other.detach()
    assert dict(vars(torch.cuda.CUDAGraph)) == before
    captured(step)
    assert len(prof.summary().graphs) == 1
