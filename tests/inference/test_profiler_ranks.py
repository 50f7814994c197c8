"""Real ranks over gloo: rank 0 measures, all take part in its barriers, and the barriers are in nobody's time."""

from __future__ import annotations

import json
from pathlib import Path

import forked_ranks
import pytest
from measured_runs import quiet, run_of

from rooflight.studies.inference.step import rank_and_world


def test_barriers_of_a_profiler_that_only_rank_0_collects_in(tmp_path):
    forked_ranks.start(Path(__file__).with_name("barrier_worker.py"), tmp_path, [2])
    found = [json.loads((tmp_path / f"2_{rank}.json").read_text()) for rank in range(2)]
    assert [(each["rank"], each["world"], each["disabled"]) for each in found] == [(0, 2, False), (1, 2, True)]
    assert [each["barriers"] for each in found] == [12, 12]  # 6 steps, before and after each
    assert found[0]["max_ms"] < 40  # its steps do nothing; the other rank's sleep for 50 ms
    assert found[1]["max_ms"] is None
    assert {path.name for path in (tmp_path / "out" / "x").iterdir()} == {"summary.json", "report.md", "steps.csv"}


def test_a_barrier_that_fails_is_the_last(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("rank 1 is gone")

    monkeypatch.setattr("rooflight.studies.inference.step.barrier", fail)
    prof = quiet(tmp_path, dist_barrier=True)
    with run_of(prof, bsz=1):
        for _ in range(3):
            with prof.step_timing_ctx():
                prof.set_step_tokens(1)
    assert prof.results.totals.steps == 3
    assert prof.problems.counts == {"dist_barrier, which is off from now on: RuntimeError: rank 1 is gone": 1}


def test_no_barrier_follows_an_exception(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("rooflight.studies.inference.step.barrier", lambda: calls.append(1))
    prof = quiet(tmp_path, dist_barrier=True)
    with run_of(prof, bsz=1):
        with pytest.raises(KeyError), prof.step_timing_ctx():
            raise KeyError
        assert len(calls) == 1  # the other ranks may be gone: waiting for them would hide the error


def test_the_rank_of_one_process():
    assert rank_and_world() == (0, 1)
