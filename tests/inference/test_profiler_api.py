"""The page's names and behaviour: settings, registry, gating, results on disk."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from measured_runs import quiet, run_of

from rooflight import inference
from rooflight.inference import (
    ENGINE_BUCKET_ORDER,
    MODEL_BUCKET_ORDER,
    NullProfiler,
    Profiler,
    ProfilerConfig,
    attention_compute_timer,
    cpu_bucket_timer,
    cuda_bucket_timer,
    get_active_profiler,
    register_active_profiler,
    release_active_profiler,
    rope_compute_timer,
)
from rooflight.studies.inference.result import ConfigDocument
from rooflight.studies.inference.timers import OFF


@pytest.fixture(autouse=True)
def _released():
    yield
    release_active_profiler()


def test_a_measured_run_has_every_field_and_section(tmp_path, capsys):
    prof = Profiler({"output_dir": tmp_path, "run_name": "x", "warmup_runs": 0, "model_profiling": True,
                     "engine_profiling": True})  # fmt: skip
    register_active_profiler(prof)
    with run_of(prof, bsz=4, label="decode"):
        for _ in range(3):
            with prof.step_timing_ctx():
                with rope_compute_timer(), cpu_bucket_timer("sampler"):
                    pass
                prof.set_step_seq_len([1, 2, 3, 4])
                prof.set_step_tokens(4)
    assert "rooflight: run 0 (decode, batch 4): 3 steps, mean" in capsys.readouterr().out
    assert prof.save_config(extra={"note": 1}) == tmp_path / "x" / "config.json"
    assert prof.save_all() == tmp_path / "x"
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert set(summary) >= {"meta", "stats", "buckets_model_avg_ms", "buckets_engine_avg_ms", "runs", "runs_aggregate",
                            "decode_length_buckets", "unattributed_model_ms", "others_detail"}  # fmt: skip
    assert set(summary["meta"]) >= {"rank", "world", "config", "output_dir", "started_at"}
    assert set(summary["stats"]) >= {"steps", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "tokens_total"}
    run = summary["runs"][0]
    assert set(run) >= {"meta", "stats", "buckets_model_avg_ms", "buckets_engine_avg_ms", "decode_length_buckets"}
    assert (run["meta"]["label"], run["meta"]["bsz"]) == ("decode", 4)
    report = (tmp_path / "x" / "report.md").read_text()
    for section in ("Global summary", "Model bucket breakdown", "Engine bucket breakdown", "Per-run overview",
                    "Across runs: mean ± std", "Decode-length buckets"):  # fmt: skip
        assert f"## {section}" in report, section
    config = msgspec.json.decode((tmp_path / "x" / "config.json").read_bytes(), type=ConfigDocument)
    assert config.profiler_cfg.model_profiling
    assert config.extra == {"note": 1}


# -- settings ----------------------------------------------------------------------------------------------------------


def test_defaults():
    assert {name: getattr(ProfilerConfig(), name) for name in ProfilerConfig.__struct_fields__} == {
        "output_dir": "profiler_out",
        "collect_on_rank0_only": True,
        "strict_sync": True,
        "dist_barrier": False,
        "model_profiling": False,
        "engine_profiling": False,
        "num_total_runs": 10,
        "warmup_runs": 1,
        "print_per_run": True,
        "run_name": None,
        "kv_len_reduce": "mean",
        "kv_bins": [0, 512, 1024, 2048, 4096, 8192, 16384],
        "slo_ttft_ms": None,
        "slo_tpot_ms": None,
        "slo_e2e_ms": None,
    }
    assert ProfilerConfig().kv_bins is not ProfilerConfig().kv_bins


def test_arguments_with_and_without_prefix():
    args = SimpleNamespace(prof_warmup_runs=3, warmup_runs=5, model_profiling=True, prof_kv_bins=None, other=1)
    config = ProfilerConfig.from_args(args)
    assert (config.warmup_runs, config.model_profiling) == (3, True)
    assert ProfilerConfig.from_args(args, prefix="p_").warmup_runs == 5
    assert ProfilerConfig.from_args({"x_run_name": "a"}, prefix="x_").run_name == "a"
    assert ProfilerConfig.from_args(None) == ProfilerConfig()
    assert ProfilerConfig.from_args(config) is config


@pytest.mark.parametrize("name", ["backend_profiling", "prof_backend_profiling"])
def test_backend_profiling_is_engine_profiling(name):
    assert ProfilerConfig.from_args({name: True}).engine_profiling
    assert ProfilerConfig.from_args({name: True, "engine_profiling": False}).engine_profiling
    assert ProfilerConfig.from_args({name: False, "engine_profiling": True}).engine_profiling
    assert not ProfilerConfig.from_args({name: False}).engine_profiling


def test_texts_of_a_command_line():
    config = ProfilerConfig.from_args(
        {"strict_sync": "false", "kv_bins": "0, 10,20", "warmup_runs": "2", "prof_slo_ttft_ms": "200"}
    )
    assert config.slo_ttft_ms == 200
    assert (config.strict_sync, config.kv_bins, config.warmup_runs) == (False, [0, 10, 20], 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strict_sync", "perhaps"), ("strict_sync", 2), ("warmup_runs", -1), ("warmup_runs", 1.5),
        ("warmup_runs", float("nan")), ("num_total_runs", "many"), ("num_total_runs", True),
        ("kv_len_reduce", "median"),
        ("slo_ttft_ms", 0), ("slo_tpot_ms", -1), ("slo_e2e_ms", float("nan")), ("slo_e2e_ms", "soon"),
        ("slo_ttft_ms", True), ("slo_ttft_ms", float("inf")), ("slo_ttft_ms", []),
        ("kv_bins", []), ("kv_bins", [5, 1]), ("kv_bins", [1, 1]), ("kv_bins", [-1, 3]), ("kv_bins", 5),
        ("kv_bins", ["x"]), ("output_dir", ""), ("output_dir", 3), ("output_dir", "a\0b"), ("run_name", 3),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        ProfilerConfig.from_args({field: value})


def test_arguments_that_are_none():
    with pytest.raises(TypeError, match="not in int"):
        Profiler(3)


def test_bucket_orders_have_the_pages_names_once():
    assert [name for name in MODEL_BUCKET_ORDER if name in ("embed", "attn.qkv_proj", "attn.qkv_proj.lora",
            "attn.qk_norm", "attn.compute")] == ["embed", "attn.qkv_proj", "attn.qkv_proj.lora", "attn.qk_norm",
            "attn.compute"]  # fmt: skip
    assert {"prefill", "decode", "sampler", "postproc"} <= set(ENGINE_BUCKET_ORDER)
    assert {"mlp.gate_up_proj", "mlp.down_proj", "attn.rope"} <= set(MODEL_BUCKET_ORDER)
    for order in (MODEL_BUCKET_ORDER, ENGINE_BUCKET_ORDER):
        assert len(set(order)) == len(order)


# -- registry and gating -----------------------------------------------------------------------------------------------


both = partial(quiet, model_profiling=True, engine_profiling=True)


def test_the_registry(tmp_path, caplog):
    null = get_active_profiler()
    assert isinstance(null, NullProfiler)
    assert null.disabled
    first, second = both(tmp_path), both(tmp_path)
    register_active_profiler(first)
    register_active_profiler(first)
    assert get_active_profiler() is first
    assert caplog.text == ""
    register_active_profiler(second)
    assert get_active_profiler() is second
    assert "another profiler was active" in caplog.text
    release_active_profiler()
    release_active_profiler()
    assert get_active_profiler() is null
    register_active_profiler(null)
    assert get_active_profiler() is null


@pytest.mark.parametrize("kind", ["null", "enabled"])
def test_calls_take_what_their_signatures_say(tmp_path, kind):
    prof = NullProfiler() if kind == "null" else both(tmp_path)
    for name, function in inspect.getmembers(Profiler, inspect.isfunction):
        if not name.startswith("_"):
            with pytest.raises(TypeError):
                getattr(prof, name)(*[None] * 9)
            with pytest.raises(TypeError):
                getattr(prof, name)(nothing_of_that_name=1)
            taken = list(inspect.signature(function).parameters.values())[1:]
            needed = [None for each in taken if each.default is each.empty]
            if kind == "null" and name != "summary":
                result = getattr(prof, name)(*needed)
                assert result is None or result is OFF or isinstance(result, nullcontext)
    assert prof.problems.counts == {}


def test_the_null_profiler_does_nothing():
    null = get_active_profiler()
    null.begin_run(bsz=1, label="x")
    with null.step_timing_ctx(), null.cuda_bucket_timer("a"), null.cpu_bucket_timer("b"):
        null.set_step_tokens(1)
        null.set_step_seq_len([1])
    null.end_run()
    assert null.save_config() is None
    assert null.save_all() is None
    with pytest.raises(KeyError), null.step_timing_ctx():
        raise KeyError


def test_timers_of_two_profilers_go_to_the_active_one(tmp_path):
    first, second = both(tmp_path, run_name="a"), both(tmp_path, run_name="b")
    for prof in (first, second):
        prof.begin_run()
    register_active_profiler(first)
    with first.step_timing_ctx(), second.step_timing_ctx():
        with cuda_bucket_timer("embed"):
            pass
        register_active_profiler(second)  # in an open step
        with cuda_bucket_timer("norm"):
            pass
    for prof in (first, second):
        prof.end_run()
    assert [list(prof.results.totals.buckets["model"].calls) for prof in (first, second)] == [["embed"], ["norm"]]


def test_timers_are_off_unless_a_step_is_measured_and_the_domain_is_on(tmp_path):
    def off():
        return [timer is OFF for timer in (attention_compute_timer(), rope_compute_timer(), cuda_bucket_timer("x"),
                                           cpu_bucket_timer("x"))]  # fmt: skip

    prof = both(tmp_path, warmup_runs=1, engine_profiling=False)
    assert all(off())
    register_active_profiler(prof)
    assert all(off())
    for warming_up in (True, False):
        with run_of(prof):
            assert all(off())
            with prof.step_timing_ctx():
                assert off() == ([True] * 4 if warming_up else [False, False, False, True])
            assert all(off())
    with pytest.raises(KeyError), OFF:
        raise KeyError


def test_without_bucket_profiling_steps_are_timed_all_the_same(tmp_path):
    prof = quiet(tmp_path)
    register_active_profiler(prof)
    with run_of(prof), prof.step_timing_ctx(), cuda_bucket_timer("x"):
        prof.set_step_tokens(1)
    prof.save_all()
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["stats"]["steps"] == 1
    assert summary["unattributed_model_ms"] is summary["unattributed_engine_ms"] is None
    assert summary["buckets"] == {"model": [], "engine": []}


def test_another_rank_does_nothing_and_writes_nothing(tmp_path, as_rank, capsys):
    as_rank(1, 2)
    prof = both(tmp_path / "out", print_per_run=True)
    assert (prof.rank, prof.world, prof.disabled) == (1, 2, True)
    register_active_profiler(prof)
    assert isinstance(get_active_profiler(), NullProfiler)
    assert prof.step_timing_ctx() is OFF
    prof.end_run()
    with run_of(prof, bsz=-3), prof.step_timing_ctx():
        prof.set_step_tokens("x")
        prof.set_step_seq_len("x")
    assert prof.save_config() is None
    assert prof.save_all() is None
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr().out == ""
    assert prof.problems.counts == {}


def test_every_rank_may_collect_in_a_folder_of_its_own(tmp_path, as_rank):
    as_rank(1, 2)
    prof = both(tmp_path, collect_on_rank0_only=False)
    assert not prof.disabled
    prof.save_all()
    assert (tmp_path / "x" / "rank1" / "summary.json").exists()


@pytest.mark.parametrize("rank", ["-1", "x", ""])
def test_a_rank_that_is_none_is_rank_0(tmp_path, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    assert both(tmp_path).rank == 0


def test_a_python_without_torch_has_the_profiler_too(tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None
from rooflight.inference import Profiler, cpu_bucket_timer, register_active_profiler
prof = Profiler({{"output_dir": {str(tmp_path)!r}, "warmup_runs": 0, "engine_profiling": True}})
register_active_profiler(prof)
prof.begin_run(bsz=1)
with prof.step_timing_ctx(), cpu_bucket_timer("decode"):
    prof.set_step_seq_len([1, 2])
    prof.set_step_tokens(1)
prof.end_run()
assert prof.save_all() is not None and prof.results.totals.steps == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(inference.__all__) <= set(dir(inference))
    with pytest.raises(AttributeError):
        _ = inference.nothing


@pytest.mark.parametrize(("warmup", "total", "allowed"), [(10, 3, False), (3, 3, False), (2, 3, True), (1, 0, True)])
def test_a_profiler_that_would_only_warm_up_is_refused(warmup, total, allowed):
    if allowed:
        assert ProfilerConfig(warmup_runs=warmup, num_total_runs=total).warmup_runs == warmup
    else:
        with pytest.raises(ValueError, match=f"warmup_runs is {warmup} of num_total_runs {total}: no run is left"):
            ProfilerConfig(warmup_runs=warmup, num_total_runs=total)
