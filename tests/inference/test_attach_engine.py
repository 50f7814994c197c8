"""attach_engine on engines of the test: roles of methods on a clock that it moves, wrong mappings, hooks that leave no
trace, other threads, generators and coroutines."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from measured_runs import run_of
from torch import nn
from toy_engine import MAPPING, Engine, Phases, Sampler, Scheduler, Speculating, engine_of

from rooflight.inference import NullProfiler, Profiler
from rooflight.studies.inference.engines.mapping import Bucket, EngineMapping, LoopTest, Makes, Reads, Run, Shows, Step


def test_runs_steps_buckets_and_facts_of_calls(bench, engine, prof):
    prof.attach_engine(engine, MAPPING)
    assert engine.serve(3) == [[7, 7]] * 3
    summary = bench.summary()
    assert not summary["problems"]
    (run,) = summary["runs"]
    assert (run["meta"]["label"], run["meta"]["bsz"], run["stats"]["steps"]) == ("served", 2, 3)
    assert summary["stats"]["tokens_total"] == 6
    assert summary["stats"]["mean_ms"] == pytest.approx(8)
    assert summary["buckets_engine_avg_ms"] == {"schedule": 1, "sampler": 1}
    assert summary["unattributed_engine_ms"] == 6  # of 8
    assert prof.results.samples.columns()["kv_length"].tolist() == [15, 16, 17]  # before each step


def test_engine_is_as_before_after_detach(engine, prof):
    before, of_sampler = dict(vars(engine)), dict(vars(engine.sampler))
    prof.attach_engine(engine, MAPPING)
    assert {"serve", "step", "plan"} <= set(vars(engine))
    prof.detach()
    assert vars(engine) == before
    assert vars(engine.sampler) == of_sampler
    engine.serve(1)
    prof.detach()  # nothing more
    prof.attach_engine(engine, MAPPING)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.serve(14)
    prof.detach()
    assert vars(engine).keys() == before.keys()


def test_exceptions_pass_and_end_step_and_run(bench, engine, prof):
    prof.attach_engine(engine, MAPPING)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.serve(20)
    assert not prof.in_run
    assert not prof.step.is_open
    engine.serve(1)
    summary = bench.summary()
    assert [run["stats"]["steps"] for run in summary["runs"]] == [14, 1]
    assert [run["meta"]["steps_raised"] for run in summary["runs"]] == [1, 0]
    assert summary["stats"]["steps_without_tokens"] == 1  # nothing was returned
    assert list(summary["problems"]) == ["a step ended by an exception: it is in the statistics"]


def test_a_run_and_a_step_that_the_program_opened_stay_its_own(bench, engine, prof):
    prof.attach_engine(engine, MAPPING)
    with run_of(prof, bsz=5, label="mine"):
        engine.serve(2)
        engine.serve(1)
        assert prof.in_run
        with prof.step_timing_ctx():
            engine.step(0)
            prof.set_step_tokens(9)
    summary = bench.summary()
    (run,) = summary["runs"]
    assert (run["meta"]["label"], run["meta"]["bsz"], run["stats"]["steps"]) == ("mine", 5, 4)
    assert run["stats"]["tokens_total"] == 15  # 3 steps of 2, and 9
    assert run["buckets_engine_avg_ms"] == {"schedule": 1, "sampler": 1}
    assert list(summary["problems"]) == [
        "attach_engine: an engine's step was inside another: only that one is measured"
    ]


def test_warm_up_runs_of_an_engine_are_not_measured(make):
    bench = make(warmup_runs=1)
    engine = engine_of(bench)
    bench.profiler.attach_engine(engine, MAPPING)
    engine.serve(2)
    engine.serve(3)
    summary = bench.summary()
    assert (summary["warmup_runs_skipped"], summary["stats"]["steps"]) == (1, 3)
    assert not summary["problems"]


def test_without_engine_profiling_steps_are_measured_and_buckets_are_not(make):
    bench = make(engine_profiling=False, model_profiling=False)
    engine = engine_of(bench)
    bench.profiler.attach_engine(engine, MAPPING)
    engine.serve(2)
    summary = bench.summary()
    assert (summary["stats"]["steps"], summary["stats"]["tokens_total"]) == (2, 4)
    assert summary["buckets"]["engine"] == []


def test_other_ranks_and_null_profilers_hook_nothing(bench, as_rank, tmp_path):
    as_rank(1, 2)
    engine = engine_of(bench)
    before = dict(vars(engine))
    prof = Profiler({"output_dir": str(tmp_path)}, device="cpu")
    assert prof.disabled
    prof.attach_engine(engine, "no such mapping")
    NullProfiler().attach_engine(engine, MAPPING)
    assert vars(engine) == before


class Loop:
    """Steps that are no methods: the loop asks before each."""

    def __init__(self, work):
        self.work = work
        self.left = 3

    def generate(self):
        self.work(2_000_000)
        while self.goes_on():
            self.work(4_000_000)
            self.left -= 1
        self.work(1_000_000)

    def goes_on(self):
        return self.left > 0


def test_steps_of_a_loop_that_asks_before_each(bench):
    engine = Loop(engine_of(bench).work)
    bench.profiler.attach_engine(
        engine,
        EngineMapping(name="loop", methods={"generate": Run(), "goes_on": LoopTest(after=Reads(tokens=lambda _: 1))}),
    )
    engine.generate()
    summary = bench.summary()
    assert (summary["stats"]["steps"], summary["stats"]["mean_ms"], summary["stats"]["tokens_total"]) == (3, 4, 3)


def test_steps_from_one_method_to_another(bench):
    engine, prof = Scheduler(engine_of(bench).work), bench.profiler
    mapping = EngineMapping(
        name="loop",
        methods={
            "get": Bucket(
                "schedule", begins_step=True, after=Reads(phase=lambda call: None if call.result else "idle")
            ),
            "run": Bucket(lambda call: "prefill" if call.owner else "decode"),
            "process": Bucket("postproc", ends_step=True, after=Reads(tokens=lambda _: 1)),
        },
    )
    prof.attach_engine(engine, mapping)
    with run_of(prof):
        for batch in ([1], [], [1]):
            if engine.get(batch):
                engine.run()
                engine.process()
        engine.get([])
        prof.detach()
    summary = bench.summary()
    assert not summary["problems"]
    assert (summary["stats"]["steps"], summary["stats"]["mean_ms"]) == (2, 6)
    assert summary["buckets_engine_avg_ms"] == {"schedule": 1, "prefill": 3, "postproc": 2}
    assert summary["wall"]["gaps_total_ms"] == 1  # the pass between


def test_methods_with_known_names_need_no_mapping(bench):
    engine, prof = Phases(engine_of(bench).work), bench.profiler
    prof.attach_engine(engine)
    with run_of(prof):
        engine.prefill()
        engine.decode()
        with prof.step_timing_ctx():  # the program's own step
            engine.decode()
            bench.work(2_000_000)
            bench.catch_up()
    engine.decode()  # outside of a run: nothing
    summary = bench.summary()
    assert summary["other_phases"]["prefill"]["mean_ms"] == 9
    assert (summary["stats"]["steps"], summary["stats"]["mean_ms"]) == (2, 5)  # 4 and 6
    assert summary["buckets_engine_avg_ms"] == {"decode": 3, "sampler": 1}
    assert set(summary["problems"]) <= {"no step of a run has tokens: call set_step_tokens() in each"}


def test_phases_of_an_engine_that_drafts_and_verifies_at_once(bench):
    engine, prof = Speculating(bench.spend), bench.profiler
    prof.attach_engine(engine)
    with run_of(prof):
        engine.step()
        with prof.cpu_bucket_timer("engine.sampling"):
            pass
    summary = bench.summary()
    assert (summary["stats"]["mean_ms"], summary["unattributed_engine_ms"]) == (15, 0)
    assert not summary["others_detail"]["engine"]
    assert summary["buckets_engine_avg_ms"] == {
        "inputs": 5, "prefill": 1, "decode": 1, "draft_and_verify": 1, "verify": 1, "sampler": 2, "postproc": 2,
        "kv.gather": 1, "kv.delete": 1,
    }  # fmt: skip
    assert not [text for text in summary["problems"] if "warm_cache" in text]


def test_an_engine_whose_time_is_in_no_bucket_is_said_to_have_methods_without_one(bench):
    engine, prof = Speculating(bench.spend), bench.profiler
    prof.attach_engine(engine)
    with run_of(prof):
        engine.step("warm_cache")
    assert [text for text in bench.summary()["problems"] if text.startswith("over 20.0% of the steps of a run is in")
            and "Speculating (warm_cache, work)" in text]  # fmt: skip


class Drafter:
    def propose(self):
        return [[1, 2, 3], [4, 5, 6]]

    def verify(self):
        return [2, 0]

    def step(self):
        self.propose()
        return self.verify()


def test_drafts_are_read_across_calls_of_a_step(bench):
    def proposed(call):
        call.notes["proposed"] = [len(each) for each in call.result]

    prof, engine = bench.profiler, Drafter()
    mapping = EngineMapping(
        name="drafts",
        methods={
            "step": Step(after=Reads(tokens=lambda call: sum(call.result) + len(call.result))),
            "propose": Bucket("draft", after=Reads(drafts=proposed)),
            "verify": Bucket("verify", after=Reads(drafts=lambda call: (call.notes["proposed"], call.result))),
        },
    )
    prof.attach_engine(engine, mapping)
    with run_of(prof, bsz=2):
        engine.step()
        bench.catch_up()
    summary = bench.summary()
    assert (summary["speculative"]["proposed"], summary["speculative"]["accepted"]) == (6, 2)
    assert summary["stats"]["tokens_total"] == 4


def test_readers_that_fail_are_problems_and_the_engine_goes_on(bench, engine, prof):
    def tokens(call):
        return call.result.nothing

    mapping = EngineMapping(
        name="broken",
        methods={
            "step": Step(after=Reads(tokens=tokens, phase=lambda _: "later", kv_lengths=lambda _: "long")),
            "plan": Bucket(lambda call: call.missing),
        },
    )
    prof.attach_engine(engine, mapping)
    with run_of(prof):
        assert engine.step(0) == [7, 7]
    summary = bench.summary()
    assert summary["stats"]["steps"] == 1
    assert summary["buckets_engine_avg_ms"] == {}
    problems = " | ".join(summary["problems"])
    assert "attach_engine: tokens: AttributeError: 'list' object has no attribute 'nothing'" in problems
    assert "AttributeError: 'Call' object has no attribute 'missing'" in problems
    assert "set_step_phase: 'later' is no phase" in problems
    assert "set_step_seq_len" in problems


def test_two_profilers_on_one_engine_leave_in_any_order(make):
    for first_out in (0, 1):
        benches = [make(run_name=f"run{first_out}{number}") for number in range(2)]
        engine = Engine(lambda nanoseconds, benches=benches: [bench.work(nanoseconds) for bench in benches])
        before = dict(vars(engine))
        for bench in benches:
            bench.profiler.attach_engine(engine, MAPPING)
        engine.serve(2)
        benches[first_out].profiler.detach()
        engine.serve(1)
        benches[1 - first_out].profiler.detach()
        engine.serve(1)
        assert vars(engine).keys() == before.keys()
        assert [bench.profiler.results.totals.steps for bench in benches] == ([2, 3] if first_out == 0 else [3, 2])


def test_a_hook_that_somebody_wrapped_stays_and_only_calls_the_method(engine, prof):
    prof.attach_engine(engine, MAPPING)
    hooked = engine.step
    engine.step = lambda number: [*hooked(number)]
    prof.detach()
    engine.serve(2)
    assert prof.results.totals.steps == 0


def test_calls_in_another_thread_pass_untimed_and_are_noted(bench, engine, prof):
    other = []

    def plan():
        if not other:
            other.append(threading.Thread(target=lambda: other.append(engine.sampler.choose(1))))
            other[0].start()
            other[0].join()

    engine.plan = plan
    prof.attach_engine(engine, MAPPING)
    engine.serve(1)
    assert other[1] == [7]
    summary = bench.summary()
    assert summary["buckets_engine_avg_ms"]["sampler"] == 1
    assert list(summary["problems"]) == [
        "attach_engine: sampler.choose was called in another thread than the open run's: it was not timed there"
    ]
    prof.detach()
    assert engine.plan is plan  # an attribute of the engine's own is put back


def test_runs_in_other_threads_one_after_the_other(engine, prof):
    prof.attach_engine(engine, MAPPING)
    for _ in range(2):
        thread = threading.Thread(target=engine.serve, args=(2,))
        thread.start()
        thread.join()
    assert prof.results.totals.steps == 4
    assert not prof.problems.counts


def test_copies_and_pickles_of_an_engine_have_their_own_methods(bench):
    engine, prof = Phases(print), bench.profiler
    prof.attach_engine(engine)
    twin = copy.deepcopy(engine)
    loaded = pickle.loads(pickle.dumps(engine))
    prof.detach()
    for other in (twin, loaded):
        assert other.decode.__self__ is other
        assert other.decode.__func__ is Phases.decode


def test_detach_inside_a_step_ends_it(engine, prof):
    prof.attach_engine(engine, MAPPING)
    inner = engine.sampler

    def choose(rows):
        prof.detach()
        return [7] * rows

    inner.choose = choose
    assert engine.serve(2) == [[7, 7]] * 2
    assert not prof.step.is_open
    assert not prof.in_run
    assert prof.results.totals.steps == 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, fail=False):
        if fail:
            raise RuntimeError("no")
        return self.linear(x)

    def step(self, x, *, fail=False):
        return self(x, fail=fail)


MODEL = EngineMapping(name="model", methods={"step": Step(), "forward": Bucket("decode")})


def test_forward_of_a_module_is_hooked_as_torch_does_it(bench):
    model, prof = Model(), bench.profiler
    before = dict(vars(model))
    hooks = len(model._forward_hooks), len(model._forward_pre_hooks)
    x = torch.ones(2, 4)
    with torch.inference_mode():
        plain = model(x)
        prof.attach_engine(model, MODEL)
        assert "forward" not in vars(model)
        prof.begin_run()
        assert torch.equal(model.step(x), plain)
        with pytest.raises(RuntimeError, match="no"):
            model.step(x, fail=True)
    bench.catch_up()
    prof.end_run()
    prof.detach()
    assert prof.results.totals.buckets["engine"].calls == {"decode": 2}
    assert vars(model).keys() == before.keys()
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks


def test_compiled_code_is_whole_and_compiled_once_with_hooks(bench):
    model, prof = Model(), bench.profiler
    prof.attach_engine(model, MODEL)
    compiled = torch.compile(lambda x: model.step(x) + 1, fullgraph=True, backend="eager")
    x = torch.ones(2, 4)
    expected = Model.step(model, x) + 1
    assert torch.equal(compiled(x), expected)
    with run_of(prof):
        assert torch.equal(compiled(x), expected)
    assert not prof.results.totals.steps


def test_a_module_that_torch_compile_wrapped_is_its_module(bench):
    model, prof = Model(), bench.profiler
    prof.attach_engine(torch.compile(model, backend="eager"), MODEL)
    assert "step" in vars(model)


def test_a_module_compiled_in_place_is_one_bucket(bench):
    model, prof = Model(), bench.profiler
    model.compile(backend="eager")
    inner = model._compiled_call_impl
    prof.attach_engine(model, MODEL)
    with run_of(prof):
        model.step(torch.ones(2, 4))
        bench.catch_up()
    assert prof.results.totals.buckets["engine"].calls == {"decode": 1}
    prof.detach()
    assert model._compiled_call_impl is inner


class Factory:
    def __init__(self, work):
        self.work = work

    def serve(self):
        part = self.make()
        for _ in range(2):
            self.step(part)
        return part

    def make(self):
        return Sampler(self.work)

    def step(self, part):
        part.choose(1)


def test_parts_that_an_engine_makes_are_hooked_until_the_run_ends(bench):
    engine, prof = Factory(engine_of(bench).work), bench.profiler
    parts = EngineMapping(name="part", methods={"choose": Bucket("sampler")})
    prof.attach_engine(
        engine, EngineMapping(name="f", methods={"serve": Run(), "make": Makes(parts), "step": Step(), "work": Shows()})
    )
    part = engine.serve()
    assert "choose" not in vars(part)
    assert prof.results.totals.buckets["engine"].calls == {"sampler": 2}
    outside = engine.make()
    assert "choose" in vars(outside)
    prof.detach()
    assert "choose" not in vars(outside)


def test_a_part_that_does_not_fit_is_a_problem_and_the_engine_goes_on(bench):
    engine, prof = Factory(engine_of(bench).work), bench.profiler
    wrong = EngineMapping(name="wrong", methods={"chose": Bucket("sampler")})
    prof.attach_engine(engine, EngineMapping(name="f", methods={"serve": Run(), "make": Makes(wrong)}))
    engine.serve()
    (problem, *_) = prof.problems.counts
    assert problem.startswith('attach_engine: ValueError: mapping "wrong": Sampler has no method chose')
