"""Every rank's results beside the others', in rank 0's folder, whoever saves last and whoever never does."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import quiet, run_of

from rooflight.inference import (
    Profiler,
    cuda_bucket_timer,
    merge_ranks,
    register_active_profiler,
    release_active_profiler,
    saving,
)
from rooflight.studies.inference.result import SummaryDocument
from rooflight.studies.inference.saving import spread_of

MS = 1_000_000


@pytest.fixture
def rank(tmp_path, as_rank):
    """Makes the profiler of a rank that measured steps, given as milliseconds in no bucket and in an all-reduce."""

    def make(number: int, *steps: tuple[int, int], world: int = 3) -> Profiler:
        as_rank(number, world)
        clock = FakeClock()
        prof = quiet(tmp_path, model_profiling=True, collect_on_rank0_only=False, clock=clock.now_ns)
        register_active_profiler(prof)
        with run_of(prof, bsz=1):
            for work, communication in steps:
                with prof.step_timing_ctx():
                    clock.time_ns += work * MS
                    with cuda_bucket_timer("comm.all_reduce"):
                        clock.time_ns += communication * MS
                    prof.set_step_tokens(1)
        release_active_profiler()
        return prof

    return make


def summary(folder: Path) -> dict:
    text = (folder / "x" / "summary.json").read_bytes()
    msgspec.json.decode(text, type=SummaryDocument)
    return json.loads(text)


STEPS = {0: ((2, 8), (4, 6)), 1: ((9, 1), (9, 3)), 2: ((5, 5), (5, 5))}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ranks_by_hand_in_whatever_order_they_save(rank, tmp_path, order):
    ranks = {number: rank(number, *steps) for number, steps in STEPS.items()}
    for number in order:
        ranks[number].save_all()
    found = summary(tmp_path)
    assert found["meta"]["rank"] == 0
    assert found["stats"]["mean_ms"] == 10  # rank 0's own
    found = found["ranks"]
    assert found["world"] == 3
    assert found["missing"] == []
    # means: rank 0 (10 + 10) / 2, rank 1 (10 + 12) / 2, rank 2 (10 + 10) / 2
    assert [row["mean_ms"] for row in found["ranks"]] == [10, 11, 10]
    assert [row["communication_ms"] for row in found["ranks"]] == [7, 2, 5]
    assert [row["file"] for row in found["ranks"]] == [f"rank{number}/summary.json" for number in range(3)]
    assert found["latency"] == {
        "ranks": 3, "mean_ms": pytest.approx(31 / 3), "least_ms": 10, "least_rank": 0, "most_ms": 11, "most_rank": 1,
        "spread_ms": 1, "spread_share": pytest.approx(3 / 31)}  # fmt: skip
    waits = found["communication"]
    assert (waits["least_rank"], waits["least_ms"], waits["most_rank"], waits["most_ms"]) == (1, 2, 0, 7)
    assert found["buckets_model"]["comm.all_reduce"] == waits
    assert found["buckets_model"]["(unattributed)"]["most_rank"] == 1  # 9 of 2 to 9
    assert found["buckets_engine"] == {}
    report = (tmp_path / "x" / "report.md").read_text()
    assert "1: 11.0 ms per step on average, 1.00 ms more than rank 0, 9.7%" in report
    assert "2.00 ms per step on rank 1 (waits least), 7.00 ms on rank 0 (waits most)" in report


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_saves_while_another_merges_is_not_lost(rank, tmp_path, monkeypatch, first):
    ranks = [rank(number, (number + 1, 1), world=2) for number in range(2)]
    if first == 1:
        ranks[0].save_all()
    late, write_all = [ranks[1 - first]], saving.write_all

    def interrupted(folder, texts):
        if folder == tmp_path / "x" and late and (tmp_path / "x" / f"rank{first}" / "summary.json").exists():
            late.pop().save_all()  # between what the other rank read and what it writes
        write_all(folder, texts)

    monkeypatch.setattr(saving, "write_all", interrupted)
    ranks[first].save_all()
    found = summary(tmp_path)
    assert not late
    assert found["ranks"]["missing"] == []
    assert [row["mean_ms"] for row in found["ranks"]["ranks"]] == [2, 3]
    assert json.loads((tmp_path / "x" / "rank0" / "summary.json").read_text())["ranks"] is None


def test_a_rank_that_never_saves_is_named(rank, tmp_path):
    for prof in [rank(0, (1, 1)), rank(2, (1, 3))]:
        prof.save_all()
    found = summary(tmp_path)["ranks"]
    assert found["missing"] == [{"rank": 1, "reason": "it saved nothing so far"}]
    assert [row["rank"] for row in found["ranks"]] == [0, 2]
    assert "Rank 1 is not in these results: it saved nothing so far." in (tmp_path / "x" / "report.md").read_text()


def test_another_number_of_ranks_and_folders_that_are_none(rank, tmp_path):
    rank(3, (1, 1), world=4).save_all()
    rank(1, (1, 1), world=4).save_all()
    for name in ("rankx", "rank01", "rank-1", "rank"):
        (tmp_path / "x" / name).mkdir(parents=True)
        (tmp_path / "x" / name / "summary.json").write_text("no JSON")
    rank(0, (1, 1), world=2).save_all()
    found = summary(tmp_path)["ranks"]
    assert [row["rank"] for row in found["ranks"]] == [0]
    assert found["missing"] == [{"rank": 1, "reason": "its summary is of 4 ranks, not of 2"}]


def test_a_broken_file_of_another_rank_stops_nothing(rank, tmp_path):
    (tmp_path / "x" / "rank1").mkdir(parents=True)
    (tmp_path / "x" / "rank1" / "summary.json").write_text('{"schema": "rooflight.inference/1"')
    prof = rank(0, (1, 1))
    assert prof.save_all() == tmp_path / "x"
    assert summary(tmp_path)["stats"]["steps"] == 1
    missing, _ = summary(tmp_path)["ranks"]["missing"]
    assert missing["rank"] == 1
    assert "is no summary.json" in missing["reason"]
    (tmp_path / "x" / "rank0" / "summary.json").write_text("")
    with pytest.raises(ValueError, match="no summary of a rank can be read"):
        merge_ranks(tmp_path / "x")
    assert not prof.problems.counts


def test_ranks_brought_together_by_hand(rank, tmp_path):
    with pytest.raises(ValueError, match=r"has no rank<n>/summary\.json"):
        merge_ranks(tmp_path)
    for prof in [rank(number, (number, 1)) for number in (1, 2)]:  # rank 0 died
        prof.save_all()
    assert not (tmp_path / "x" / "summary.json").exists()
    assert merge_ranks(tmp_path / "x") == tmp_path / "x"
    found = summary(tmp_path)["ranks"]
    assert [each["rank"] for each in found["missing"]] == [0]
    assert found["latency"]["most_rank"] == 2


def test_one_rank_has_no_ranks_section(rank, tmp_path):
    rank(0, (1, 1), world=1).save_all()
    assert summary(tmp_path)["ranks"] is None
    assert not (tmp_path / "x" / "rank0").exists()


def test_drafts_and_requests_of_each_rank(tmp_path, as_rank):
    """Rank 0 accepts 1 of 4, rank 1 accepts 3 of 4; the first token of a request takes 5 and 7 ms."""
    profilers = []
    for number, accepted in ((0, 1), (1, 3)):
        as_rank(number, 2)
        clock = FakeClock()
        prof = quiet(tmp_path, engine_profiling=True, collect_on_rank0_only=False, clock=clock.now_ns)
        for drafts in (False, True):
            with run_of(prof, bsz=1):
                prof.begin_request("a", prompt_tokens=4)
                clock.time_ns += (4 + 2 * number) * MS
                with prof.step_timing_ctx():
                    clock.time_ns += MS
                    prof.set_step_tokens(1 + accepted * drafts)
                    if drafts:
                        prof.set_step_speculation(4, accepted)
                prof.request_tokens("a", 1 + accepted * drafts)
                prof.end_request("a")
        profilers.append(prof)
    for prof in profilers:
        prof.save_all()
    found = summary(tmp_path)
    first, second = found["ranks"]["ranks"]
    assert (first["acceptance_rate"], first["mean_accepted_length"], first["requests"]) == (0.25, 2, 2)
    assert (second["acceptance_rate"], second["mean_accepted_length"], second["requests"]) == (0.75, 4, 2)
    assert (first["ttft_p50_ms"], second["ttft_p50_ms"]) == (5, 7)
    assert (first["speedup_measured"], second["speedup_measured"]) == (2, 4)
    assert found["speculative"]["accepted"] == 1  # outside of ranks all is rank 0's own
    assert found["serving"]["requests"] == 2
    assert "Drafts and requests of each rank" in (tmp_path / "x" / "report.md").read_text()


@given(st.dictionaries(st.integers(0, 63), st.one_of(st.none(), st.floats(0, 1e9)), max_size=8))
def test_a_spread_holds_all_values(values):
    found = spread_of(values)
    known = {rank: value for rank, value in values.items() if value is not None}
    if not known:
        assert found is None
        return
    assert found is not None
    assert known[found.least_rank] == found.least_ms == min(known.values())
    assert known[found.most_rank] == found.most_ms == max(known.values())
    assert found.spread_ms == found.most_ms - found.least_ms >= 0
    assert found.ranks == len(known)


@pytest.mark.slow
def test_a_rank_that_dies_keeps_nobody_waiting(tmp_path):
    here = Path(__file__)
    path = os.pathsep.join([str(here.parents[1]), str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).with_name("dying_worker.py")), str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.splitlines()[-1] == "[0, 9]", done.stderr[-2000:]
    assert float((tmp_path / "seconds").read_text()) < 5
    found = json.loads((tmp_path / "out" / "x" / "summary.json").read_text())
    assert found["stats"]["steps"] == 6  # the sixth ended by an exception
    assert found["runs"][0]["meta"]["steps_raised"] == 1
    assert found["ranks"]["missing"] == [{"rank": 1, "reason": "it saved nothing so far"}]
