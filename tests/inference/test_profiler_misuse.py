"""Nothing that a program does wrong stops it, and what was measured is on disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import quiet, run_of

from rooflight.inference import Profiler, cuda_bucket_timer, generate_run_name, register_active_profiler
from rooflight.studies.inference.config import folder_name


def step(prof):
    with prof.step_timing_ctx():
        prof.set_step_tokens(1)


def test_calls_in_the_wrong_order_are_named(prof):
    prof.end_run()
    step(prof)
    prof.begin_run(bsz=1)
    prof.set_step_seq_len(3)
    step(prof)
    prof.begin_run(bsz=1)
    step(prof)
    with prof.step_timing_ctx():
        step(prof)
    summary = json.loads((prof.save_all() / "summary.json").read_text())
    assert [run["stats"]["steps"] for run in summary["runs"]] == [1, 2]
    assert list(summary["problems"]) == [
        "end_run() without begin_run(): nothing was ended",
        "a step outside of a run was not measured: call begin_run() before it",
        "set_step_tokens() outside of a measured step was ignored",
        "set_step_seq_len() outside of a measured step was ignored",
        "begin_run() while a run was open: it was ended there",
        "a step was begun inside a step: only the outer one is measured",
        "save_all() while a run was open: it was ended there",
    ]


def test_end_run_inside_a_step(host, prof):
    prof.begin_run()
    step(prof)
    with prof.step_timing_ctx(), cuda_bucket_timer("embed"):
        host.work(1000)
        prof.end_run()
    with run_of(prof), prof.step_timing_ctx(), cuda_bucket_timer("norm"):
        host.work(7)
    assert [run.stats.steps for run in prof.results.runs] == [1, 1]
    assert prof.results.totals.time_ns == 7
    assert prof.results.totals.buckets["model"].exclusive_ns["norm"] == 7
    assert prof.results.totals.buckets["model"].inclusive_ns.get("embed", 0) == 0


@pytest.mark.parametrize("batch", [0, -1, 1.5, float("nan"), "8", [4]])
def test_a_batch_that_cannot_be_is_unknown(prof, batch):
    with run_of(prof, bsz=batch):
        step(prof)
    known = batch == [4]
    assert prof.results.runs[0].meta.bsz == (4 if known else None)
    assert known or any("a batch of" in problem for problem in prof.problems.counts)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../../etc", "_._.._etc"), ("/etc/passwd", "_etc_passwd"), ("..", "_."), (".", "_"), (".hidden", "_hidden"),
        ("meta-llama/Llama-3 8B", "meta-llama_Llama-3 8B"), ("a\0b\nc\x1b[2J", "a_b_c_[2J"), ("\u202egpj", "_gpj"),
        ("x" * 500, "x" * 120), ("日本", "日本"), ("\ud800", "_"), ("~root", "_root"), ("a\\b:c*?", "a_b_c__"),
    ],
)  # fmt: skip
def test_hostile_names_stay_inside_the_folder(tmp_path, name, folder):
    prof = quiet(tmp_path / "out", run_name=name)
    prof.save_config()
    assert prof.save_all() == prof.out_dir
    assert prof.out_dir == tmp_path / "out" / folder
    assert [path.name for path in tmp_path.rglob("summary.json")] == ["summary.json"]
    json.loads((prof.out_dir / "config.json").read_text())


@given(st.text(max_size=300))
def test_any_name_is_one_folder(name):
    folder = folder_name(name)
    assert folder not in ("", ".", "..")
    assert "/" not in folder
    assert "\0" not in folder
    assert len(folder.encode()) <= 121
    assert folder_name(folder) == folder


def test_generated_names_differ_and_say_what_ran():
    names = {generate_run_name({"model": "meta-llama/Llama-3/", "batch_size": 8}) for _ in range(20)}
    assert len(names) > 15
    assert all(name.startswith("Llama-3_b8_") for name in names)
    assert generate_run_name().startswith("run_")
    assert "/" not in generate_run_name({"model": "../..", "bsz": "/"})


def measured(folder, **settings):
    prof = quiet(folder, **settings)
    with run_of(prof, bsz=1):
        step(prof)
    return prof


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    prof = measured(tmp_path / "file")
    assert "making the output folder" in caplog.text  # before hours of measuring
    folder = prof.save_all()
    assert folder is not None
    assert folder != prof.out_dir
    assert json.loads((folder / "summary.json").read_text())["stats"]["steps"] == 1
    assert f"results are in {folder}" in caplog.text


def test_a_full_disk(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prof = measured(tmp_path / "out")
    from rooflight.records.files import write_all

    def full(path, text):
        if path.is_relative_to(tmp_path / "out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_all(path, text)

    monkeypatch.setattr("rooflight.studies.inference.saving.write_all", full)
    folder = prof.save_all()
    assert folder is not None
    assert (folder / "report.md").exists()
    assert "No space left on device" in caplog.text
    monkeypatch.setattr("rooflight.studies.inference.saving.write_all", lambda *_: full(tmp_path / "out", ""))
    assert prof.save_all() is None  # nowhere at all: said, and no more
    assert prof.save_config() is None


def test_a_closed_standard_output(tmp_path, monkeypatch):
    import io

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    assert measured(tmp_path, print_per_run=True).save_all() is not None
    monkeypatch.setattr("sys.stdout", None)
    assert measured(tmp_path, print_per_run=True).save_all() is not None


def test_arguments_that_json_does_not_have(tmp_path):
    class Odd:
        def __repr__(self):
            raise RuntimeError

    loop: list = []
    loop.append(loop)
    args = {"output_dir": str(tmp_path), "run_name": "x", "odd": Odd(), "loop": loop, "nan": float("nan"),
            "large": 10**30, "set": {1}, "f": len, 3: 4, "text": "\ud800"}  # fmt: skip
    assert Profiler(args).save_config() is not None
    found = json.loads((tmp_path / "x" / "config.json").read_text())["runner_args"]
    assert (found["odd"], found["nan"], found["large"], found["set"]) == ("<Odd>", None, str(10**30), [1])


def test_hostile_labels_show_as_they_are(host, prof):
    run = run_of(prof, bsz=1, label="[x](javascript:1)\n| a |\x1b[2J")
    with run, prof.step_timing_ctx(), cuda_bucket_timer("<script>|\u202e"):
        host.work(1)
    summary = host.summary()
    assert list(summary["others_detail"]["model"]) == ["<script>|\u202e"]
    report = host.report()
    assert "\x1b" not in report
    assert "\u202e" not in report
    assert "<script>" not in report


def test_what_was_not_saved_is_saved_when_the_process_ends(tmp_path):
    code = f"""
from rooflight.inference import Profiler
prof = Profiler({{"output_dir": {str(tmp_path)!r}, "run_name": "x", "warmup_runs": 0}})
prof.begin_run(bsz=1)
with prof.step_timing_ctx():
    prof.set_step_tokens(1)
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["stats"]["steps"] == 1


def test_problems_without_end_are_counted(prof):
    with run_of(prof):
        for number in range(1000):
            with prof.step_timing_ctx():
                prof.set_step_tokens(-1 - number)
    assert len(prof.problems.counts) <= 66
    assert sum(prof.problems.counts.values()) == 1001  # and one for the run without tokens


def test_an_error_inside_the_profiler_does_not_reach_the_engine(monkeypatch, prof):
    with run_of(prof):
        step(prof)

        def fail(*_args, **_kwargs):
            raise RuntimeError("a bug")

        for name in (
            "facts.reduced",
            "facts.token_count",
            "profiler.print_line",
            "profiler.run_line",
            "profiler.save_results",
            "profiler.save_config",
        ):
            monkeypatch.setattr(f"rooflight.inference.{name}", fail)
        monkeypatch.setattr(prof.results, "finish", fail)
        with prof.step_timing_ctx():
            prof.set_step_seq_len([1])
            prof.set_step_tokens(1)
    prof.begin_run(bsz=2)
    assert prof.save_config() is None
    assert prof.save_all() is None
    monkeypatch.setattr("rooflight.studies.inference.profiler.Run", fail)
    prof.begin_run()
    step(prof)
    assert any("a bug" in problem for problem in prof.problems.counts)
    register_active_profiler(None)
