"""``rooflight profile-decode`` end to end: real models in small sizes, what Ctrl-C leaves on disk."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from io import StringIO
from itertools import pairwise

import msgspec
import pytest
from full_disk import full_disk

from rooflight.cli.progress import spinner
from rooflight.front.device import log_progress
from rooflight.inference import saving
from rooflight.studies.inference.generation import job as decode_job
from rooflight.studies.inference.result import SummaryDocument
from rooflight.studies.inference.saving import read_summary

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = ("llama-tiny", "--small", "--batch", 2, "--prompt", 8, "--new", 5, "--runs", 2)


def summary(tmp_path, name="r") -> SummaryDocument:
    return read_summary(tmp_path / "out" / name)


def test_a_run_writes_all_files_and_shows_their_report(profile, tmp_path):
    out = profile(*TINY)
    folder = tmp_path / "out" / "r"
    assert {each.name for each in folder.iterdir()} == {"config.json", "summary.json", "report.md", "steps.csv",
                                                         "trace.json", "requests.csv", "deliveries.csv"}  # fmt: skip
    found = summary(tmp_path)
    assert found.stats.steps == 2 * 4  # the prefill makes the first of 5 tokens
    assert found.stats.tokens_total == 2 * 2 * 4
    assert found.other_phases["prefill"].steps == 2
    assert found.warmup_runs_skipped == 1
    assert not found.problems
    named = sum(found.buckets_model_avg_ms.values())
    assert found.unattributed_model_ms is not None
    assert named + found.unattributed_model_ms == pytest.approx(found.stats.mean_ms)
    assert {"attn.compute", "mlp.down_proj", "lm_head"} <= set(found.buckets_model_avg_ms)
    assert set(found.others_detail["model"]) == {"sampler"}
    assert set(found.buckets_engine_avg_ms) == {"decode", "sampler"}
    workload = found.workload
    assert workload is not None
    assert (workload.target, workload.batch, workload.prompt_tokens, workload.new_tokens) == (
        "llama-tiny (reduced)", 2, 8, 5)  # fmt: skip
    assert workload.parameters == 434_816
    assert "llama-tiny (reduced)" in out
    assert "Model bucket breakdown" in out
    config = json.loads((folder / "config.json").read_text())
    assert config["runner_args"]["new"] == 5


def test_goodput_under_an_objective(profile, tmp_path):
    profile(*TINY, "--slo-ttft-ms", 1e9, "--slo-tpot-ms", 1e-6)
    found = summary(tmp_path).serving
    assert found.requests == 2 * 2
    assert found.goodput.requests_met == 0  # no token comes within a nanosecond


def test_json_on_standard_output_is_the_summary(profile, tmp_path):
    out = profile(*TINY, "--json", "-")
    assert msgspec.json.decode(out, type=SummaryDocument) == summary(tmp_path)


def test_a_draft_model_with_rejection_sampling(profile, tmp_path):
    """Drafts and plain baselines in turns: the baseline counts in the speed-up, and nowhere else."""
    out = profile(*TINY, "--draft", "self:1", "--gamma", 2)
    found = summary(tmp_path)
    assert [(each.meta.label, each.meta.baseline) for each in found.runs] == [("baseline", True), ("decode", False)] * 2
    assert found.stats.tokens_total == 2 * 2 * 4
    assert set(found.buckets_engine_avg_ms) == {"draft", "verify", "sampler", "postproc"}
    assert "draft" in found.others_detail["model"]
    rounds = found.speculative
    assert rounds.proposed is not None
    assert rounds.accepted is not None
    assert rounds.speedup_measured is not None
    assert rounds.speedup_predicted is not None
    assert found.stats.steps == sum(each.stats.steps for each in found.runs if not each.meta.baseline)
    assert found.stats.tokens_total == rounds.accepted + rounds.rounds + rounds.rounds_without_draft
    assert "the first 1 of its layers" in out
    assert "Weights are random" in out


def test_an_assumed_acceptance_is_named(profile, tmp_path):
    out = profile(*TINY, "--draft", "llama-tiny-draft", "--acceptance", 1, "--gamma", 3, "--no-baseline")
    found = summary(tmp_path)
    assert found.speculative.acceptance_rate == 1
    assert found.stats.steps == 2  # 4 tokens a step, all that are asked for
    assert found.speculative.speedup_measured is None
    assert "accepted at random, each with probability 1" in out


@pytest.mark.usefixtures("calibrated")
@pytest.mark.parametrize("draft", [(), ("--draft", "self:1", "--gamma", 2)])
def test_buckets_have_bounds(profile, tmp_path, draft):
    """A step is recorded at the mean KV length of the measured ones, with the cache and the draft that they had."""
    out = profile(*TINY, *draft, "--bounds", "--all")
    found = summary(tmp_path)
    assert not found.problems
    assert [each.batch for each in found.bounds.recorded] == [2]
    rows = {row.name: row for row in (*found.buckets.model, *found.buckets.engine)}
    for name in ("attn.compute", "mlp.gate_up_proj", "lm_head", "verify" if draft else "decode"):
        bound = rows[name].op_bound_ms
        assert bound is not None
        assert 0 < bound < rows[name].exclusive_ms
    assert "op bound of a step" in out


def test_the_trace_has_steps_and_buckets_in_order(profile, tmp_path):
    profile(*TINY)
    events = json.loads((tmp_path / "out" / "r" / "trace.json").read_text())["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert rows == {1: "steps (host)", 2: "model buckets (host)", 3: "engine buckets (host)"}
    spans = [each for each in events if each["ph"] == "X"]
    steps = [each for each in spans if each["tid"] == 1]
    assert [each["name"] for each in steps] == ["prefill 0", *(f"step {number}" for number in range(1, 5))] * 2
    assert steps[1]["args"] == {"run": 1, "label": "decode", "batch": 2, "tokens": 2, "kv_length": 8.0}
    assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(steps))
    for step in steps:  # buckets lie in their step, and are properly nested
        inside = [each for each in spans if each["tid"] == 2 and step["ts"] <= each["ts"] < step["ts"] + step["dur"]]
        assert {"lm_head", "attn.compute"} <= {each["name"] for each in inside}
        ends = [step["ts"] + step["dur"]]
        for each in sorted(inside, key=lambda each: (each["ts"], -each["dur"])):
            while each["ts"] >= ends[-1] - 1e-6 and len(ends) > 1:
                ends.pop()
            assert each["ts"] + each["dur"] <= ends[-1] + 1e-6
            ends.append(each["ts"] + each["dur"])


# -- stopped, broken --------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_measured(profile_ends, tmp_path, monkeypatch):
    """Stopped after the third token of the second measured run: 4 steps of the first and 2 of the second are there."""
    real = decode_job._teller

    def stopping(progress, what):
        told = real(progress, what)

        def stop(tokens, of):
            if what.startswith("run 2") and tokens == 3:
                raise KeyboardInterrupt
            told(tokens, of)

        return stop

    monkeypatch.setattr(decode_job, "_teller", stopping)
    code, out, err = profile_ends(*TINY)
    assert code == 130
    assert not out
    assert err.strip() == f"rooflight: interrupted: 6 measured steps are in {tmp_path / 'out' / 'r'}"
    assert summary(tmp_path).stats.steps == 6
    assert (tmp_path / "out" / "r" / "trace.json").is_file()


def test_another_rank_than_0_runs_and_writes_nothing(profile_ends, tmp_path, monkeypatch):
    """As under torchrun: every rank of a parallel engine has to run, rank 0 reports."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert profile_ends(*TINY) == (0, "", "")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("every_s", "lines"), [(2.5, ["token 3 of 6, 3 s", "token 6 of 6, 6 s"]), (100.0, [])])
def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch, caplog, every_s, lines):
    seconds = iter(range(100))
    monkeypatch.setattr(decode_job.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(decode_job, "_LOGGED_EVERY_S", every_s)
    told = decode_job._teller(log_progress, "run 1 of 3")
    for token in range(1, 7):
        told(token, 6)  # a second each
    assert [record.getMessage() for record in caplog.records] == [f"rooflight: run 1 of 3: {line}" for line in lines]
    assert {record.levelname for record in caplog.records} <= {"WARNING"}


def test_progress_is_drawn_when_it_is_told_and_never_by_a_thread(monkeypatch):
    class Terminal(StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    threads = threading.active_count()
    with spinner(redraws=False) as say:
        say("run 1 of 3: token 5 of [b]8[/b]")
        assert threading.active_count() == threads
        assert "run 1 of 3: token 5 of [b]8[/b]" in terminal.getvalue()


def test_a_hostile_run_name_stays_in_its_folder(profile, tmp_path):
    profile(*TINY, name="../../evil\n name")
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["_._.._evil_ name"]


def test_a_full_disk_keeps_the_results_elsewhere(profile_ends, tmp_path, monkeypatch):
    """The folder is made, and each write to it fails; another file system has room."""
    real = saving.write_all

    def full(folder, contents):
        if tmp_path in folder.parents:
            raise OSError(28, "No space left on device", str(folder))
        real(folder, contents)

    monkeypatch.setattr(saving, "write_all", full)
    elsewhere = tmp_path.with_name(f"{tmp_path.name}_elsewhere")
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    code, out, said = profile_ends(*TINY)
    assert "No space left on device" in " ".join(out.split())
    (folder,) = elsewhere.iterdir()
    assert code == 1
    assert said.endswith(f"rooflight: {tmp_path / 'out' / 'r'} cannot be written: results are in {folder}\n")
    assert {"summary.json", "report.md", "config.json", "trace.json"} <= {each.name for each in folder.iterdir()}
    assert read_summary(folder).meta.output_dir == str(folder)


def test_results_that_can_be_written_nowhere_are_shown(profile_ends, tmp_path):
    with full_disk():
        code, shown, said = profile_ends(*TINY)
    assert "Model bucket breakdown" in shown
    assert code == 1
    assert said.endswith("r cannot be written: results are nowhere\n")
    assert not list((tmp_path / "out").glob("r/*"))


def test_without_transformers(profile_ends, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, err = profile_ends(*TINY)
    assert code == 2
    assert 'pip install "rooflight[hf]"' in err


def test_a_transformers_config(profile, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32,
              "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    profile(tmp_path / "config.json", *TINY[2:], "--temperature", 0, "--cache", "static")
    found = summary(tmp_path)
    assert found.workload is not None
    assert (found.workload.model_class, found.workload.cache) == ("GPT2LMHeadModel", "static")


def test_the_first_screen_says_where_the_time_goes_and_all_says_the_rest(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = profile(*TINY).rstrip().splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 100
    assert "on average" in lines[2]
    assert lines[0] == "Decode steps: r"
    text = "\n".join(lines)
    assert text.count("\n  attn.compute ") == 1
    monkeypatch.setenv("COLUMNS", "80")
    whole = profile(*TINY, "--all")
    assert max(map(len, whole.splitlines())) <= 80
    for title in ("Per-run overview", "Decode-length buckets", "Serving: latency of requests", "Global summary"):
        assert title in whole
        assert title not in text
