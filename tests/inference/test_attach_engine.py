"""attach_engine on engines of the test: roles of methods on a clock that it moves, wrong mappings, hooks that leave no
trace, other threads, generators and coroutines."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

from rooflight.inference import NullProfiler, Profiler, register_engine_mapping
from rooflight.inference.engine_mapping import Bucket, EngineMapping, LoopTest, Makes, Reads, Run, Shows, Step


class Sampler:
    def __init__(self, work):
        self.work = work

    def choose(self, rows):
        self.work(1_000_000)
        return [7] * rows


class Engine:
    """A step is 1 ms of scheduling, 5 ms of the model, 1 ms of choosing tokens, 1 ms of the rest."""

    def __init__(self, work):
        self.work = work
        self.sampler = Sampler(work)
        self.lengths = [10, 20]

    def serve(self, steps):
        return [self.step(number) for number in range(steps)]

    def step(self, number):
        self.plan()
        self.work(5_000_000)
        tokens = self.sampler.choose(len(self.lengths))
        self.work(1_000_000)
        if number == 13:
            raise RuntimeError("out of memory")
        self.lengths = [length + 1 for length in self.lengths]
        return tokens

    def plan(self):
        self.work(1_000_000)


MAPPING = EngineMapping(
    name="acme",
    methods={
        "serve": Run(batch=lambda call: len(call.owner.lengths), label="served"),
        "step": Step(
            before=Reads(kv_lengths=lambda call: call.owner.lengths), after=Reads(tokens=lambda call: len(call.result))
        ),
        "plan": Bucket("schedule"),
        "sampler.choose": Bucket("sampler"),
    },
)


def engine_of(bench) -> Engine:
    def work(nanoseconds):
        bench.work(nanoseconds)
        bench.catch_up()

    return Engine(work)


def test_runs_steps_buckets_and_facts_of_calls(bench):
    engine, prof = engine_of(bench), bench.profiler
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
    assert prof.results.samples.lengths().tolist() == [15, 16, 17]  # before each step


def test_engine_is_as_before_after_detach(bench):
    engine, prof = engine_of(bench), bench.profiler
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


def test_exceptions_pass_and_end_step_and_run(bench):
    engine, prof = engine_of(bench), bench.profiler
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
    assert list(summary["problems"]) == ["run 0: 1 step ended by an exception: in the statistics"]


def test_a_run_and_a_step_that_the_program_opened_stay_its_own(bench):
    engine, prof = engine_of(bench), bench.profiler
    prof.attach_engine(engine, MAPPING)
    prof.begin_run(bsz=5, label="mine")
    engine.serve(2)
    engine.serve(1)
    assert prof.in_run
    with prof.step_timing_ctx():
        engine.step(0)
        prof.set_step_tokens(9)
    prof.end_run()
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


def test_other_ranks_and_null_profilers_hook_nothing(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
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


class Scheduler:
    """Steps that begin with one method and end with another, and passes with nothing to do."""

    def __init__(self, work):
        self.work = work

    def get(self, batch):
        self.work(1_000_000)
        return batch

    def run(self):
        self.work(3_000_000)

    def process(self):
        self.work(2_000_000)


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
    prof.begin_run()
    for batch in ([1], [], [1]):
        if engine.get(batch):
            engine.run()
            engine.process()
    engine.get([])
    prof.detach()
    prof.end_run()
    summary = bench.summary()
    assert not summary["problems"]
    assert (summary["stats"]["steps"], summary["stats"]["mean_ms"]) == (2, 6)
    assert summary["buckets_engine_avg_ms"] == {"schedule": 1, "prefill": 3, "postproc": 2}
    assert summary["wall"]["gaps_total_ms"] == 1  # the pass between


class Phases:
    """Methods with known names, called by a loop that is not the engine's."""

    def __init__(self, work):
        self.work = work

    def prefill(self):
        self.work(9_000_000)

    def decode(self):
        self.work(3_000_000)
        self.sample()

    def sample(self):
        self.work(1_000_000)


def test_methods_with_known_names_need_no_mapping(bench):
    engine, prof = Phases(engine_of(bench).work), bench.profiler
    prof.attach_engine(engine)
    prof.begin_run()
    engine.prefill()
    engine.decode()
    with prof.step_timing_ctx():  # the program's own step
        engine.decode()
        bench.work(2_000_000)
        bench.catch_up()
    prof.end_run()
    engine.decode()  # outside of a run: nothing
    summary = bench.summary()
    assert summary["other_phases"]["prefill"]["mean_ms"] == 9
    assert (summary["stats"]["steps"], summary["stats"]["mean_ms"]) == (2, 5)  # 4 and 6
    assert summary["buckets_engine_avg_ms"] == {"decode": 3, "sampler": 1}
    assert set(summary["problems"]) <= {"run 0: no step has tokens: call set_step_tokens() in each"}


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
    prof.begin_run(bsz=2)
    engine.step()
    bench.catch_up()
    prof.end_run()
    summary = bench.summary()
    assert (summary["speculative"]["proposed"], summary["speculative"]["accepted"]) == (6, 2)
    assert summary["stats"]["tokens_total"] == 4


def test_readers_that_fail_are_problems_and_the_engine_goes_on(bench):
    def tokens(call):
        return call.result.nothing

    engine, prof = engine_of(bench), bench.profiler
    mapping = EngineMapping(
        name="broken",
        methods={
            "step": Step(after=Reads(tokens=tokens, phase=lambda _: "later", kv_lengths=lambda _: "long")),
            "plan": Bucket(lambda call: call.missing),
        },
    )
    prof.attach_engine(engine, mapping)
    prof.begin_run()
    assert engine.step(0) == [7, 7]
    prof.end_run()
    summary = bench.summary()
    assert summary["stats"]["steps"] == 1
    assert summary["buckets_engine_avg_ms"] == {}
    problems = " | ".join(summary["problems"])
    assert "attach_engine: tokens: AttributeError: 'list' object has no attribute 'nothing'" in problems
    assert "AttributeError: 'Call' object has no attribute 'missing'" in problems
    assert "set_step_phase: 'later' is no phase" in problems
    assert "set_step_seq_len" in problems


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("nobody's", r'there is no mapping "nobody\'s": there are phase methods, transformers generate'),
        (7, "mapping is a int: give an EngineMapping, the name of one, or None"),
        (
            EngineMapping(name="typo", methods={"stepp": Step()}),
            r'mapping "typo": Engine has no method stepp: it has plan, serve, step, work; did you mean step\?',
        ),
        (
            EngineMapping(name="far", methods={"sampler.draw": Bucket("sampler")}),
            r'mapping "far": Engine has no method sampler.draw: it has plan, serve, step',
        ),
        (
            EngineMapping(name="none", methods={"go": Step(optional=True)}),
            r'mapping "none": Engine has none of its methods \(go\): it has plan, serve, step',
        ),
        (
            EngineMapping(name="deep", methods={"step": Step()}, at="core.inner", about="start it in this process"),
            r'mapping "deep": Engine has no core.inner: start it in this process',
        ),
        (EngineMapping(name="value", methods={"lengths": Bucket("x")}), "Engine has no method lengths"),
    ],
)
def test_mappings_that_do_not_fit_are_refused_and_hook_nothing(bench, mapping, message):
    engine = engine_of(bench)
    before = dict(vars(engine))
    with pytest.raises(ValueError, match=message):
        bench.profiler.attach_engine(engine, mapping)
    assert vars(engine) == before
    bench.profiler.attach_engine(engine, MAPPING)  # it is not attached


def test_an_engine_with_no_known_name_is_refused_with_what_it_has(bench):
    class Odd:
        def hop(self):
            pass

        def skip(self):
            pass

    with pytest.raises(ValueError, match=r"Odd has none of its methods \(step, prefill, .*\): it has hop, skip"):
        bench.profiler.attach_engine(Odd())
    for nothing in (None, 3, "engine", [1]):
        with pytest.raises(ValueError, match="has none of its methods"):
            bench.profiler.attach_engine(nothing)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineMapping(name="", methods={"step": Step()}), "give it a name"),
        (lambda: EngineMapping(name="m", methods={}), "has no methods: give a dict of paths and roles"),
        (lambda: EngineMapping(name="m", methods={"step": "step"}), r"the role of step is 'step': give a Run, Step"),
        (lambda: EngineMapping(name="m", methods={"step": Step}), "the role of step is <class"),
        (lambda: EngineMapping(name="m", methods={"a..b": Step()}), "'a..b' is no path"),
        (lambda: EngineMapping(name="m", methods={"": Step()}), "'' is no path"),
        (lambda: EngineMapping(name="m", methods={"__import__('os')": Step()}), "is no path"),
        (lambda: Bucket(""), "give the name of a bucket"),
        (lambda: Bucket(3), "give the name of a bucket"),
        (lambda: Reads(tokens=4), r"Reads\(tokens=4\): give a function that gets a Call"),
    ],
)
def test_mappings_with_wrong_parts_are_refused_when_they_are_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_mappings_are_found_by_class_and_refuse_duplicates(bench):
    name = f"{Engine.__module__}.{Engine.__qualname__}"
    from rooflight.inference import engine_mappings

    mapping = EngineMapping(name="by class", methods=MAPPING.methods, classes=(name,))
    try:
        assert register_engine_mapping(mapping) is mapping
        with pytest.raises(ValueError, match='there is a mapping "by class" already'):
            register_engine_mapping(mapping)
        with pytest.raises(ValueError, match='has the mapping "by class" already'):
            register_engine_mapping(EngineMapping(name="other", methods=MAPPING.methods, classes=(name,)))

        class Derived(Engine):
            pass

        engine = Derived(lambda _: None)
        bench.profiler.attach_engine(engine)
        assert "serve" in vars(engine)
        bench.profiler.detach()
        bench.profiler.attach_engine(engine, "by class")
    finally:
        del engine_mappings._known["by class"], engine_mappings._by_class[name]


def test_an_engine_is_attached_once(bench):
    engine, prof = engine_of(bench), bench.profiler
    prof.attach_engine(engine, MAPPING)
    with pytest.raises(ValueError, match="this Engine is attached already: detach\\(\\) first"):
        prof.attach_engine(engine, MAPPING)
    prof.attach_engine(engine_of(bench), MAPPING)  # another one can be


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


def test_a_hook_that_somebody_wrapped_stays_and_only_calls_the_method(bench):
    engine, prof = engine_of(bench), bench.profiler
    prof.attach_engine(engine, MAPPING)
    hooked = engine.step
    engine.step = lambda number: [*hooked(number)]
    prof.detach()
    engine.serve(2)
    assert prof.results.totals.steps == 0


class Slotted:
    __slots__ = ("x",)

    def step(self):
        pass


class Property:
    @property
    def step(self):
        return lambda: 3


class Asynchronous:
    async def step(self):
        pass


class Stream:
    async def step(self):
        yield 1


class Items:
    def __init__(self, work):
        self.work = work

    def stream(self, steps):
        for number in range(steps):
            self.step()
            yield number

    def step(self):
        self.work(2_000_000)


@pytest.mark.parametrize(
    ("engine", "role", "message"),
    [
        (
            Slotted(),
            Step(),
            r"Slotted.step cannot be hooked, since its owner has no attributes of its own \(__slots__\)",
        ),
        (Property(), Step(), "Property.step is a property: it cannot be hooked"),
        (Asynchronous(), Step(), "Asynchronous.step is asynchronous: other tasks run in its time"),
        (Asynchronous(), Run(), "Asynchronous.step is asynchronous"),
        (Stream(), Bucket("x"), "Stream.step is asynchronous"),
        (Scheduler, Step(), "cannot be hooked, since its owner is a class: give the engine's object"),
    ],
)
def test_methods_that_cannot_be_timed_are_refused(bench, engine, role, message):
    path = "run" if engine is Scheduler else "step"
    with pytest.raises(ValueError, match=message):
        bench.profiler.attach_engine(engine, EngineMapping(name="m", methods={path: role}))
    assert not hasattr(engine, "__dict__") or path not in vars(engine) or engine is Scheduler


def test_a_generator_is_a_run_until_it_ends_and_nothing_else(bench):
    engine, prof = Items(engine_of(bench).work), bench.profiler
    with pytest.raises(ValueError, match=r"Items.stream is a generator: what takes its items runs in its time"):
        prof.attach_engine(engine, EngineMapping(name="m", methods={"stream": Step()}))
    prof.attach_engine(engine, EngineMapping(name="m", methods={"stream": Run(label="s"), "step": Step()}))
    items = engine.stream(3)
    assert not prof.in_run
    assert next(items) == 0
    assert prof.in_run
    bench.work(5_000_000)  # of who takes the items: between steps
    bench.catch_up()
    assert list(items) == [1, 2]
    assert not prof.in_run
    stopped = engine.stream(3)
    next(stopped)
    stopped.close()
    assert not prof.in_run
    summary = bench.summary()
    assert [run["stats"]["steps"] for run in summary["runs"]] == [3, 1]
    assert summary["stats"]["mean_ms"] == 2
    assert summary["runs"][0]["wall"]["gaps_total_ms"] == 5


def test_a_coroutine_that_was_not_seen_before_is_noted(bench):
    class Hidden:
        def step(self):
            return Asynchronous().step()

    engine, prof = Hidden(), bench.profiler
    prof.attach_engine(engine, EngineMapping(name="m", methods={"step": Step()}))
    prof.begin_run()
    engine.step().close()
    bench.catch_up()
    prof.end_run()
    assert "attach_engine: step returned a coroutine: only making it was timed" in prof.problems.counts


def test_calls_in_another_thread_pass_untimed_and_are_noted(bench):
    engine, prof = engine_of(bench), bench.profiler
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


def test_runs_in_other_threads_one_after_the_other(bench):
    engine, prof = engine_of(bench), bench.profiler
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


def test_detach_inside_a_step_ends_it(bench):
    engine, prof = engine_of(bench), bench.profiler
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
    assert prof.results.sums["engine"].calls == {"decode": 2}
    assert vars(model).keys() == before.keys()
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks


def test_compiled_code_is_whole_and_compiled_once_with_hooks(bench):
    model, prof = Model(), bench.profiler
    prof.attach_engine(model, MODEL)
    compiled = torch.compile(lambda x: model.step(x) + 1, fullgraph=True, backend="eager")
    x = torch.ones(2, 4)
    expected = Model.step(model, x) + 1
    assert torch.equal(compiled(x), expected)
    prof.begin_run()
    assert torch.equal(compiled(x), expected)
    prof.end_run()
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
    prof.begin_run()
    model.step(torch.ones(2, 4))
    bench.catch_up()
    prof.end_run()
    assert prof.results.sums["engine"].calls == {"decode": 1}
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
    assert prof.results.sums["engine"].calls == {"sampler": 2}
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
