"""Recorded peaks beside two independent counts of torch's own, for GPT-2, plain and checkpointed."""

from argparse import Namespace
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _untouched() -> None:
    """Torch's own tracker leaves a method in its place."""


def test_the_peak_is_that_of_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2, reduced, plain and checkpointed: within 3 % of what torch's own profiler saw the allocator give out."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import memory_peak

    arguments = Namespace(layers=2, width=64, vocab=200, batch=2, seq=64)
    for checkpointed in (False, True):
        make = memory_peak.training(arguments, warm=1, checkpoint=checkpointed)
        ours, allocator, tracker = memory_peak.recorded(make), memory_peak.allocated(make), memory_peak.tracked(make)
        assert ours.peak_bytes == pytest.approx(allocator, rel=0.03)
        assert ours.peak_bytes == pytest.approx(tracker, rel=0.03)
