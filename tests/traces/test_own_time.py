"""Own time: what runs at the same time shares it, against counting each microsecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import kernel, op, write

from rooflight.sources.traces.file.kineto import load_trace
from rooflight.sources.traces.time.own import OwnTime

NAMES = (
    "compute",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "Memcpy DtoD (Device -> Device)",
    "Memcpy HtoD (Pinned -> Device)",
)
CLASS = (0, 1, 2, 2)
WORK = st.tuples(st.sampled_from(range(4)), st.integers(0, 30), st.integers(0, 20))


def event(number: int, which: int, start: int, length: int) -> dict[str, object]:
    category = "gpu_memcpy" if which > 1 else "kernel"
    return kernel(start, start + length, number, name=NAMES[which], stream=number, cat=category)


@settings(deadline=None, max_examples=80)
@given(st.lists(WORK, min_size=1, max_size=8))
def test_each_instant_is_shared_by_the_first_class_that_works(tmp_path_factory: pytest.TempPathFactory, work) -> None:
    path: Path = tmp_path_factory.mktemp("own") / "trace.json"
    events = [event(number, *each) for number, each in enumerate(work, start=1)]
    trace = load_trace(write(path, [op("aten::mm", 0, 1), *events]))
    found = OwnTime.of(trace)
    expected = np.zeros(len(work))
    for moment in range(60):
        running = [at for at, (_, start, length) in enumerate(work) if start <= moment < start + length]
        first = min((CLASS[work[at][0]] for at in running), default=None)
        mine = [at for at in running if CLASS[work[at][0]] == first]
        expected[mine] += 1000 / max(1, len(mine))
    assert sorted(found.own.tolist()) == pytest.approx(sorted(expected.tolist()), abs=1e-6)
    assert found.crosses.sum() == sum(which == 3 for which, _, _ in work)
