"""Prefill and mixed steps beside decode steps, and steps that turn out to be none, on a clock that the test moves."""

from __future__ import annotations

import csv

import pytest
from measured_runs import run_of

from rooflight.inference import NullProfiler


def step(bench, nanoseconds: int, phase: str | None = None, *, tokens: int = 1, bucket: str = "decode") -> None:
    with bench.profiler.step_timing_ctx():
        if phase:
            bench.profiler.set_step_phase(phase)
        with bench.profiler.cpu_bucket_timer(bucket):
            bench.work(nanoseconds)
        bench.profiler.set_step_tokens(tokens)
        bench.profiler.set_step_seq_len(10)
    bench.catch_up()


def test_statistics_are_of_decode_steps_and_the_wall_time_of_all(bench, prof):
    with run_of(prof, bsz=1):
        step(bench, 50_000_000, "prefill", bucket="prefill")
        step(bench, 4_000_000)
        bench.work(1_000_000)
        step(bench, 6_000_000, "decode")
        step(bench, 20_000_000, "mixed", tokens=3)
    summary = bench.summary()
    assert summary["stats"]["steps"] == 2
    assert summary["stats"]["mean_ms"] == 5  # (4 + 6) / 2
    assert summary["stats"]["p50_ms"] == 5
    assert summary["stats"]["max_ms"] == 6
    assert summary["stats"]["tokens_total"] == 2
    others = summary["other_phases"]
    assert {phase: (stats["steps"], stats["mean_ms"], stats["tokens_total"]) for phase, stats in others.items()} == {
        "prefill": (1, 50, 1),
        "mixed": (1, 20, 3),
    }
    assert summary["wall"]["wall_total_ms"] == 81  # 50 + 4 + 1 + 6 + 20
    assert summary["wall"]["gaps_total_ms"] == 1
    assert summary["wall"]["throughput_tok_s"] == pytest.approx(6 / 0.081)  # 1 + 1 + 1 + 3 tokens
    assert summary["buckets_engine_avg_ms"] == {"decode": 5}
    (decode, rest) = summary["buckets"]["engine"]
    assert (decode["calls_per_step"], decode["share"], rest["exclusive_ms"]) == (1, 1, 0)
    assert summary["decode_length_buckets"]["stats"]["[0,512)"]["steps"] == 2
    splits = {(split["domain"], split["kv_bin"]): split for split in summary["bucket_splits"]}
    assert splits["engine", "prefill"]["buckets_avg_ms"] == {"prefill": 50}
    assert splits["engine", "mixed"]["buckets_avg_ms"] == {"decode": 20}
    assert splits["engine", "[0,512)"]["buckets_avg_ms"] == {"decode": 5}
    (run,) = summary["runs"]
    assert run["other_phases"] == others
    assert run["stats"] == summary["stats"]
    assert "Steps of other phases" in bench.report()
    with (prof.out_dir / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["kv_bin"] for row in rows] == ["8", "0", "0", "9"]  # seven bins, unbinned, prefill, mixed
    assert [row["phase"] for row in rows] == ["prefill", "decode", "decode", "mixed"]


def test_calls_of_buckets_before_the_first_phase_is_known_are_the_only_ones_not_exact(bench, prof):
    with run_of(prof):
        step(bench, 1_000_000)
        step(bench, 1_000_000, "prefill")
        step(bench, 1_000_000, "prefill")
        step(bench, 1_000_000)
    decode = bench.summary()["buckets"]["engine"][0]
    assert decode["calls_per_step"] == 1


def test_what_is_no_step_is_in_the_gap_before_the_next(bench, prof):
    with run_of(prof):
        step(bench, 7_000_000, "idle")  # before the first step: in nothing
        step(bench, 4_000_000)
        bench.work(1_000_000)
        step(bench, 2_000_000, "idle")
        bench.work(3_000_000)
        step(bench, 4_000_000)
        step(bench, 9_000_000, "idle")  # after the last step
    summary = bench.summary()
    assert summary["stats"]["steps"] == 2
    assert summary["wall"]["gaps_total_ms"] == 6  # 1 + 2 + 3
    assert summary["wall"]["wall_total_ms"] == 14
    assert summary["buckets"]["engine"][0]["calls_per_step"] == 1
    assert not summary["problems"]


def test_a_run_of_prefill_alone_is_reported_as_that(bench, prof):
    with run_of(prof):
        step(bench, 1_000_000, "prefill")
    summary = bench.summary()
    assert summary["stats"]["steps"] == 0
    assert summary["stats"]["mean_ms"] is None
    assert summary["buckets_engine_avg_ms"] == {}
    assert "No decode step was measured, but 1 prefill step." in bench.report()


def test_bad_phases_are_noted_and_the_step_stays_a_decode_step(bench, prof):
    NullProfiler().set_step_phase("prefill")
    prof.set_step_phase("prefill")
    with run_of(prof):
        step(bench, 1_000_000, "warmup")
    problems = bench.summary()["problems"]
    assert prof.results.totals.steps == 1
    assert set(problems) == {
        "set_step_phase() outside of a measured step was ignored",
        "set_step_phase: 'warmup' is no phase: give decode, prefill, mixed or idle",
    }


def test_unsaved_steps_count_those_of_every_phase(bench, prof):
    with run_of(prof):
        step(bench, 1_000_000, "prefill")
        step(bench, 1_000_000)
        assert prof.unsaved_steps == 2
    assert prof.unsaved_steps == 2
    prof.save_all()
    assert prof.unsaved_steps == 0
