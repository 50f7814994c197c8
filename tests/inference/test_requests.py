"""Requests: begin, deliveries and end by hand arithmetic, and calls that cannot be what the engine means."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from measured_runs import run_of

from rooflight.inference import NullProfiler
from rooflight.studies.inference.serving import REQUEST_COLUMNS
from rooflight.studies.inference.sums import Reservoir


def ended(prof):
    """The requests that ended: rows as dicts."""
    columns = prof.requests.ended.columns()
    del columns["group"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def test_a_request(bench, prof):
    with run_of(prof, bsz=1):
        bench.work(5)
        prof.begin_request("a", prompt_tokens=512)
        bench.work(100)
        prof.request_tokens("a")
        bench.work(10)
        prof.request_tokens("a", 4)
        bench.work(30)
        prof.request_tokens("a", 2)
        bench.work(7)
        prof.end_request("a")
        prof.begin_request("b")
        bench.work(1)
        prof.end_request("b")
    first, second = ended(prof)
    assert first == {
        "run": 0, "prompt_tokens": 512, "tokens": 7, "deliveries": 3, "begin_ns": 0, "ttft_ns": 100, "last_ns": 140,
        "e2e_ns": 147,
    }  # fmt: skip
    assert second == {
        "run": 0, "prompt_tokens": -1, "tokens": 0, "deliveries": 0, "begin_ns": 147, "ttft_ns": -1, "last_ns": -1,
        "e2e_ns": 1,
    }  # fmt: skip
    gaps = prof.requests.gaps.columns()
    assert (gaps["gap_ns"].tolist(), gaps["tokens"].tolist()) == ([10, 30], [4, 2])
    assert prof.problems.counts == {}


def test_requests_of_warm_up_runs_are_not_measured(make):
    bench = make(warmup_runs=1)
    prof = bench.profiler
    with run_of(prof):
        prof.begin_request("a")
        prof.begin_request("b")
        prof.request_tokens("a")
        prof.end_request("a")
    with run_of(prof):
        prof.request_tokens("b")  # began in the warm-up run
        prof.end_request("b")
        prof.begin_request("a")
    prof.end_request("a")  # may be after its run
    assert [row["run"] for row in ended(prof)] == [1]
    assert prof.problems.counts == {}


def test_no_tokens_are_no_delivery(bench, prof):
    prof.begin_run()
    prof.begin_request(0)
    bench.work(10)
    prof.request_tokens(0, 0)
    bench.work(10)
    prof.request_tokens(0, 1)
    prof.end_request(0)
    assert ended(prof)[0]["ttft_ns"] == 20
    assert ended(prof)[0]["deliveries"] == 1


@pytest.mark.parametrize("tokens", [-1, float("nan"), 1.5, "3", None, [1, 2], True])
def test_deliveries_that_cannot_be(prof, tokens):
    prof.begin_run()
    prof.begin_request("a", prompt_tokens=tokens)
    prof.request_tokens("a", tokens)
    prof.end_request("a")
    assert ended(prof)[0]["tokens"] == 0
    assert ended(prof)[0]["prompt_tokens"] == -1
    assert any(problem.startswith("request_tokens: ") for problem in prof.problems.counts)
    assert tokens is None or any(problem.startswith("begin_request: prompt of") for problem in prof.problems.counts)


def test_calls_in_the_wrong_order_are_named(prof):
    prof.begin_request("early")
    prof.request_tokens("early")
    prof.begin_run()
    prof.request_tokens("x")
    prof.end_request("x")
    prof.begin_request("a")
    prof.request_tokens("a")
    prof.begin_request("a")
    prof.end_request("a")
    prof.end_request("a")
    prof.begin_request(["no", "key"])
    prof.end_request({})
    assert [row["tokens"] for row in ended(prof)] == [0]
    assert list(prof.problems.counts) == [
        "begin_request() outside of a run was ignored: call begin_run() before it",
        "request_tokens() of a request that is not open was ignored: begin_request() comes first",
        "end_request() of a request that is not open was ignored: begin_request() comes first",
        "begin_request() of a request that was open: it began anew",
        "begin_request: TypeError: unhashable type: 'list'",
        "end_request: TypeError: unhashable type: 'dict'",
    ]
    none = NullProfiler()
    none.begin_request("a")
    none.request_tokens("a", 1)
    none.end_request("a")


def test_a_clock_that_fails_does_not_reach_the_engine(prof, monkeypatch):
    prof.begin_run()
    prof.begin_request("a")

    def fail():
        raise OSError("no clock")

    monkeypatch.setattr(prof.requests, "_clock", fail)
    prof.begin_request("b")
    prof.request_tokens("a")
    prof.end_request("a")
    assert prof.problems.counts == {
        f"{call}: OSError: no clock": 1 for call in ("begin_request", "request_tokens", "end_request")
    }


def test_open_requests_are_bounded(prof, monkeypatch):
    monkeypatch.setattr("rooflight.studies.inference.serving.MOST_OPEN", 3)
    prof.begin_run()
    for number in range(10):
        prof.begin_request(number)
    assert prof.requests.unfinished == 3
    assert any("requests are open" in problem for problem in prof.problems.counts)


def test_requests_from_several_threads(prof):
    prof.begin_run()

    def serve(first):
        for number in range(first, first + 200):
            prof.begin_request(number)
            prof.request_tokens(number, 2)
            prof.request_tokens(number, 1)
            prof.end_request(number)

    threads = [threading.Thread(target=serve, args=(1000 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended(prof)) == prof.requests.gaps.seen == 800
    assert {row["tokens"] for row in ended(prof)} == {3}
    assert prof.problems.counts == {}


def test_a_reservoir_keeps_whole_rows():
    kept = Reservoir(REQUEST_COLUMNS[:2], most=50)
    for number in range(5000):
        kept.add((number, -number))
    columns = kept.columns()
    assert (kept.seen, kept.kept, kept.exact) == (5000, 50, False)
    assert (columns["run"] == -columns["prompt_tokens"]).all()
    assert len(np.unique(columns["run"])) == 50
