"""The batch of each step, where it changes from step to step: by hand, on all clocks."""

from __future__ import annotations

import csv
from collections import Counter

import numpy as np
import pytest
import torch
from fake_clock import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_runs import quiet, run_of

from rooflight.inference import cpu_bucket_timer


def steps(bench, each, *, bsz=None):
    """One step for each (batch, KV length, ns); a batch of None is not told."""
    prof = bench.profiler
    with run_of(prof, bsz=bsz):
        for batch, length, ns in each:
            with prof.step_timing_ctx():
                if batch is not None:
                    prof.set_step_batch(batch)
                if length is not None:
                    prof.set_step_seq_len(length)
                prof.set_step_tokens(1)
                with cpu_bucket_timer("decode"):
                    bench.work(ns)
        bench.catch_up()


def test_steps_are_kept_apart_by_their_own_batch(bench):
    steps(bench, [(1, 10, 1_000_000), (3, 600, 5_000_000), (3, 20, 3_000_000), (None, 30, 2_000_000)], bsz=4)
    summary = bench.summary()
    found = {each["batch"]: each["stats"] for each in summary["batch_sizes"]}
    assert list(found) == [1, 3, 4]  # 4 is the run's: one step told none
    assert [found[size]["steps"] for size in found] == [1, 2, 1]
    assert found[3]["mean_ms"] == found[3]["p50_ms"] == 4.0  # (5 + 3) / 2
    assert found[3]["throughput_tok_s"] == pytest.approx(2 / 8e-3)
    assert summary["runs"][0]["meta"]["batch_mean"] == (1 + 3 + 3 + 4) / 4
    assert summary["runs"][0]["meta"]["bsz"] == 4
    splits = [
        (split["batch"], split["kv_bin"], split["mean_ms"], split["kv_length_mean"])
        for split in summary["bucket_splits"]
        if split["domain"] == "engine"
    ]
    assert splits == [(1, "[0,512)", 1, 10), (3, "[0,512)", 3, 20), (3, "[512,1024)", 5, 600), (4, "[0,512)", 2, 30)]
    with (bench.profiler.out_dir / "steps.csv").open() as file:
        assert [row["batch"] for row in csv.DictReader(file)] == ["1", "3", "3", "4"]
    report = bench.report()
    assert "## Decode steps by batch size" in report
    assert "| 0 | decode | 2.75 |" in report
    # bins without a step take no row
    assert "1024" not in report.split("## Decode-length buckets")[1].split("##")[0].replace("[512,1024)", "")


def test_one_batch_size_needs_no_table(bench):
    steps(bench, [(None, 10, 1000)] * 2, bsz=4)
    assert [each["batch"] for each in bench.summary()["batch_sizes"]] == [4]
    assert "by batch size\n" not in bench.report()
    assert "| 0 | decode | 4 |" in bench.report()


def test_a_list_of_kv_lengths_has_one_for_each_sequence(bench):
    lengths = [[7, 9], np.array([1, 2, 3]), torch.tensor([4]), 5, [1, 2, 3, 4]]
    steps(bench, [(None, each, 1000) for each in lengths[:4]] + [(2, lengths[4], 1000)])
    assert [(each["batch"], each["stats"]["steps"]) for each in bench.summary()["batch_sizes"]] == [
        (1, 1),
        (2, 2),  # what the step says counts more than its lengths, and that is noted
        (3, 1),
        (None, 1),
    ]
    assert any("4 KV lengths for a batch of 2: give set_step_batch()" in text for text in bench.summary()["problems"])


@pytest.mark.parametrize("value", [0, -1, float("nan"), 1.5, "3", [1, 2], True, {}])
def test_a_batch_that_cannot_be_is_named(bench, value):
    steps(bench, [(value, 1, 1000)], bsz=6)
    summary = bench.summary()
    assert [each["batch"] for each in summary["batch_sizes"]] == [6]
    assert any(text.startswith("set_step_batch: ") for text in summary["problems"])


def test_steps_of_unknown_kv_length_are_counted_and_named(bench):
    steps(bench, [(1, None, 1000), (1, None, 1000), (1, 5, 1000)])
    summary = bench.summary()
    assert summary["decode_length_buckets"]["stats"]["unbinned"]["steps"] == 2
    assert summary["decode_length_buckets"]["steps_without_length"] == 2
    assert "2 steps have no KV length, since set\\_step\\_seq\\_len() gave none" in bench.report()
    assert "unbinned: steps without a KV length, or below the first bin." in bench.report()


STEP = st.tuples(
    st.none() | st.integers(1, 5), st.none() | st.integers(0, 2000), st.sampled_from(["decode", "prefill", "mixed"]),
    st.integers(1, 10**6), st.booleans(),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.none() | st.integers(1, 5), st.lists(STEP, max_size=6)), min_size=1, max_size=4))
def test_however_steps_are_divided_they_sum_to_all_of_them(tmp_path_factory, runs):
    clock = FakeClock()
    prof = quiet(tmp_path_factory.getbasetemp() / "sums", engine_profiling=True, clock=clock.now_ns)
    expected: Counter[tuple[int | None, str]] = Counter()
    for bsz, steps_of_run in runs:
        with run_of(prof, bsz=bsz):
            for batch, length, phase, ns, bucket in steps_of_run:
                with prof.step_timing_ctx():
                    prof.set_step_phase(phase)
                    if batch is not None:
                        prof.set_step_batch(batch)
                    if length is not None:
                        prof.set_step_seq_len(length)
                    with prof.cpu_bucket_timer("decode" if bucket else "sampler"):
                        clock.time_ns += ns
                    clock.time_ns += 1
                expected[batch or bsz, phase] += ns + 1
    summary = prof.summary()
    for batch in {batch for batch, _ in expected}:
        of_batch = [each.stats for each in summary.batch_sizes if each.batch == batch]
        assert sum(round(each.time_total_ms * 1e6) for each in of_batch) == expected[batch, "decode"]
        splits = [each for each in summary.bucket_splits if each.batch == batch]
        assert sum(round(each.steps * each.mean_ms * 1e6) for each in splits) == sum(
            ns for (size, _), ns in expected.items() if size == batch
        )
        for each in splits:
            assert sum(each.buckets_avg_ms.values()) + each.unattributed_ms == pytest.approx(each.mean_ms)
    by_bin = summary.decode_length_buckets.stats.values()
    assert (
        sum(each.steps for each in by_bin)
        == summary.stats.steps
        == sum(each.stats.steps for each in summary.batch_sizes)
    )
    phases = sum(each.time_total_ms for each in summary.other_phases.values())
    assert summary.stats.time_total_ms + phases == pytest.approx(summary.wall.host_steps_ms)
