"""The batch of each step, where it changes from step to step: by hand, on all clocks."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from rooflight.inference import cpu_bucket_timer
from rooflight.inference.steps import MOST_BATCHES, UNKNOWN


def steps(bench, each, *, bsz=None):
    """One step for each (batch, KV length, ns); a batch of None is not told."""
    prof = bench.profiler
    prof.begin_run(bsz=bsz)
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
    prof.end_run()


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


def test_batch_sizes_take_bounded_memory(bench):
    for run in range(2):
        first = 1 + run * 200
        steps(bench, [(batch, 1, 1000) for batch in range(first, first + MOST_BATCHES + 10)])
    summary = bench.summary()
    sizes = [each["batch"] for each in summary["batch_sizes"]]
    assert len(sizes) == MOST_BATCHES + 1
    assert sizes[-1] is None
    assert summary["batch_sizes"][-1]["stats"]["steps"] == 2 * (MOST_BATCHES + 10) - sum(
        each["stats"]["steps"] for each in summary["batch_sizes"][:-1]
    )
    assert sum(each["stats"]["steps"] for each in summary["batch_sizes"]) == summary["stats"]["steps"]
    text = f"run 0: more than {MOST_BATCHES} batch sizes: 10 steps of further sizes count as steps of unknown batch"
    assert text in summary["problems"]
    assert bench.profiler.results.cells.at(1, 0).totals.steps == 1
    assert {batch for (batch, _), _ in bench.profiler.results.cells.items()} >= {UNKNOWN}
