"""Real work on this CPU: buckets beside torch.profiler's ranges of the same run."""

from __future__ import annotations

import pytest
import torch
from measured_runs import quiet, run_of
from torch.profiler import ProfilerActivity, profile, record_function

from rooflight.inference import (
    cpu_bucket_timer,
    cuda_bucket_timer,
    register_active_profiler,
    release_active_profiler,
)


@pytest.fixture
def prof(tmp_path):
    profiler = quiet(tmp_path, device=None, model_profiling=True, engine_profiling=True)
    register_active_profiler(profiler)
    yield profiler
    release_active_profiler()


def test_buckets_are_within_five_per_cent_of_torch_profilers_ranges(prof):
    torch.manual_seed(0)
    x, norm = torch.randn(256, 512), torch.nn.LayerNorm(512)
    parts = {"attn.qkv_proj": torch.nn.Linear(512, 1536), "mlp.gate_up_proj": torch.nn.Linear(512, 4096)}
    with torch.inference_mode(), run_of(prof, bsz=1), profile(activities=[ProfilerActivity.CPU]) as kineto:
        for _ in range(10):
            with prof.step_timing_ctx(), cpu_bucket_timer("decode"):
                norm(x)
                for name, part in parts.items():
                    with cuda_bucket_timer(name), record_function(name):
                        part(x)
                prof.set_step_tokens(1)
    ranges = {each.key: each.cpu_time_total * 1e3 for each in kineto.key_averages() if each.key in parts}
    sums = prof.results.totals.buckets["model"]
    for name, range_ns in ranges.items():
        assert range_ns > 10 * 100_000  # over 100 µs each
        assert sums.exclusive_ns[name] == pytest.approx(range_ns, rel=0.05)
    assert sums.whole_ns == prof.results.totals.buckets["engine"].whole_ns == prof.results.totals.time_ns
