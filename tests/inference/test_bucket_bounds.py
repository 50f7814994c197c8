"""Bounds of buckets: recorded steps beside timed ones. Figures by hand arithmetic, on a device of round figures."""

from __future__ import annotations

import pytest
import torch
from measured_runs import run_of
from some_presets import some
from test_attach_model import FAMILIES, build, hooks

import rooflight as rl
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.hardware.machine.environment import cpu_model
from rooflight.inference import NullProfiler, Profiler, cpu_bucket_timer, cuda_bucket_timer, register_active_profiler
from rooflight.roofline.time_by_place import UNATTRIBUTED
from rooflight.studies.inference.config import Domain
from rooflight.studies.inference.report import report_of

GB = 10**9


def device(*caches: MemoryLevel) -> DeviceSpec:
    """Moves 1 GB/s, so that a bound is its bytes in nanoseconds; taken for the CPU that the tests run on."""
    roofs = Roofs(source="round figures", memory=(*caches, MemoryLevel(name="DRAM", bytes_per_s=1e9)))
    return DeviceSpec(name=cpu_model(), vendor="", architecture="", kind="cpu", datasheet=roofs)


HERE = device()
WITHOUT_CACHE = device(MemoryLevel(name="L2", capacity_bytes=1, bytes_per_s=1e30))


@pytest.fixture
def model() -> torch.nn.Module:
    return build("llama")


def decode(bench, model, *, batch: int, prompt: int, steps: int, ns: int = 1000) -> None:
    """A real generation; each step takes ``ns`` by the test's clock, all of it outside buckets."""
    prof = bench.profiler
    ids = torch.ones((batch, prompt), dtype=torch.int64)
    with torch.inference_mode():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        with run_of(prof, bsz=batch):
            for number in range(steps):
                with prof.step_timing_ctx():
                    prof.set_step_seq_len(prompt + number)
                    prof.set_step_tokens(batch)
                    with cpu_bucket_timer("decode"):
                        logits = model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True).logits
                        bench.work(ns)
                    with cpu_bucket_timer("sampler"):
                        logits.argmax(-1)


def bounds_of(split: dict) -> dict[str, float]:
    return {row["name"]: row["op_bound_ms"] for row in split["bounds"]}


def of_domain(summary: dict, domain: str) -> list[dict]:
    return [split for split in summary["bucket_splits"] if split["domain"] == domain]


@pytest.fixture
def bench(make):
    return make(kv_bins=[0, 16, 32])


def test_the_bytes_of_each_bucket_by_hand(bench, model):
    bench.profiler.attach_model(model)
    decode(bench, model, batch=3, prompt=4, steps=2)  # KV lengths 4 and 5: the mean is 4.5, recorded at 4
    bench.profiler.add_bounds(model, HERE)
    summary = bench.summary()
    (split,) = of_domain(summary, "model")
    assert (split["kv_length_mean"], split["step_bound"]["kv_length"]) == (4.5, 4)
    bounds = bounds_of(split)
    f32, layers, batch, hidden, ffn, kv, vocab = 4, 2, 3, 32, 48, 16, 64

    def product(inner: int, outer: int) -> float:
        """ms to read rows and weight, and write rows, at 1 GB/s."""
        return f32 * (batch * inner + inner * outer + batch * outer) / GB * 1e3

    # float32: q 32 -> 32, k and v 32 -> 16
    assert bounds["attn.qkv_proj"] == pytest.approx(layers * (product(hidden, hidden) + 2 * product(hidden, kv)))
    assert bounds["attn.o_proj"] == pytest.approx(layers * product(hidden, hidden))
    assert bounds["mlp.gate_up_proj"] == pytest.approx(layers * 2 * product(hidden, ffn))
    assert bounds["mlp.down_proj"] == pytest.approx(layers * product(ffn, hidden))
    assert bounds["lm_head"] == pytest.approx(product(hidden, vocab))
    # act: SiLU reads and writes [3, 48]; the product with the gate reads two and writes one
    assert bounds["mlp.act"] == pytest.approx(layers * 5 * batch * ffn * f32 / GB * 1e3)
    # two additions a layer, each reads two [3, 32] and writes one
    assert bounds["residual"] == pytest.approx(layers * 2 * 3 * batch * hidden * f32 / GB * 1e3)
    # no op runs in them, or only views: nothing to do
    assert bounds["logits"] == 0.0
    rows = {row["name"]: row for row in summary["buckets"]["model"]}
    assert rows["attn.mask"]["op_bound_ms"] == 0.0
    assert rows["attn.mask"]["efficiency"] is None
    assert rows["logits"]["efficiency"] is None  # not 0: nothing is to be done there
    assert {each["name"]: each["efficiency"] for each in split["bounds"]}["logits"] is None
    assert rows["mlp.down_proj"]["op_bound_ms"] == pytest.approx(bounds["mlp.down_proj"])
    assert rows["mlp.down_proj"]["limiter"] == "cache"  # no cache is listed, so it may be there


def test_the_whole_step_must_read_its_weights_and_its_cache_once(bench, model):
    decode(bench, model, batch=3, prompt=4, steps=2, ns=1_000_000)
    decode(bench, model, batch=3, prompt=20, steps=1, ns=3_000_000)
    bench.profiler.add_bounds(model, HERE)
    summary = bench.summary()
    short, long = summary["bounds"]["steps"]
    # float32: q and o 32 x 32, k and v 32 x 16, three of 32 x 48, two norms; the last norm; the head 32 x 64
    weights = 4 * (2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32 + 32 * 64)
    cached = 2 * 2 * 3 * 2 * 8 * 4  # of a token: layers, keys and values, sequences, heads, width, float32
    # ids, an element of the embeddings, whose row all ids may share, RoPE's 4 frequencies, logits
    rest = 3 * 8 + 4 + 4 * 4 + 3 * 64 * 4
    assert short["compulsory_bytes"] == weights + 4 * cached + rest
    assert long["compulsory_bytes"] == weights + 20 * cached + rest
    assert short["compulsory_bound_ms"] == short["program_bound_ms"] == pytest.approx(short["compulsory_bytes"] / 1e6)
    assert (short["batch"], short["kv_bin"], short["kv_length"], short["steps"]) == (3, "[0,16)", 4, 2)
    assert short["program_bound_ms"] < short["fused_bound_ms"] < short["op_bound_ms"]
    assert short["efficiency"] == pytest.approx(short["op_bound_ms"] / 1.0)
    assert long["efficiency"] == pytest.approx(long["op_bound_ms"] / 3.0)
    mean = summary["bounds"]["step"]
    assert mean["mean_ms"] == pytest.approx(5 / 3)
    assert mean["program_bound_ms"] == pytest.approx((2 * short["program_bound_ms"] + long["program_bound_ms"]) / 3)
    assert mean["efficiency"] == pytest.approx((2 * short["op_bound_ms"] + long["op_bound_ms"]) / 5)
    assert "Steps beside their bounds" in bench.report()
    times, picture = report_of(bench.profiler.summary()).series
    assert [line.name for line in times.lines] == ["measured"]
    assert times.lines[0].y == tuple(sorted(times.lines[0].y, reverse=True))
    assert picture.title == "Steps of batch 3 beside their bounds"
    measured, op, program = picture.lines
    assert (measured.x, measured.y) == ((4, 20), (1e-3, 3e-3))
    assert op.y == pytest.approx((short["op_bound_ms"] / 1e3, long["op_bound_ms"] / 1e3))
    assert program.y == pytest.approx((short["compulsory_bytes"] / 1e9, long["compulsory_bytes"] / 1e9))


def test_what_each_op_could_find_in_a_measured_cache_does_not_fit_it_together(bench, model):
    """The cache of 32 kB holds the data of any one op, and less than half of the model's 74 kB."""
    decode(bench, model, batch=3, prompt=4, steps=1, ns=40_000)
    cached = device(MemoryLevel(name="L3", capacity_bytes=32_000, bytes_per_s=1e12))
    bench.profiler.add_bounds(model, cached)
    summary = bench.summary()
    (whole,) = summary["bounds"]["steps"]
    missing = whole["compulsory_bytes"] - 3 * 64 * 4 - 32_000  # reads; the logits stay in it
    # each op has its data from the cache at 1 TB/s, all of them together do not
    assert whole["program_bound_ms"] == whole["op_bound_ms"] == pytest.approx(missing / 1e6)
    assert whole["limiter"] == "memory"
    assert whole["program_bound_ms"] <= whole["fused_bound_ms"] <= whole["op_bound_ms"]
    assert whole["efficiency"] == pytest.approx(missing / 40_000)
    assert summary["bounds"]["step"]["efficiency"] == pytest.approx(whole["efficiency"])
    (text,) = [text for text in summary["problems"] if "the step took 40.0 µs, less than its bound of 41.4 µs" in text]
    assert text.endswith("did other work than the one recorded.")  # the cache is in the bound already


def test_whole_steps_are_bounded_where_no_bucket_is_timed(make, model):
    bench = make(model_profiling=False, engine_profiling=False)
    decode(bench, model, batch=3, prompt=4, steps=1)
    bench.profiler.add_bounds(model, HERE)
    summary = bench.summary()
    assert summary["bucket_splits"] == []
    assert summary["bounds"]["step"]["op_bound_ms"] > 0
    assert "took 1.00 µs, less than its bound of" in "".join(summary["problems"])


def test_buckets_sum_to_the_step_and_each_op_is_in_one(bench, model):
    bench.profiler.attach_model(model)
    decode(bench, model, batch=3, prompt=4, steps=2)
    with bench.profiler.record_steps(HERE):
        decode(bench, model, batch=3, prompt=4, steps=1)
    (step,) = bench.profiler.bounds.steps
    for domain in Domain:
        analysis = step.analyses[domain]
        groups = analysis.by("phase")
        assert sum(group.calls for group in groups) == analysis.totals.calls
        assert sum(group.bytes_moved for group in groups) == analysis.totals.bytes_moved
        assert sum(group.bound_s for group in groups) == pytest.approx(analysis.totals.op_bound_s, rel=1e-12)
    summary = bench.summary()
    op_bound_ms = step.analyses["model"].totals.op_bound_s * 1e3
    for split in summary["bucket_splits"]:
        assert sum(bounds_of(split).values()) == pytest.approx(split["step_bound"]["op_bound_ms"], rel=1e-12)
        assert split["step_bound"]["op_bound_ms"] == pytest.approx(op_bound_ms, rel=1e-12)
    assert summary["bounds"]["step"]["op_bound_ms"] == pytest.approx(op_bound_ms, rel=1e-12)
    for domain in ("model", "engine"):
        rows = summary["buckets"][domain]
        assert sum(row["op_bound_ms"] for row in rows) == pytest.approx(
            summary["bounds"]["step"]["op_bound_ms"], rel=1e-12
        )
    # argmax over [3, 1, 64] float32, in the sampler alone: reads 768 B, writes 3 int64
    (engine,) = of_domain(summary, "engine")
    assert bounds_of(engine)["sampler"] == pytest.approx((768 + 24) / GB * 1e3)
    assert bounds_of(of_domain(summary, "model")[0])[UNATTRIBUTED] >= (768 + 24) / GB * 1e3


def test_attention_alone_grows_with_the_kv_length_and_linearly(bench, model):
    for prompt in (4, 20, 40):
        decode(bench, model, batch=3, prompt=prompt, steps=1)
    bench.profiler.add_bounds(model, HERE)
    short, middle, long = (bounds_of(split) for split in of_domain(bench.summary(), "model"))
    # a cached token more, in each of 2 layers, keys and values of 2 heads of 8 float32 for 3 sequences (384 B): read
    # and written by the cat that lets transformers' cache grow, and read by attention
    slope_ms = 2 * 3 * 2 * (3 * 2 * 8 * 4) / GB * 1e3
    assert middle["attn.compute"] - short["attn.compute"] == pytest.approx(16 * slope_ms)
    assert long["attn.compute"] - middle["attn.compute"] == pytest.approx(20 * slope_ms)
    assert {name for name in short if short[name] != pytest.approx(long[name])} == {"attn.compute"}


@pytest.mark.parametrize("family", some(FAMILIES, ("llama", "mixtral", "falcon", "gptj")))
def test_without_values_each_family_has_the_bounds_of_its_real_step(make, family):
    """A step recorded for real is the oracle of one that is recorded on the meta device."""
    model = build(family)
    if "moe" in family or family == "mixtral":
        model.bfloat16()  # torch has no grouped product of other dtypes on the meta device
    found = []
    for add in ("record_steps", "add_bounds"):
        bench = make(run_name=add)
        decode(bench, model, batch=2, prompt=5, steps=1)
        bench.profiler.attach_model(model)
        if add == "record_steps":
            with bench.profiler.record_steps(HERE):
                decode(bench, model, batch=2, prompt=5, steps=1)
        else:
            bench.profiler.add_bounds(model, HERE)
        found.append(bounds_of(of_domain(bench.summary(), "model")[0]))
        bench.profiler.detach()
    real, meta = found
    real.pop(UNATTRIBUTED)  # the sampler
    meta.pop(UNATTRIBUTED, None)
    assert meta == pytest.approx(real, rel=1e-9)


def test_a_model_is_left_as_it_was(bench, model):
    decode(bench, model, batch=2, prompt=4, steps=1)
    before = [(name, id(tensor), tensor.data_ptr()) for name, tensor in model.state_dict(keep_vars=True).items()]
    buffers = [(name, id(tensor)) for name, tensor in model.named_buffers()]
    attributes = [sorted(vars(module)) for module in model.modules()]
    hooked = hooks(model)
    bench.profiler.add_bounds(model, HERE)
    assert before == [
        (name, id(tensor), tensor.data_ptr()) for name, tensor in model.state_dict(keep_vars=True).items()
    ]
    assert buffers == [(name, id(tensor)) for name, tensor in model.named_buffers()]
    assert attributes == [sorted(vars(module)) for module in model.modules()]
    assert hooked == hooks(model)
    assert model(torch.ones((1, 2), dtype=torch.int64)).logits.device.type == "cpu"


def test_a_step_faster_than_its_bound_is_called_out_and_not_clipped(bench, model):
    bench.profiler.attach_model(model)
    decode(bench, model, batch=3, prompt=4, steps=1, ns=1)
    with bench.profiler.record_steps(WITHOUT_CACHE):
        decode(bench, model, batch=3, prompt=4, steps=1)
    summary = bench.summary()
    whole = of_domain(summary, "model")[0]["step_bound"]
    assert whole["efficiency"] == pytest.approx(whole["op_bound_ms"] / 1e-6)
    assert whole["efficiency"] > 1000
    assert any(
        text.startswith("steps of batch 3, KV length [0,16): decode took 1.00 ns, less than its bound of")
        and text.endswith("did other work than the one recorded.")
        for text in summary["problems"]
    )
    assert "decode took 1.00 ns" in bench.report()


def test_what_a_cache_can_explain_is_no_contradiction(make):
    bench = make(engine_profiling=False)
    prof = bench.profiler
    for recorded in (False, True):
        recording = prof.record_steps(HERE) if recorded else NullProfiler().record_steps()
        with recording, run_of(prof, bsz=1), prof.step_timing_ctx():
            prof.set_step_seq_len(1)
            with cuda_bucket_timer("mlp.act"):
                torch.ones(1000) + 1.0  # 8 kB: 8 us from main memory
                bench.work(2000)
    (text,) = [text for text in bench.summary()["problems"] if "mlp.act took 2.00 µs, less than its bound" in text]
    assert text.endswith("its data can have come from a cache, where its bound is 0 s.")


def test_the_rules_of_buckets_are_those_of_timed_steps(bench, prof):
    """Nested, re-entered, overlapping, raising, and phases of the program's own."""

    def step() -> None:
        a, b = prof.cuda_bucket_timer("a"), prof.cuda_bucket_timer("b")
        with a:
            torch.ones(10)  # a
            with b, rl.phase("the program's own"):
                torch.ones(100)  # b
                with a:
                    torch.ones(1000)  # a again
            torch.ones(10_000)  # a
        a.__enter__()
        b.__enter__()
        a.__exit__(None, None, None)
        torch.ones(100_000)  # b is still open
        b.__exit__(None, None, None)
        with pytest.raises(KeyError), a:
            raise KeyError
        torch.ones(1_000_000)  # in none

    with run_of(prof, bsz=1), prof.step_timing_ctx():
        prof.set_step_seq_len(7)
        step()
    with run_of(prof, bsz=1), prof.record_steps(HERE), prof.step_timing_ctx():
        prof.set_step_seq_len(7)
        step()
    bounds = bounds_of(of_domain(bench.summary(), "model")[0])
    expected = {"a": 4 * 11_010, "b": 4 * 100_100, UNATTRIBUTED: 4 * 1_000_000}  # bytes written
    assert bounds == pytest.approx({name: value / GB * 1e3 for name, value in expected.items()})


def test_without_bounds_each_place_says_why(make, model):
    bench = make(kv_bins=[0, 16], strict_sync=False)
    prof = bench.profiler
    decode(bench, model, batch=2, prompt=4, steps=1)
    summary = bench.summary()
    assert summary["bounds"]["device"] is None
    assert "add_bounds(model)" in summary["bounds"]["none_because"]["model"]
    assert summary["bucket_splits"][0]["bounds"] == []
    assert "op bound" not in bench.report()
    prof.add_bounds(model, HERE)
    with run_of(prof), prof.step_timing_ctx():
        prof.set_step_seq_len(4)
    with run_of(prof, bsz=2):
        with prof.step_timing_ctx():
            prof.set_step_seq_len(3)  # the mean of the bin is now 3.5, of which nothing was recorded
        with prof.step_timing_ctx():  # of no known length
            pass
        with prof.step_timing_ctx():
            prof.set_step_phase("prefill")
    summary = bench.summary()
    reasons = {
        (split["domain"], split["batch"], split["kv_bin"]): split["no_bound"] for split in summary["bucket_splits"]
    }
    assert reasons["model", None, "[0,16)"] == "no step of an unknown batch with a KV length up to 4 was recorded"
    assert reasons["model", 2, "[0,16)"] == "no step of batch 2 with a KV length up to 4 was recorded"
    assert reasons["model", 2, "unbinned"] == "no step of batch 2 of unknown KV length was recorded"
    assert reasons["model", 2, "prefill"].startswith("only decode steps are bounded")
    assert reasons["engine", 2, "[0,16)"].startswith("add_bounds() records the model alone")
    assert all(row["op_bound_ms"] is None for row in summary["buckets"]["model"])  # not of some steps alone


def test_times_of_another_device_are_not_compared(bench, model):
    decode(bench, model, batch=2, prompt=4, steps=1)
    bench.profiler.add_bounds(model, "H100-SXM5-80GB")
    summary = bench.summary()
    assert summary["bounds"]["device"] == "H100-SXM5-80GB"
    assert summary["bounds"]["step"]["op_bound_ms"] > 0
    assert summary["bounds"]["step"]["efficiency"] is None
    assert "did not run on H100-SXM5-80GB" in summary["bounds"]["none_because"]["model"]
    bench.profiler.add_bounds(model, HERE)  # bounds of the other device are dropped
    assert {each["batch"] for each in bench.summary()["bounds"]["recorded"]} == {2}
    assert bench.summary()["bounds"]["device"] == HERE.name


def test_lengths_that_are_sums_are_recorded_per_sequence(make, model):
    bench = make(kv_len_reduce="sum")
    prof = bench.profiler
    with run_of(prof, bsz=2), prof.step_timing_ctx():
        prof.set_step_seq_len([4, 6])
    prof.add_bounds(model, HERE)
    (split,) = of_domain(bench.summary(), "model")
    assert (split["kv_length_mean"], split["step_bound"]["kv_length"]) == (10, 10)
    (step,) = prof.bounds.steps
    shapes = [op.input_shapes[0] for op in step.analyses["model"].session.signatures if op.name == "aten::cat"]
    assert (2, 2, 5, 8) in shapes  # batch, heads, 5 cached tokens each


def test_of_many_batch_sizes_those_that_took_most_time_are_bounded(bench, monkeypatch, prof):
    monkeypatch.setattr("rooflight.studies.inference.recording.MOST_BOUNDED", 2)
    with run_of(prof):
        for batch, ns in ((1, 10), (2, 30), (3, 20)):
            with prof.step_timing_ctx():
                prof.set_step_seq_len([4] * batch)  # which tells the batch too
                bench.work(ns)
    prof.add_bounds(build("llama"), HERE)
    summary = bench.summary()
    assert [each["batch"] for each in summary["bounds"]["steps"]] == [2, 3]
    assert summary["bounds"]["step"] is None  # not of some steps alone
    text = "bounds: of 3 pairs of batch size and KV length, the 2 that took most time were recorded"
    assert text in summary["problems"]
    reasons = {split["batch"]: split["no_bound"] for split in of_domain(summary, "model")}
    assert reasons == {1: "no step of batch 1 with a KV length up to 4 was recorded", 2: None, 3: None}


def test_hostile_use(bench, tmp_path, prof, model):
    with pytest.raises(ValueError, match=r"takes a torch\.nn\.Module, not str"):
        prof.add_bounds("llama", HERE)
    with pytest.raises(ValueError, match="unknown device"):
        prof.add_bounds(model, "no such device")
    with pytest.raises(ValueError, match="unknown device"), prof.record_steps("no such device"):
        pass
    prof.add_bounds(model, HERE)
    assert any("call it after the runs" in text for text in prof.problems.counts)
    with pytest.raises(RuntimeError), prof.record_steps(HERE), prof.step_timing_ctx():
        torch.ones(3) @ torch.ones(4)
    assert not prof.bounds.steps  # it did not do all that a step must
    with prof.record_steps(HERE), prof.step_timing_ctx():
        pass
    assert any("no op that torch sees" in text for text in prof.problems.counts)
    with prof.record_steps(HERE):
        with run_of(prof, bsz=5), prof.record_steps(HERE), prof.step_timing_ctx():
            torch.ones(3)
        prof.end_run()
    assert [step.batch for step in prof.bounds.steps] == [5]
    decode(bench, model, batch=2, prompt=4, steps=2)  # timed again
    summary = bench.summary()
    assert (summary["stats"]["steps"], len(summary["runs"]), summary["stats"]["tokens_total"]) == (2, 1, 4)
    for stranger in (torch.nn.Linear(2, 2), build("mixtral")):  # no tokens; a grouped product of float32
        with pytest.raises(ValueError, match=r"cannot be called without values .*record_steps\(\) instead"):
            prof.add_bounds(stranger, HERE)
        assert next(stranger.parameters()).device.type == "cpu"
    assert torch.overrides._get_current_function_mode_stack() == []
    register_active_profiler(None)


def test_what_is_off_records_nothing(tmp_path, as_rank):
    as_rank(1, 2)
    prof = Profiler({"output_dir": str(tmp_path), "model_profiling": True})
    assert prof.disabled
    with prof.record_steps("no such device"), prof.step_timing_ctx():
        torch.ones(1)
    prof.add_bounds(build("llama"))
    assert not prof.bounds.steps
    NullProfiler().add_bounds(build("llama"))
