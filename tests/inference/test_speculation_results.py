"""Acceptance, parts of a round and speed-ups: by hand arithmetic, the same on every clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import run_of

from rooflight.reporting.renderers import find
from rooflight.studies.inference.report import report_of
from rooflight.studies.inference.speculation import RoundSums, drafts_of, rounds_data

MS = 1_000_000


def plain(bench, step_ms, *, batch=1, steps=2, length=None):
    prof = bench.profiler
    with run_of(prof, bsz=batch, label="plain"):
        for _ in range(steps):
            with prof.step_timing_ctx():
                bench.work(step_ms * MS)
                prof.set_step_tokens(batch)
                if length is not None:
                    prof.set_step_seq_len(length)


def speculative(bench, rounds, *, batch=1, draft_ms=2, verify_ms=10, other_ms=3, tokens=True):
    """``rounds``: per step what is proposed and accepted."""
    prof = bench.profiler
    with run_of(prof, bsz=batch, label="speculative"):
        for proposed, accepted in rounds:
            with prof.step_timing_ctx():
                with prof.cpu_bucket_timer("draft"):
                    bench.work(draft_ms * MS // 2)
                    with prof.cpu_bucket_timer("kv.insert"), prof.cuda_bucket_timer("embed"):
                        bench.work(draft_ms * MS // 2)
                with prof.cpu_bucket_timer("verify"):
                    bench.work(verify_ms * MS)
                with prof.cpu_bucket_timer("sampler"):
                    bench.work(other_ms * MS)
                prof.set_step_speculation(proposed, accepted)
                if tokens:
                    prof.set_step_tokens((accepted if isinstance(accepted, int) else sum(accepted)) + batch)


def test_every_number_by_hand(bench):
    plain(bench, 10)
    speculative(bench, [(3, 3), (3, 1), (3, 0), (3, 1)])
    found = bench.summary()["speculative"]
    assert (found["proposed"], found["accepted"], found["steps"], found["rounds"]) == (12, 5, 4, 4)
    assert found["acceptance_rate"] == pytest.approx(5 / 12)
    # tested: 3 + 2 + 1 + 2 = 8, accepted: 5
    assert found["alpha"] == pytest.approx(5 / 8)
    assert found["acceptance_by_position"] == [0.75, 0.25, 0.25]  # of 4 rounds: 3, 1, 1
    assert found["acceptance_by_position_if_tested"] == [0.75, pytest.approx(1 / 3), 1]  # 3 of 4, 1 of 3, 1 of 1
    assert found["mean_accepted_draft_tokens"] == 1.25
    assert found["mean_accepted_length"] == 2.25
    assert found["tokens_per_target_forward"] == 2.25  # (5 + 4) / 4
    assert found["rounds_by_accepted"] == [1, 2, 0, 1]
    assert found["rounds_by_depth"] == [0, 0, 0, 4]
    assert (found["draft_ms"], found["verify_ms"], found["overhead_ms"], found["step_ms"]) == (2, 10, 3, 15)
    # 9 tokens in 60 ms: 150 tok/s; 2 tokens in 20 ms: 100 tok/s
    assert found["speedup_measured"] == pytest.approx(1.5)
    # a round yields 1 + 5/8 + 25/64 + 125/512 = 2.259765625 tokens; 10 ms / (2 + 10 + 3) ms
    assert found["speedup_predicted"] == pytest.approx(2.259765625 * 10 / 15)
    # as if verification took a plain step: 10 / (2 + 10)
    assert found["speedup_theorem_3_8"] == pytest.approx(2.259765625 * 10 / 12)
    assert found["reasons"] == {}
    report = bench.report()
    for heading in ("Speculative decoding", "Acceptance by position", "Accepted lengths", "Speed-up by batch size"):
        assert heading in report


def test_pictures(host):
    plain(host, 10)
    host.summary()
    assert report_of(host.profiler.summary()).series == ()
    speculative(host, [(3, 3), (3, 1), (3, 0), (3, 1)])
    report = report_of(host.profiler.summary())
    buckets, lengths, positions = report.series
    (times,) = buckets.lines  # without a recorded step there is no bound to draw
    assert buckets.id == "buckets"
    assert times.y == tuple(sorted(times.y, reverse=True))
    assert lengths.lines[0].y == (1, 2, 0, 1)
    assert positions.lines[0].y == (0.75, 0.25, 0.25)
    assert find("html")(report).count("<svg") == 3 * 2  # for a wide and for a narrow screen


def test_a_batch(host):
    plain(host, 10, batch=2)
    speculative(host, [([2, 2], [2, 0]), ([2, 0], [1, 0])], batch=2)
    found = host.summary()["speculative"]
    assert (found["rounds"], found["rounds_without_draft"]) == (3, 1)
    assert (found["proposed"], found["accepted"]) == (6, 3)
    assert found["mean_accepted_length"] == 2  # 3 / 3 + 1
    assert found["rounds_by_accepted"] == [1, 1, 1]
    # tested 2 + 1 + 2 = 5, accepted 3; a round with a draft yields 1 + 0.6 + 0.36 = 1.96, the one without 1
    assert found["alpha"] == pytest.approx(0.6)
    # plain: 2 tokens in 10 ms. (2 + 0 + 2) + (1 + 0 + 2) = 7 tokens in 30 ms
    assert found["speedup_measured"] == pytest.approx(7 / 30 / (2 / 10))
    assert found["speedup_predicted"] == pytest.approx((3 * 1.96 + 1) / 30 / (2 / 10))
    assert found["tokens_per_target_forward"] == 3.5


def test_batches_are_compared_with_their_own_plain_steps(host):
    for batch, step_ms in ((1, 10), (4, 20)):
        plain(host, step_ms, batch=batch, length=100)
        speculative(host, [([1] * batch, [1] * batch)] * 2, batch=batch, draft_ms=2, verify_ms=10 * batch, other_ms=0)
    speculative(host, [([1] * 8, [1] * 8)], batch=8)  # never ran plainly
    found = host.summary()["speculative"]
    one, four, eight = found["by_batch"]
    assert [each["batch"] for each in found["by_batch"]] == [1, 4, 8]
    # 2 tokens in 12 ms, 1 in 10 ms; 8 tokens in 42 ms, 4 in 20 ms
    assert one["speedup_measured"] == pytest.approx(20 / 12)
    assert four["speedup_measured"] == pytest.approx(40 / 42)
    assert (eight["speedup_measured"], eight["plain_steps"], eight["steps"]) == (None, 0, 1)
    assert one["speedup_predicted"] == pytest.approx(20 / 12)  # everything was accepted: alpha is 1
    assert (one["plain_mean_kv_length"], one["mean_kv_length"]) == (100, None)
    # two steps each: plainly 4 tokens of 10 ms and 16 of 5 ms, with a draft 24 ms and 84 ms
    assert found["speedup_measured"] == pytest.approx((40 + 80) / (24 + 84))


def test_a_tree_is_counted_by_depth(host, prof):
    with run_of(prof, bsz=2), prof.step_timing_ctx():
        host.work(MS)
        prof.set_step_speculation(26, [2, 4], depth=[4, 5])
    found = host.summary()["speculative"]
    assert (found["proposed"], found["accepted"]) == (52, 6)
    assert found["acceptance_by_position"] == [1, 1, 0.5, 0.5, 0]
    assert found["acceptance_by_position_if_tested"] == [1, 1, 0.5, 1, 0]
    assert found["rounds_by_depth"] == [0, 0, 0, 0, 1, 1]
    assert found["alpha"] == pytest.approx(6 / 8)  # each round has one level that it tests and does not accept


def test_drafts_without_tokens_parts_or_plain_steps(make):
    bench = make(engine_profiling=False)
    speculative(bench, [(2, 1)], tokens=False)
    found = bench.summary()["speculative"]
    assert found["acceptance_rate"] == 0.5
    assert set(found["reasons"]) == {
        "tokens_per_target_forward", "draft_ms", "verify_ms", "overhead_ms", "speedup_measured", "speedup_predicted",
        "speedup_theorem_3_8",
    }  # fmt: skip
    assert "set_step_tokens()" in found["reasons"]["speedup_measured"]
    assert "engine_profiling=True" in found["reasons"]["draft_ms"]
    assert "without speculative steps" in found["reasons"]["speedup_predicted"]
    plain(bench, 10)
    found = bench.summary()["speculative"]
    assert found["speedup_measured"] is None
    # alpha: 1 of 2 tested, so that a round yields 1 + 1/2 + 1/4; 10 ms against 15 ms
    assert found["speedup_predicted"] == pytest.approx(1.75 * 10 / 15)


def test_nothing_was_said(host):
    plain(host, 10)
    found = host.summary()["speculative"]
    empty = {"steps": 0, "rounds": 0, "rounds_without_draft": 0, "rounds_by_accepted": [], "rounds_by_depth": [],
             "by_batch": []}  # fmt: skip
    assert {name: value for name, value in found.items() if value is not None} == empty | {"reasons": found["reasons"]}
    assert set(found["reasons"].values()) == {"no step has drafts: call set_step_speculation() in the steps that draft"}
    assert set(found["reasons"]) == {name for name, value in found.items() if value is None}
    assert "Speculative" not in host.report()


def test_prefills_and_what_is_not_speculative_in_a_speculative_run_are_in_no_speedup(bench, prof):
    with run_of(prof, bsz=1, label="plain"):
        for bucket, step_ms in (("prefill", 500), ("decode", 10), ("decode", 10)):
            with prof.step_timing_ctx():
                with prof.cpu_bucket_timer(bucket), prof.cuda_bucket_timer("embed"):
                    bench.work(step_ms * MS)
                prof.set_step_tokens(1)
                prof.set_step_phase(bucket)
    with run_of(prof, bsz=1, label="speculative"):
        with prof.step_timing_ctx():
            bench.work(500 * MS)
            prof.set_step_phase("mixed")
            prof.set_step_speculation(3, 2)
        for drafts in (None, (3, 1), (3, 4), (3, 1)):
            with prof.step_timing_ctx():
                bench.work(20 * MS if drafts else 500 * MS)
                prof.set_step_tokens(1 if drafts is None else 2)
                if drafts:
                    prof.set_step_speculation(*drafts)
    found = bench.summary()["speculative"]
    assert found["steps"] == 2  # not the one whose drafts cannot be, nor the mixed one,
    assert (found["rounds"], found["accepted"]) == (3, 4)  # whose round counts
    assert found["speedup_measured"] == pytest.approx(1)  # 2 tokens in 20 ms, 1 in 10 ms
    assert found["by_batch"][0]["plain_steps"] == 2


def test_steps_that_raise_count(host, prof):
    with run_of(prof, bsz=1):

        def step():
            with prof.step_timing_ctx():
                host.work(5 * MS)
                prof.set_step_speculation(3, 2)
                raise KeyError

        with pytest.raises(KeyError):
            step()
    assert host.summary()["speculative"]["accepted"] == 2


pairs = st.lists(
    st.integers(0, 12).flatmap(lambda depth: st.tuples(st.just(depth), st.integers(0, depth))), min_size=1, max_size=60
)


@given(pairs)
def test_shares_are_shares_and_sum_to_the_whole(rounds):
    sums = RoundSums()
    for depth, accepted in rounds:
        sums.add(drafts_of(depth, accepted, None, batch=1))
    drafted = [(depth, accepted) for depth, accepted in rounds if depth]
    found = rounds_data(sums)
    assert (found["rounds"], found["rounds_without_draft"]) == (len(drafted), len(rounds) - len(drafted))
    if not drafted:
        assert found["acceptance_rate"] is None
        return
    assert 0 <= found["acceptance_rate"] <= found["alpha"] <= 1  # tested tokens are among the proposed ones
    assert sum(found["rounds_by_accepted"]) == sum(found["rounds_by_depth"]) == len(drafted)
    for at, (share, if_tested) in enumerate(
        zip(found["acceptance_by_position"], found["acceptance_by_position_if_tested"], strict=True)
    ):
        deep = [accepted for depth, accepted in drafted if depth > at]
        assert share == pytest.approx(sum(accepted > at for accepted in deep) / len(deep))
        tested = [accepted for accepted in deep if accepted >= at]
        expected = sum(accepted > at for accepted in tested) / len(tested) if tested else None
        assert if_tested == (None if expected is None else pytest.approx(expected))
    assert found["mean_accepted_length"] == pytest.approx(1 + sum(accepted for _, accepted in drafted) / len(drafted))


def test_each_run_has_its_own_statistics_beside_all_plain_steps(host):
    speculative(host, [(3, 3), (3, 1)])  # before the plain run that it is compared with
    plain(host, 10)
    speculative(host, [(2, 0)], draft_ms=4)
    summary = host.summary()
    first, middle, last = (run["speculative"] for run in summary["runs"])
    assert middle is None
    assert (first["proposed"], first["accepted"], first["rounds"], first["step_ms"]) == (6, 4, 2, 15)
    assert (last["proposed"], last["accepted"], last["rounds"], last["draft_ms"]) == (2, 0, 1, 4)
    assert first["alpha"] == pytest.approx(4 / 5)  # tested: 3 + 2
    # plain: a token in 10 ms. 4 accepted and 2 more in 30 ms; 1 in 17 ms
    assert first["speedup_measured"] == pytest.approx(6 * 10 / 30)
    assert last["speedup_measured"] == pytest.approx(1 * 10 / 17)
    assert summary["speculative"]["speedup_measured"] == pytest.approx(7 * 10 / 47)
    assert [row["plain_steps"] for row in first["by_batch"]] == [2]
    assert "Speculative decoding by run" in host.report()


def test_without_plain_steps_each_run_says_so(host):
    speculative(host, [(3, 3)])
    (run,) = host.summary()["runs"]
    assert run["speculative"]["speedup_measured"] is None
    assert "no plain steps" in run["speculative"]["reasons"]["speedup_measured"]
    assert "Speculative decoding by run" not in host.report()
