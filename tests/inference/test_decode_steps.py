"""Runs, steps, tokens and KV lengths: statistics by hand arithmetic, the same on every clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from measured_runs import run_of

from rooflight.studies.inference.facts import UNBINNED, LengthBins, reduced, token_count
from rooflight.studies.inference.runs import COLUMNS
from rooflight.studies.inference.sums import MOST_SAMPLES, Reservoir

MS = 1_000_000


def run(bench, steps_ms, *, tokens=1, lengths=None, batch=1, gap_ms=0, label="decode"):
    prof = bench.profiler
    with run_of(prof, bsz=batch, label=label):
        for number, step_ms in enumerate(steps_ms):
            if number:
                bench.work(gap_ms * MS)
            with prof.step_timing_ctx():
                bench.work(step_ms * MS)
                if tokens is not None:
                    prof.set_step_tokens(tokens)
                if lengths is not None:
                    prof.set_step_seq_len(lengths[number])


def test_percentiles_mean_and_throughput(bench):
    run(bench, [10, 20, 30, 40, 100], tokens=4, gap_ms=5)
    summary = bench.summary()
    stats = summary["stats"]
    assert stats["steps"] == 5
    assert stats["mean_ms"] == 40  # 200 / 5
    assert (stats["min_ms"], stats["max_ms"]) == (10, 100)
    assert stats["p50_ms"] == 30
    assert stats["p90_ms"] == pytest.approx(76)  # place 0.9 * 4 = 3.6: 40 + 0.6 * 60
    assert stats["p95_ms"] == pytest.approx(88)  # 3.8: 40 + 0.8 * 60
    assert stats["p99_ms"] == pytest.approx(97.6)  # 3.96: 40 + 0.96 * 60
    assert (stats["tokens_total"], stats["time_total_ms"]) == (20, 200)
    assert stats["throughput_tok_s"] == pytest.approx(100)  # 20 in 0.2 s
    wall = summary["wall"]
    assert (wall["wall_total_ms"], wall["gaps_total_ms"], wall["gap_mean_ms"]) == (220, 20, 5)  # 4 gaps of 5
    assert wall["step_gaps_ms"] == 20
    assert wall["throughput_tok_s"] == pytest.approx(20 / 0.22)
    assert summary["samples"] == {"kept": 5, "steps": 5, "exact": True, "file": "steps.csv"}


def test_mean_and_std_across_runs(bench):
    run(bench, [10, 20], tokens=3)
    bench.work(1000 * MS)  # what is between two runs is no gap
    run(bench, [30, 40, 50], tokens=2)
    summary = bench.summary()
    assert [each["stats"]["mean_ms"] for each in summary["runs"]] == [15, 40]
    across = summary["runs_aggregate"]
    # mean (15 + 40) / 2; sample std |15 - 40| / sqrt 2
    assert across["latency_ms"] == {"mean": 27.5, "std": pytest.approx(25 / 2**0.5), "n_runs": 2}
    assert across["tokens_total"] == {"mean": 6, "std": 0, "n_runs": 2}
    # 6 in 30 ms: 200; 6 in 120 ms: 50
    assert across["throughput_tok_s"]["mean"] == pytest.approx(125)
    assert across["throughput_tok_s"]["std"] == pytest.approx(150 / 2**0.5)
    assert summary["stats"]["steps"] == 5
    assert summary["stats"]["mean_ms"] == 30
    assert summary["wall"]["wall_total_ms"] == 150
    assert "± std" in bench.report()


def test_one_run_has_no_deviation(bench):
    run(bench, [10])
    assert bench.summary()["runs_aggregate"]["latency_ms"] == {"mean": 10, "std": None, "n_runs": 1}


def test_steps_by_kv_length(bench):
    run(bench, [1, 2, 3, 4, 5, 6], lengths=[0, 511, 512, 16383, 16384, 10**6])
    run(bench, [7], lengths=[[100, 300]])
    found = bench.summary()["decode_length_buckets"]
    keys = ["[0,512)", "[512,1024)", "[1024,2048)", "[2048,4096)", "[4096,8192)", "[8192,16384)", "[16384,∞)"]
    assert [each["key"] for each in found["bins"]] == keys
    assert found["bins"][0]["range"] == [0, 512]
    assert found["bins"][-1]["range"] == [16384, None]
    assert {key: each["steps"] for key, each in found["stats"].items() if each["steps"]} == {
        "[0,512)": 3, "[512,1024)": 1, "[8192,16384)": 1, "[16384,∞)": 2,
    }  # fmt: skip
    assert found["stats"]["[16384,∞)"]["p50_ms"] == 5.5
    assert found["stats"]["[1024,2048)"]["mean_ms"] is None
    assert found["stats"]["[1024,2048)"]["throughput_tok_s"] is None


def test_steps_of_unknown_or_too_small_length_have_a_bin(make):
    bench = make(kv_bins=[100, 200])
    run(bench, [1, 2, 4], lengths=[99, None, 100])
    found = bench.summary()["decode_length_buckets"]
    assert {key: each["steps"] for key, each in found["stats"].items()} == {"[100,200)": 1, "[200,∞)": 0, UNBINNED: 2}
    assert found["bins"][-1] == {"key": UNBINNED, "range": [None, None]}


def test_buckets_by_batch_and_kv_length(bench, prof):
    for batch, length, nanoseconds in ((1, 10, 1), (1, 600, 2), (8, 10, 4), (1, 10, 8)):
        with run_of(prof, bsz=batch), prof.step_timing_ctx():
            with prof.cuda_bucket_timer("attn.compute"):
                bench.work(nanoseconds)
            bench.work(100)
            prof.set_step_seq_len(length)
            prof.set_step_tokens(1)
    splits = [split for split in bench.summary()["bucket_splits"] if split["domain"] == "model"]
    assert [(each["batch"], each["kv_bin"], each["steps"]) for each in splits] == [
        (1, "[0,512)", 2), (1, "[512,1024)", 1), (8, "[0,512)", 1)
    ]  # fmt: skip
    times = [each["buckets_avg_ms"]["attn.compute"] * MS for each in splits]
    assert times == pytest.approx([4.5, 2, 4])  # (1 + 8) / 2
    assert all(each["unattributed_ms"] * MS == pytest.approx(100) for each in splits)


def test_splits_have_the_order_of_the_other_tables(bench, prof):
    with run_of(prof, bsz=1), prof.step_timing_ctx():
        for name in ("short", "lm_head", "long", "attn.compute", "embed"):
            with prof.cuda_bucket_timer(name):
                bench.work(9 if name == "long" else 1)
        with prof.cpu_bucket_timer("decode"):
            bench.work(1)
    summary = bench.summary()
    model, engine = summary["bucket_splits"]
    assert list(model["buckets_avg_ms"]) == ["embed", "attn.compute", "lm_head", "long", "short"]
    assert [row["name"] for row in summary["buckets"]["model"]][:-1] == list(model["buckets_avg_ms"])
    assert (model["domain"], engine["domain"]) == ("model", "engine")
    assert bench.report().count("others: long, short.") == 1


@pytest.mark.parametrize(
    ("reduction", "expected"),
    # p50: between 2 and 3 of 1 2 3 10; p90: place 2.7: 3 + 0.7 * 7
    [("mean", 4), ("max", 10), ("p50", 2.5), ("p90", 7.9), ("sum", 16)],
)
@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.float16)])
def test_reductions(reduction, expected, kind):
    assert reduced(kind([10, 1, 3, 2]), reduction) == pytest.approx(expected)


@pytest.mark.parametrize("value", [7, 7.0, np.int64(7), np.array(7), torch.tensor(7), torch.tensor([7])])
def test_a_length_by_itself(value):
    assert reduced(value, "p90") == 7


@pytest.mark.parametrize(
    "value", [-1, float("nan"), [], [1, -1], [1, float("inf")], [[1, 2]], "12", ["1"], None, [[1], [2, 3]], 1 << 60, {}]
)
def test_lengths_that_cannot_be(bench, value):
    with pytest.raises((ValueError, TypeError)):
        reduced(value, "mean")
    run(bench, [1, 1], lengths=[value, 5])
    summary = bench.summary()
    assert summary["decode_length_buckets"]["stats"][UNBINNED]["steps"] == 1
    assert summary["decode_length_buckets"]["stats"]["[0,512)"]["steps"] == 1
    assert value is None or any(problem.startswith("set_step_seq_len:") for problem in summary["problems"])


def test_more_lengths_than_the_batch_has_sequences_are_named(bench):
    run(bench, [1, 1], lengths=[[100, 300, 500], [4]], batch=2)  # one sequence may be done, but not one too many
    summary = bench.summary()
    assert summary["decode_length_buckets"]["stats"]["[0,512)"]["steps"] == 2
    found = [problem for problem in summary["problems"] if problem.startswith("set_step_seq_len:")]
    assert found == [
        "set_step_seq_len: 3 KV lengths for a batch of 2: "
        "give set_step_batch() the sequences of the step, or begin_run() those of every step of the run"
    ]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1.5, "3", [1, 2], 10**400, True, torch.ones(2), {}])
def test_tokens_that_cannot_be_are_unknown(bench, value, prof):
    with pytest.raises((ValueError, TypeError)):
        token_count(value)
    with run_of(prof):
        for tokens in (value, 5):
            with prof.step_timing_ctx():
                bench.work(10 * MS)
                prof.set_step_tokens(tokens)
    summary = bench.summary()
    assert summary["stats"]["tokens_total"] == 5
    assert summary["stats"]["steps_without_tokens"] == 1
    assert summary["stats"]["throughput_tok_s"] == pytest.approx(500)  # 5 in the 10 ms of the step that is known
    assert summary["wall"]["throughput_tok_s"] is None
    assert any(problem.startswith("set_step_tokens:") for problem in summary["problems"])
    assert "throughput is over the others" in bench.report()


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), torch.tensor(3), torch.tensor([3])])
def test_token_counts(value):
    assert token_count(value) == 3


def test_steps_without_any_tokens_have_no_throughput(bench):
    run(bench, [10, 20], tokens=None)
    stats = bench.summary()["stats"]
    assert stats["tokens_total"] is None
    assert stats["throughput_tok_s"] is None


def test_steps_of_no_time_divide_by_nothing(bench):
    run(bench, [0, 0])
    summary = bench.summary()
    assert summary["stats"]["mean_ms"] == 0
    assert summary["stats"]["throughput_tok_s"] is None
    assert summary["buckets"]["model"][0]["share"] is None


def test_a_length_is_read_when_it_is_set(bench, prof):
    for lengths in ([1, 1], np.array([1, 1]), torch.tensor([1, 1])):
        with run_of(prof), prof.step_timing_ctx():
            prof.set_step_seq_len(lengths)
            lengths[0] = lengths[1] = 9999  # the engine goes on with it
    assert bench.summary()["decode_length_buckets"]["stats"]["[0,512)"]["steps"] == 3


def test_bins_have_every_length_once():
    bins = LengthBins([0, 1, 5])
    assert [bins.number(length) for length in (0, 0.5, 1, 4.99, 5, 1e9, None)] == [0, 0, 1, 1, 2, 2, 3]


def test_warm_up_runs_are_not_measured(make):
    bench = make(warmup_runs=2)
    for step_ms in (1000, 1000, 7):
        run(bench, [step_ms], lengths=[1])
    summary = bench.summary()
    assert summary["stats"]["mean_ms"] == 7
    assert summary["warmup_runs_skipped"] == 2
    assert [each["meta"]["number"] for each in summary["runs"]] == [2]
    assert summary["problems"] == {}


def test_many_steps_keep_a_random_choice_and_exact_sums():
    samples = Reservoir(COLUMNS, 100)
    for number in range(10_000):
        samples.add((0, number, 0, 0, 0, number, number, -1, -1, -1, 0.0))
    kept = samples.columns()["step_ns"]
    assert samples.kept == 100
    assert len(set(kept.tolist())) == 100
    assert abs(kept.mean() - 5000) < 4 * 10_000 / 12**0.5 / 10  # four standard errors of the mean of 100
    again = Reservoir(COLUMNS, 100)
    for number in range(10_000):
        again.add((0, number, 0, 0, 0, number, number, -1, -1, -1, 0.0))
    assert (again.columns()["step_ns"] == kept).all()


def test_percentiles_of_a_choice_say_so(bench):
    bench.profiler.results.samples = Reservoir(COLUMNS, 3, real="kv_length")
    run(bench, [1, 2, 3, 4])
    assert bench.summary()["samples"]["exact"] is False
    assert MOST_SAMPLES >= 10_000  # below, percentiles are of all steps


def test_raw_samples_are_on_disk(bench):
    run(bench, [1, 2], tokens=3, lengths=[7, None], batch=4)
    with run_of(bench.profiler, bsz=2), bench.profiler.step_timing_ctx():
        bench.work(MS)
        bench.profiler.set_step_speculation([4, 4], [1, 4])
        bench.profiler.set_step_kv_cache(4096)
    bench.summary()
    lines = (bench.profiler.out_dir / "steps.csv").read_text().splitlines()
    assert lines == [
        "run,step,batch,kv_bin,tokens,step_ns,host_ns,proposed,accepted,kv_cache_bytes,kv_length,phase",
        "0,0,4,0,3,1000000,1000000,-1,-1,-1,7.0,decode",
        "0,1,4,7,3,2000000,2000000,-1,-1,-1,nan,decode",
        "1,0,2,7,-1,1000000,1000000,8,5,4096,nan,decode",
    ]
