"""Buckets are exact to the nanosecond, on the host's clock and on a device's, however they nest, overlap or raise."""

from __future__ import annotations

import threading

import pytest
from fake_device import FakeDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_runs import run_of

from rooflight.inference import attention_compute_timer, cpu_bucket_timer, cuda_bucket_timer, rope_compute_timer
from rooflight.sources.capture.time.buckets import MORE_BUCKETS

NS = 1e-6  # ms


def ms(values: dict[str, int]) -> dict[str, float]:
    return {name: pytest.approx(nanoseconds * NS, rel=1e-12) for name, nanoseconds in values.items()}


def rows(summary, domain="model"):
    return {row["name"]: row for row in summary["buckets"][domain]}


def inclusive(summary, domain="model"):
    return {name: round(row["inclusive_ms"] / NS) for name, row in rows(summary, domain).items() if name[0] != "("}


def test_nested_buckets_count_once(bench, prof, work):
    with run_of(prof, bsz=2), prof.step_timing_ctx():
        work(1)
        with cuda_bucket_timer("attn.qkv_proj"):
            work(10)
            with rope_compute_timer():
                work(100)
            work(1000)
        with attention_compute_timer():
            work(10_000)
        work(100_000)
    summary = bench.summary()
    # 10 + 1000 of its own; 110 + 1000 with rope; 1 + 100,000 of none
    assert summary["buckets_model_avg_ms"] == ms({"attn.qkv_proj": 1010, "attn.rope": 100, "attn.compute": 10_000})
    assert inclusive(summary) == {"attn.qkv_proj": 1110, "attn.rope": 100, "attn.compute": 10_000}
    assert summary["unattributed_model_ms"] == pytest.approx(100_001 * NS)
    assert summary["stats"]["mean_ms"] == pytest.approx(111_111 * NS)
    assert sum(row["share"] for row in summary["buckets"]["model"]) == pytest.approx(1, abs=1e-12)
    assert summary["unattributed_engine_ms"] == pytest.approx(111_111 * NS)  # the other domain saw none of it


def test_a_bucket_that_is_reentered(bench, prof, work):
    with run_of(prof), prof.step_timing_ctx(), cuda_bucket_timer("norm"):
        work(1)
        with cuda_bucket_timer("norm"):
            work(2)
            with cuda_bucket_timer("embed"):
                work(4)
                with cuda_bucket_timer("norm"):
                    work(8)
        work(16)
    summary = bench.summary()
    assert summary["buckets_model_avg_ms"] == ms({"embed": 4, "norm": 27})  # 1 + 2 + 8 + 16
    assert inclusive(summary) == {"embed": 12, "norm": 31}  # 4 + 8; each moment once
    assert rows(summary)["norm"]["calls_per_step"] == 3


def test_overlapping_buckets(bench, prof, work):
    with run_of(prof), prof.step_timing_ctx():
        a, b = cuda_bucket_timer("a"), cuda_bucket_timer("b")
        a.__enter__()
        work(1)
        b.__enter__()
        work(2)
        a.__exit__(None, None, None)
        work(4)
        b.__exit__(None, None, None)
        work(8)
    summary = bench.summary()
    # both open: the time is that of the one opened last
    assert summary["others_detail"]["model"] == ms({"b": 6, "a": 1})
    assert inclusive(summary) == {"b": 6, "a": 3}
    assert summary["buckets_model_avg_ms"] == ms({"others": 7})
    assert summary["unattributed_model_ms"] == pytest.approx(8 * NS)


def fail(work, nanoseconds):
    work(nanoseconds)
    raise KeyError


def test_a_bucket_that_raises(bench, prof, work):
    with run_of(prof):
        with prof.step_timing_ctx():
            with pytest.raises(KeyError), cuda_bucket_timer("embed"), cuda_bucket_timer("norm"):
                fail(work, 3)
            work(5)
        with pytest.raises(KeyError), prof.step_timing_ctx(), cuda_bucket_timer("embed"):
            fail(work, 7)
        with prof.step_timing_ctx():
            work(11)
    summary = bench.summary()
    assert summary["stats"]["steps"] == 3
    assert summary["stats"]["time_total_ms"] == pytest.approx(26 * NS)  # 8 + 7 + 11
    assert {name: row["inclusive_ms"] for name, row in rows(summary).items()} == {
        "embed": pytest.approx(10 * NS / 3),
        "norm": pytest.approx(3 * NS / 3),
        "(unattributed)": pytest.approx(16 * NS / 3),
    }
    assert summary["runs"][0]["meta"]["steps_raised"] == 1
    assert any("ended by an exception" in problem for problem in summary["problems"])


def test_domains_divide_the_step_each_by_itself(bench, prof, work):
    with run_of(prof), prof.step_timing_ctx():
        with cpu_bucket_timer("decode"):
            work(1)
            with cuda_bucket_timer("embed"):
                work(2)
                with cpu_bucket_timer("kv.insert"):
                    work(4)
        with cuda_bucket_timer("engine.sampler"):  # the label has the domain
            work(8)
        with cpu_bucket_timer("model.lm_head"):
            work(16)
    summary = bench.summary()
    assert summary["buckets_model_avg_ms"] == ms({"embed": 6, "lm_head": 16})
    assert summary["buckets_engine_avg_ms"] == ms({"decode": 3, "sampler": 8, "kv.insert": 4})
    assert inclusive(summary, "engine") == {"decode": 7, "sampler": 8, "kv.insert": 4}
    assert summary["unattributed_model_ms"] == pytest.approx(9 * NS)  # 1 + 8
    assert summary["unattributed_engine_ms"] == pytest.approx(16 * NS)


def test_domains_that_overlap_each_other(bench, prof, work):
    with run_of(prof), prof.step_timing_ctx():
        engine, model = cpu_bucket_timer("decode"), cuda_bucket_timer("embed")
        engine.__enter__()
        work(1)
        model.__enter__()
        work(2)
        engine.__exit__(None, None, None)
        work(4)
        model.__exit__(None, None, None)
    summary = bench.summary()
    assert summary["buckets_model_avg_ms"] == ms({"embed": 6})
    assert summary["buckets_engine_avg_ms"] == ms({"decode": 3})


def test_canonical_buckets_come_in_their_order_and_others_by_time(bench, prof, work):
    with run_of(prof), prof.step_timing_ctx():
        for name, nanoseconds in (("lm_head", 1), ("small", 2), ("embed", 4), ("large", 8), ("never", 0)):
            with cuda_bucket_timer(name):
                work(nanoseconds)
    summary = bench.summary()
    assert list(summary["buckets_model_avg_ms"]) == ["embed", "lm_head", "others"]
    assert summary["buckets_model_avg_ms"]["others"] == pytest.approx(10 * NS)
    assert list(summary["others_detail"]["model"]) == ["large", "small", "never"]
    assert rows(summary)["never"]["exclusive_ms"] == 0


def test_a_bucket_left_open_is_closed_with_its_step_and_spoils_no_other(bench, prof, work):
    with run_of(prof):
        with prof.step_timing_ctx():
            left = cuda_bucket_timer("embed")
            left.__enter__()
            work(3)
        work(100)
        left.__exit__(None, None, None)
        with prof.step_timing_ctx():
            left.__exit__(None, None, None)
            work(5)
            with left:
                work(7)
        with left:  # outside of all steps
            work(100)
    summary = bench.summary()
    assert inclusive(summary) == {"embed": 5}  # (3 + 7) / 2
    assert summary["stats"]["time_total_ms"] == pytest.approx(15 * NS)
    assert summary["problems"] == {"bucket embed was left open at the end of a step: it was closed there": 1,
                                   "no step of a run has tokens: call set_step_tokens() in each": 1}  # fmt: skip


def test_a_bucket_in_another_thread_is_named_and_does_no_harm(bench, prof, work):

    def elsewhere():
        for _ in range(3):
            with cpu_bucket_timer("postproc"):
                work(0)

    with run_of(prof), prof.step_timing_ctx(), cpu_bucket_timer("decode"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        work(5)
    summary = bench.summary()
    assert summary["buckets_engine_avg_ms"] == ms({"decode": 5})
    text = "bucket postproc was opened in another thread than its step's: it was not timed there"
    assert summary["problems"][text] == 3


def test_a_step_may_run_in_any_thread(bench, prof, work):

    def step():
        with prof.step_timing_ctx(), cuda_bucket_timer("embed"):
            work(5)

    with run_of(prof):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert bench.summary()["buckets_model_avg_ms"] == ms({"embed": 5})


def test_names_without_end_share_one_bucket(bench, prof, work):
    with run_of(prof):
        for number in range(2000):
            with prof.step_timing_ctx(), cuda_bucket_timer(f"request {number}"):
                work(1)
            bench.catch_up()
    summary = bench.summary()
    detail = summary["others_detail"]["model"]
    assert len(detail) == 257
    assert detail[MORE_BUCKETS] == pytest.approx(1744 * NS / 2000)  # all but the first 256
    assert summary["unattributed_model_ms"] == 0


@pytest.mark.parametrize("label", [None, 3, "", ["a list"], b"bytes"])
def test_what_is_no_name_gets_no_timer(bench, label, prof, work):
    with run_of(prof), prof.step_timing_ctx(), cuda_bucket_timer(label), cpu_bucket_timer(label):
        work(5)
    summary = bench.summary()
    assert summary["buckets_model_avg_ms"] == {}
    assert any("named by a text" in problem for problem in summary["problems"])


PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(["embed", "norm", "x"])),
        st.tuples(st.just("close"), st.integers(0, 5)),
        st.tuples(st.just("work"), st.integers(0, 10**9)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("kind", ["cpu", "device"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(program=PROGRAMS)
def test_any_opening_and_closing_against_a_slow_account(make, kind, program):
    bench = make(FakeDevice() if kind == "device" else None)
    prof = bench.profiler
    open_now: list[str] = []
    own: dict[str, int] = {}
    with_inner: dict[str, int] = {}
    whole = nobody = 0
    with run_of(prof), prof.step_timing_ctx():
        for what, value in program:
            if what == "open":
                cuda_bucket_timer(value).__enter__()
                open_now.append(value)
            elif what == "close" and value < len(open_now):
                name = open_now[value]
                cuda_bucket_timer(name).__exit__(None, None, None)
                del open_now[len(open_now) - 1 - open_now[::-1].index(name)]  # the one opened last
            elif what == "work":
                bench.work(value)
                whole += value
                for name in set(open_now):
                    with_inner[name] = with_inner.get(name, 0) + value
                if open_now:
                    own[open_now[-1]] = own.get(open_now[-1], 0) + value
                else:
                    nobody += value
    sums = prof.results.totals.buckets["model"]
    assert {name: ns for name, ns in sums.exclusive_ns.items() if ns} == {name: ns for name, ns in own.items() if ns}
    assert {k: ns for k, ns in sums.inclusive_ns.items() if ns} == {k: ns for k, ns in with_inner.items() if ns}
    assert sums.unattributed_ns == nobody
    assert sums.whole_ns == whole == prof.results.totals.time_ns
