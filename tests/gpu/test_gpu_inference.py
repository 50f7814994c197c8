"""Decode steps on a GPU: device events, no sync without strict_sync, and times beside those of a plain event pair."""

import pytest

from rooflight.inference import Profiler, cuda_bucket_timer, register_active_profiler, release_active_profiler

pytestmark = pytest.mark.gpu


@pytest.fixture
def work(torch):
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def run(times):
        for _ in range(times):
            x @ x

    run(3)
    torch.cuda.synchronize()
    return run


@pytest.fixture
def profiler(torch, tmp_path):
    def make(**settings):
        base = {"output_dir": tmp_path, "run_name": "x", "warmup_runs": 0, "model_profiling": True,
                "engine_profiling": True, "print_per_run": False}  # fmt: skip
        prof = Profiler(base | settings)
        register_active_profiler(prof)
        return prof

    yield make
    release_active_profiler()


@pytest.mark.parametrize("strict", [True, False])
def test_buckets_share_the_steps_device_time(torch, work, profiler, strict, monkeypatch):
    prof = profiler(strict_sync=strict)
    syncs = []
    real = torch.cuda.synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: (syncs.append(1), real(*args)))
    prof.begin_run(bsz=1)
    before = len(syncs)
    for _ in range(20):
        with prof.step_timing_ctx():
            with cuda_bucket_timer("attn.compute"):
                work(2)
            with cuda_bucket_timer("lm_head"):
                work(6)
            prof.set_step_seq_len(torch.tensor([100, 200], device="cuda"))
            prof.set_step_tokens(torch.tensor(2, device="cuda"))
    in_steps = len(syncs) - before
    prof.end_run()
    assert in_steps == (40 if strict else 0)
    sums = prof.results.totals.buckets["model"]
    assert prof.results.totals.steps == 20
    assert prof.results.totals.tokens == 40
    assert prof.results.runs[0].meta.clock == "device events"
    assert prof.problems.counts == {}
    assert sums.whole_ns == prof.results.totals.time_ns
    assert 2 < sums.exclusive_ns["lm_head"] / sums.exclusive_ns["attn.compute"] < 4.5  # 6 products against 2
    assert sums.unattributed_ns < 0.2 * sums.whole_ns


def test_a_replayed_graph_is_timed_by_the_bucket_around_it(torch, work, profiler):
    prof = profiler(strict_sync=False)
    graph = torch.cuda.CUDAGraph()
    prof.begin_run(bsz=1)
    with torch.cuda.graph(graph):
        work(4)
    for _ in range(5):
        with prof.step_timing_ctx(), cuda_bucket_timer("decoder"):
            graph.replay()
            prof.set_step_tokens(1)
    prof.end_run()
    sums = prof.results.totals.buckets["model"]
    assert prof.problems.counts == {}
    assert sums.exclusive_ns["decoder"] > 0.8 * sums.whole_ns
