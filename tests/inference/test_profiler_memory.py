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


@pytest.mark.parametrize("kind", ["cpu", "device"])
def test_a_step_of_endless_buckets_is_bounded_and_said(make, kind, monkeypatch):
    monkeypatch.setattr("rooflight.capture.bucket_log.MOST_NOTES", 2000)
    bench = make(FakeDevice() if kind == "device" else None, strict_sync=False)
    prof = bench.profiler
    prof.begin_run(bsz=1)
    for _ in range(3):
        with prof.step_timing_ctx():
            for _ in range(1500):
                with cuda_bucket_timer("embed"):
                    bench.work(1000)
        bench.catch_up()
        assert prof._meter.notes <= 2100
    prof.end_run()
    summary = bench.summary()
    (text,) = [text for text in summary["problems"] if "buckets were not timed" in text]
    assert text.startswith("run 0: ")
    assert summary["stats"]["steps"] == 3
    timed, rest = summary["buckets_model_avg_ms"]["embed"], summary["unattributed_model_ms"]
    assert timed + rest == pytest.approx(1.5)  # 1,500 of 1 us
    assert 0.3 < timed < 1.1  # in each step about 1,000 fit, if it is read before the next
    assert "buckets were not timed" in bench.report()


def test_steps_of_many_buckets_are_read_before_the_log_is_full(make, monkeypatch):
    monkeypatch.setattr("rooflight.capture.bucket_log.MOST_NOTES", 2000)
    monkeypatch.setattr("rooflight.inference.step_context._NOTES", 500)
    bench = make()
    prof = bench.profiler
    prof.begin_run(bsz=1)
    for _ in range(100):
        with prof.step_timing_ctx():
            for _ in range(400):  # 802 notes: more than two steps would not fit
                with cuda_bucket_timer("embed"):
                    bench.work(1000)
    prof.end_run()
    summary = bench.summary()
    assert summary["buckets_model_avg_ms"]["embed"] == pytest.approx(0.4)
    assert not [text for text in summary["problems"] if "not timed" in text]
