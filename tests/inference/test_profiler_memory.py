"""Memory does not grow with steps, on either clock."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from fake_device import FakeDevice
from measured_runs import run_of

from rooflight.inference import cpu_bucket_timer, cuda_bucket_timer
from rooflight.studies.inference.serving import GAP_COLUMNS, REQUEST_COLUMNS
from rooflight.studies.inference.sums import Reservoir


def grown(work, *, warm, first, then):
    """Bytes that the later work left behind, after as much that fills what is kept."""
    work(warm)
    tracemalloc.start()
    try:
        sizes = []
        for count in (first, then):
            work(count)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return sizes[1] - sizes[0]


@pytest.fixture
def small_reservoirs(monkeypatch):
    monkeypatch.setattr("rooflight.studies.inference.sums.Reservoir.__init__.__defaults__", (100,))


@pytest.fixture
def small_log(monkeypatch):
    monkeypatch.setattr("rooflight.sources.capture.time.bucket_log.MOST_NOTES", 2000)


def keep_50_requests(prof):
    prof.requests.ended, prof.requests.gaps = (
        Reservoir((*columns, "group"), 50) for columns in (REQUEST_COLUMNS, GAP_COLUMNS)
    )


@pytest.mark.usefixtures("small_reservoirs")
@pytest.mark.parametrize("kind", ["cpu", "device"])
def test_steps_leave_nothing_behind(make, kind):
    bench = make(FakeDevice() if kind == "device" else None, strict_sync=False)
    prof = bench.profiler
    with run_of(prof, bsz=1):

        def steps(count):
            for number in range(count):
                with prof.step_timing_ctx():
                    with cpu_bucket_timer("decode"), cuda_bucket_timer("embed"):
                        bench.work(5)
                    prof.set_step_seq_len(number * 61 % 20_000)  # every bin from the first steps on
                    prof.set_step_tokens(1)
                bench.catch_up()

        # steps are taken 32 at a time: none is waiting at either look
        assert grown(steps, warm=640, first=320, then=5120) < 2000
    assert prof.results.totals.steps == 6080
    assert prof.results.samples.kept == 100


@pytest.mark.slow
@pytest.mark.usefixtures("small_reservoirs")
def test_drafts_and_requests_leave_nothing_behind(prof):
    keep_50_requests(prof)
    with run_of(prof, bsz=2):

        def steps(count):
            for number in range(count):
                prof.begin_request(number, prompt_tokens=7)
                prof.request_tokens(number, 1)
                with prof.step_timing_ctx():
                    prof.set_step_speculation([4, 4], [number % 5, 2])
                    prof.set_step_tokens(number % 5 + 4)
                prof.request_tokens(number, 3)
                prof.end_request(number)

        assert grown(steps, warm=640, first=320, then=5120) < 2000
    assert prof.results.speculation.data().rounds == 2 * 6080
    assert (prof.requests.ended.seen, prof.requests.ended.kept, prof.requests.unfinished) == (6080, 50, 0)


@pytest.mark.parametrize("kind", ["cpu", "device"])
@pytest.mark.usefixtures("small_log")
def test_a_step_of_endless_buckets_is_bounded_and_said(make, kind):
    bench = make(FakeDevice() if kind == "device" else None, strict_sync=False)
    prof = bench.profiler
    with run_of(prof, bsz=1):
        for _ in range(3):
            with prof.step_timing_ctx():
                for _ in range(1500):
                    with cuda_bucket_timer("embed"):
                        bench.work(1000)
            bench.catch_up()
            assert prof.step.meter.notes <= 2100
    summary = bench.summary()
    (count,) = [count for text, count in summary["problems"].items() if "bucket was not timed" in text]
    assert 3 * 490 < count < 3 * 1500  # about 1,000 of 1,500 fit, if a step is read before the next
    assert summary["stats"]["steps"] == 3
    timed, rest = summary["buckets_model_avg_ms"]["embed"], summary["unattributed_model_ms"]
    assert timed + rest == pytest.approx(1.5)  # 1,500 of 1 us
    assert 0.3 < timed < 1.1  # in each step about 1,000 fit, if it is read before the next
    assert "bucket was not timed" in bench.report()


@pytest.mark.usefixtures("small_log")
def test_steps_of_many_buckets_are_read_before_the_log_is_full(monkeypatch, make):
    monkeypatch.setattr("rooflight.studies.inference.step._NOTES", 500)
    host = make()
    prof = host.profiler
    with run_of(prof, bsz=1):
        for _ in range(100):
            with prof.step_timing_ctx():
                for _ in range(400):  # 802 notes: more than two steps would not fit
                    with cuda_bucket_timer("embed"):
                        host.work(1000)
    summary = host.summary()
    assert summary["buckets_model_avg_ms"]["embed"] == pytest.approx(0.4)
    assert not [text for text in summary["problems"] if "not timed" in text]


def runs_with_requests(bench, count, names):
    """Each has a step of 5 ms, and a request that gets its token 7 ms after it came; 3 ms are between two."""
    prof = bench.profiler
    for number in itertools.islice(names, count):
        with run_of(prof, bsz=1, label="served"):
            prof.begin_request(number, prompt_tokens=4)
            bench.work(2_000_000)
            with prof.step_timing_ctx():
                with cpu_bucket_timer("decode"):
                    bench.work(5_000_000)
                prof.set_step_tokens(1)
                prof.set_step_seq_len(4)
            prof.request_tokens(number)
            prof.end_request(number)
        bench.work(3_000_000)


def test_runs_after_the_first_ones_share_their_sums(monkeypatch, make):
    monkeypatch.setattr("rooflight.studies.inference.runs.MOST_RUNS", 3)
    host = make()
    runs_with_requests(host, 8, itertools.count())
    summary = host.summary()
    assert (len(summary["runs"]), summary["runs_left_out"]) == (3, 5)
    assert summary["stats"]["steps"] == 8
    assert summary["wall"]["host_steps_ms"] == 40
    assert summary["wall"]["gap_mean_ms"] is None  # one step a run: there is none
    assert summary["runs_aggregate"]["latency_ms"]["n_runs"] == 3
    serving = summary["serving"]
    assert (serving["requests"], serving["duration_s"]) == (8, pytest.approx(8 * 7e-3))
    assert serving["ttft_ms"] == {"p50": 7, "p90": 7, "p99": 7, "mean": 7, "n": 8}
    assert serving["by_label"] == {}
    assert summary["memory"] is not None
    assert "The first 3 runs are shown one by one; 5 more are in all other figures" in host.report()
    assert "8 measured of 10 planned" in host.report()


@pytest.mark.slow
@pytest.mark.usefixtures("small_reservoirs")
def test_runs_leave_nothing_behind(make, monkeypatch):
    monkeypatch.setattr("rooflight.studies.inference.runs.MOST_RUNS", 10)
    host = make()
    keep_50_requests(host.profiler)
    names = itertools.count()
    # runs that are kept take 5,700 B each; Python's free lists fill up
    assert grown(lambda runs: runs_with_requests(host, runs, names), warm=150, first=50, then=1000) < 100_000
    assert host.profiler.results.totals.steps == 1200
