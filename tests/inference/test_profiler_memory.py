"""Memory does not grow with steps, on either clock."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from fake_device import FakeDevice

from rooflight.inference import cpu_bucket_timer, cuda_bucket_timer
from rooflight.inference.reservoir import Reservoir
from rooflight.inference.serving import GAP_COLUMNS, REQUEST_COLUMNS
from rooflight.inference.steps import Samples


@pytest.mark.parametrize("kind", ["cpu", "device"])
def test_steps_leave_nothing_behind(make, kind, monkeypatch):
    monkeypatch.setattr("rooflight.inference.steps.Samples.__init__.__defaults__", (100,))
    bench = make(FakeDevice() if kind == "device" else None, strict_sync=False)
    prof = bench.profiler
    prof.begin_run(bsz=1)

    def steps(count):
        for number in range(count):
            with prof.step_timing_ctx():
                with cpu_bucket_timer("decode"), cuda_bucket_timer("embed"):
                    bench.work(5)
                prof.set_step_seq_len(number * 61 % 20_000)  # every bin from the first steps on
                prof.set_step_tokens(1)
            bench.catch_up()
        gc.collect()

    steps(640)  # steps are taken 32 at a time: none is waiting at either look
    tracemalloc.start()
    try:
        steps(320)
        before = tracemalloc.get_traced_memory()[0]
        steps(5120)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 2000
    prof.end_run()
    assert prof.results.totals.steps == 6080
    assert prof.results.samples.kept == Samples().kept + 100


def test_drafts_and_requests_leave_nothing_behind(make, monkeypatch):
    monkeypatch.setattr("rooflight.inference.steps.Samples.__init__.__defaults__", (100,))
    prof = make().profiler
    prof.requests.ended, prof.requests.gaps = Reservoir(REQUEST_COLUMNS, 50), Reservoir(GAP_COLUMNS, 50)
    prof.begin_run(bsz=2)

    def steps(count):
        for number in range(count):
            prof.begin_request(number, prompt_tokens=7)
            prof.request_tokens(number, 1)
            with prof.step_timing_ctx():
                prof.set_step_speculation([4, 4], [number % 5, 2])
                prof.set_step_tokens(number % 5 + 4)
            prof.request_tokens(number, 3)
            prof.end_request(number)
        gc.collect()

    steps(640)
    tracemalloc.start()
    try:
        steps(320)
        before = tracemalloc.get_traced_memory()[0]
        steps(5120)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 2000
    prof.end_run()
    assert prof.results.speculation.data().rounds == 2 * 6080
    assert (prof.requests.ended.seen, prof.requests.ended.kept, prof.requests.unfinished) == (6080, 50, 0)
