"""TTFT, TPOT, ITL, end to end, throughput and goodput: by hand arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import run_of

from rooflight.studies.inference.config import ProfilerConfig
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.serving import REQUEST_COLUMNS, Requests
from rooflight.studies.inference.sums import Reservoir

MS = 1_000_000
EMPTY = {"p50": None, "p90": None, "p99": None, "mean": None, "n": 0}


def serve(bench, deliveries, *, then_ms=0):
    """One request: ``deliveries`` are ms after the one before, and tokens."""
    prof = bench.profiler
    name = object()
    prof.begin_request(name)
    for ms, tokens in deliveries:
        bench.work(ms * MS)
        prof.request_tokens(name, tokens)
    bench.work(then_ms * MS)
    prof.end_request(name)


def serve_four(bench):
    serve(bench, [(100, 1), (10, 1), (20, 3)])  # TPOT 30 / 4 = 7.5
    serve(bench, [(200, 1), (40, 1)], then_ms=5)  # TPOT 40
    serve(bench, [(300, 6)])  # a single delivery: no TPOT, no ITL
    serve(bench, [], then_ms=25)


def test_every_number_by_hand(bench, prof):
    bench.work(77 * MS)
    with run_of(prof, bsz=1):
        serve_four(bench)
    summary = bench.summary()
    found = summary["serving"]
    assert (found["requests"], found["tokens"], found["unfinished"]) == (4, 13, 0)
    # p90: place 0.9 * 2 = 1.8: 200 + 0.8 * 100; p99: 1.98
    assert found["ttft_ms"] == {
        "p50": 200, "p90": pytest.approx(280), "p99": pytest.approx(298), "mean": 200, "n": 3
    }  # fmt: skip
    assert found["tpot_ms"] == {
        "p50": pytest.approx(23.75), "p90": pytest.approx(36.75), "p99": pytest.approx(39.675),
        "mean": pytest.approx(23.75), "n": 2,
    }  # fmt: skip
    # 10, 20, 40: p90: place 1.8: 20 + 0.8 * 20
    assert found["itl_ms"] == {
        "p50": 20, "p90": pytest.approx(36), "p99": pytest.approx(39.6), "mean": pytest.approx(70 / 3), "n": 3
    }  # fmt: skip
    # 25, 130, 245, 300
    assert found["e2e_ms"]["p50"] == pytest.approx(187.5)
    assert found["e2e_ms"]["mean"] == 175
    assert found["tokens_per_delivery"] == pytest.approx(13 / 6)
    assert found["duration_s"] == pytest.approx(0.7)
    assert found["requests_per_s"] == pytest.approx(4 / 0.7)
    assert found["output_tok_s"] == pytest.approx(13 / 0.7)
    assert found["goodput"] == dict.fromkeys(found["goodput"])
    assert (found["reason"], found["by_label"]) == (None, {})
    assert found["request_samples"] == {"kept": 4, "seen": 4, "exact": True, "file": "requests.csv"}
    lines = (prof.out_dir / "requests.csv").read_text().splitlines()
    assert lines[0] == ",".join(REQUEST_COLUMNS)
    assert lines[2] == f"0,-1,2,2,{130 * MS},{200 * MS},{240 * MS},{245 * MS}"
    assert lines[4] == f"0,-1,0,0,{675 * MS},-1,-1,{25 * MS}"
    assert (prof.out_dir / "deliveries.csv").read_text() == (
        f"run,gap_ns,tokens\n0,{10 * MS},1\n0,{20 * MS},3\n0,{40 * MS},1\n"
    )
    report = bench.report()
    assert "Serving: latency of requests" in report
    assert "No objectives: set" in report


@pytest.mark.parametrize(
    ("objectives", "met"),
    [
        ({"slo_ttft_ms": 200}, 2),  # 100 and 200; not 300, nor the one without tokens
        ({"slo_ttft_ms": 199.999}, 1),
        ({"slo_tpot_ms": 39}, 3),  # 7.5, and those that have none
        ({"slo_e2e_ms": 245}, 3),
        ({"slo_ttft_ms": 200, "slo_tpot_ms": 39}, 1),
        ({"slo_ttft_ms": 1, "slo_tpot_ms": 1, "slo_e2e_ms": 1}, 0),
    ],
)
def test_goodput(make, objectives, met):
    bench = make(**objectives)
    with run_of(bench.profiler):
        serve_four(bench)
    found = bench.summary()["serving"]["goodput"]
    wanted = dict.fromkeys(("slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms")) | objectives
    assert found == wanted | {"requests_met": met, "share": met / 4, "requests_per_s": pytest.approx(met / 0.7)}
    assert "Objectives: " in bench.report()


def test_runs_of_different_labels_are_apart(host, prof):
    for label, gap_ms in (("plain", 10), ("speculative", 4), ("plain", 20)):
        with run_of(prof, bsz=1, label=label):
            serve(host, [(100, 1), (gap_ms, 1)])
        host.work(5000 * MS)  # between runs: in no duration
    found = host.summary()["serving"]
    assert found["requests"] == 3
    assert found["duration_s"] == pytest.approx(0.334)
    assert list(found["by_label"]) == ["plain", "speculative"]
    plain, speculative = found["by_label"].values()
    assert (plain["itl_ms"]["p50"], plain["tpot_ms"]["mean"], plain["requests"]) == (15, 15, 2)
    assert speculative["itl_ms"] == {"p50": 4, "p90": 4, "p99": 4, "mean": 4, "n": 1}
    assert plain["duration_s"] == pytest.approx(0.23)
    assert "| speculative | ITL | 1 | 4.00 ms |" in host.report()


def test_nobody_was_served(host):
    host.profiler.begin_run()
    host.profiler.end_run()
    found = host.summary()["serving"]
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert found[name] == EMPTY
    assert found["reason"].startswith("no request began in a measured run")
    assert "Serving" not in host.report()
    assert not (host.profiler.out_dir / "requests.csv").exists()


def test_requests_that_do_not_end(make):
    bench = make(slo_ttft_ms=1)
    prof = bench.profiler
    with run_of(prof):
        prof.begin_request("a")
        for _ in range(3):
            bench.work(10 * MS)
            prof.request_tokens("a")
    found = bench.summary()["serving"]
    assert (found["requests"], found["unfinished"], found["duration_s"]) == (0, 1, 0)
    assert found["itl_ms"]["p50"] == 10
    assert found["goodput"]["share"] is None
    assert found["reason"] == "1 request began and none ended: call end_request() for each"
    prof.end_request("a")
    assert bench.summary()["serving"]["requests"] == 1


def test_percentiles_of_a_choice_say_so_and_means_are_of_all(host, prof):
    prof.requests.ended = Reservoir((*REQUEST_COLUMNS, "group"), most=2)
    with run_of(prof):
        for ms in (10, 20, 30, 40):
            serve(host, [(ms, 1)])
    found = host.summary()["serving"]
    assert found["ttft_ms"]["mean"] == 25
    assert found["ttft_ms"]["n"] == 4
    assert found["request_samples"]["exact"] is False
    assert "2 chosen at random of 4" in host.report()


deliveries = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 9)), max_size=8)


@given(st.lists(deliveries, min_size=1, max_size=6))
def test_what_every_request_obeys(served):
    now = [0]
    requests = Requests(lambda: now[0], ProfilerConfig(slo_e2e_ms=10.0), Problems())
    for number, request in enumerate(served):
        requests.begin_request(number, None, (0, "x"), skipped=False)
        for gap_ns, tokens in request:
            now[0] += gap_ns
            requests.deliver(number, tokens)
        requests.end_request(number)
    found = requests.data()
    assert found.requests == len(served)
    assert found.tokens == sum(tokens for request in served for _, tokens in request)
    assert found.itl_ms.n == sum(max(sum(tokens > 0 for _, tokens in request) - 1, 0) for request in served)
    rows = requests.ended.columns()
    known = rows["ttft_ns"] >= 0
    assert (rows["ttft_ns"][known] <= rows["last_ns"][known]).all()
    assert (rows["last_ns"] <= rows["e2e_ns"]).all()
    # gaps of a request sum to the time from first to last delivery
    assert requests.gaps.columns()["gap_ns"].sum() == (rows["last_ns"] - rows["ttft_ns"])[known].sum()
    assert found.goodput.requests_met == sum(rows["e2e_ns"] <= 10 * MS)
    assert found.goodput.share is not None
    assert 0 <= found.goodput.share <= 1
