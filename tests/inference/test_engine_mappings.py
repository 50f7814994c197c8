"""Mappings of attach_engine that are wrong or do not fit an engine, and methods that cannot be timed."""

from __future__ import annotations

import pytest
from measured_runs import run_of
from toy_engine import MAPPING, Engine, Scheduler, engine_of

from rooflight.inference import register_engine_mapping
from rooflight.studies.inference.engines.mapping import Bucket, EngineMapping, Reads, Run, Step


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
    from rooflight.studies.inference.engines import hooks as engine_mappings

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


def test_an_engine_is_attached_once(bench, engine, prof):
    prof.attach_engine(engine, MAPPING)
    with pytest.raises(ValueError, match="this Engine is attached already: detach\\(\\) first"):
        prof.attach_engine(engine, MAPPING)
    prof.attach_engine(engine_of(bench), MAPPING)  # another one can be


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
    with run_of(prof):
        engine.step().close()
        bench.catch_up()
    assert "attach_engine: step returned a coroutine: only making it was timed" in prof.problems.counts
