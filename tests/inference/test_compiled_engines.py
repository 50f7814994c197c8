"""Timers inside compiled code change nothing in it: one graph, compiled once, timed as a whole from outside."""

from __future__ import annotations

import pytest
import torch
from measured_runs import run_of
from torch._dynamo.testing import CompileCounter

from rooflight.inference import attention_compute_timer, cpu_bucket_timer, cuda_bucket_timer, rope_compute_timer


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_compiled_step_is_one_graph_compiled_once(prof, fullgraph):
    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=fullgraph)
    def step(x):
        with cuda_bucket_timer("embed"):
            x = x + 1
        with attention_compute_timer(), rope_compute_timer():
            x = x * 2
        with cpu_bucket_timer("sampler"):
            return x * 3

    assert step(torch.ones(3)).tolist() == [12, 12, 12]  # (1 + 1) * 2 * 3, before a step is measured
    with run_of(prof, bsz=1):
        for _ in range(3):
            with prof.step_timing_ctx(), cuda_bucket_timer("decoder"):
                assert step(torch.ones(3)).tolist() == [12, 12, 12]
    assert step(torch.ones(3)).tolist() == [12, 12, 12]
    assert counter.frame_count == 1
    assert prof.results.totals.buckets["model"].calls == {"decoder": 3}
    torch._dynamo.reset()


def test_what_runs_eagerly_around_a_compiled_part_is_timed(prof):
    torch._dynamo.reset()
    inner = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
    with run_of(prof, bsz=1), prof.step_timing_ctx():
        for _ in range(2):
            with cuda_bucket_timer("mlp.act"):
                inner(torch.ones(3))
    assert prof.results.totals.buckets["model"].calls == {"mlp.act": 2}
    torch._dynamo.reset()
