"""The recorded peak beside what CUDA's allocator counted."""

from __future__ import annotations

import pytest
import torch

import rooflight as rl
from rooflight.workloads.steps import make_step

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("target", ["gpt2"])
def test_the_peak_of_a_training_step_is_the_allocators(target: str) -> None:
    step = make_step(target, step="train", device="cuda", batch=2, seq=256)
    for _ in range(2):
        step.run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with rl.record(step.model, memory=True) as recording:
        step.run()
    torch.cuda.synchronize()
    memory = rl.analyze(recording.session, "H200-SXM-141GB").memory
    # cuBLAS keeps a workspace that no op shows
    assert memory.peak_bytes == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.03)
