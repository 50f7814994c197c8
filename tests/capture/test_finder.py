"""The step finder as a fold: events by hand, those of 40 scripts, a million steps, and any events at all."""

from __future__ import annotations

import sys
import tomllib
import tracemalloc
from pathlib import Path

import pytest
from heard import Answers, Notebook, recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.records.account import Place
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.events import Weights
from rooflight.sources.capture.run.finder import StepFinder, steps_of

TRUTH = {row["name"]: row for row in tomllib.loads(
    (Path(__file__).parents[1] / "scripts" / "truth.toml").read_text())["row"]}  # fmt: skip


class Script:
    """Writes down what a script does, a millisecond each."""

    def __init__(self):
        self.heard, self.now = [], 0

    def _then(self, kind, *words, **facts):
        self.now += 10**6
        self.heard.append(kind(self.now, len(self.heard), *words, **facts))
        return self

    def call(self, number=0, *, grads=True, training=True, elements=10, line="train.py:5"):
        name = f"Model{number}"
        return self._then(events.Called, number, name, Weights(elements, True), grads, training, line=line)

    def returned(self, *, grads=False):
        return self._then(events.Returned, grads)

    def backward(self):
        return self._then(events.BackwardBegins)._then(events.BackwardEnds, Place(file="train.py", line=6))

    def step(self, who=0, *, runs_model=False):
        self._then(events.OptimizerBegins, who, f"Some{who}", runs_model)
        return self._then(events.OptimizerEnds, who, f"Some{who}", Place(file="train.py", line=10 + who))

    def fetch(self, data=1, took=5):
        self._then(events.Fetches, data, 0)
        begun, self.now = self.now, self.now + took * 10**6
        return self._then(events.Fetched, begun)

    def found(self, **how):
        self.notebook = Notebook()
        return steps_of(self.heard, self.notebook, **how)


def test_a_training_step_begins_with_the_model_and_ends_with_the_optimizer():
    script = Script()
    for _ in range(6):
        script.fetch().call().backward().step()
    found = script.found()
    assert (found.by_optimizer.count, found.by_optimizer.backwards) == (6, 6)
    assert found.begins == "the first call of Model0 with gradients on"
    assert script.notebook.begun[-1] == (StepKind.OPTIMIZER, 2)  # after two that warm up
    assert found.by_optimizer.seconds().tolist() == pytest.approx([4e-3] * 6)  # call, two of backward, two of step
    (loader, _) = found.by_optimizer.between(1, range(6))
    assert (loader.name, loader.seconds) == ("loader", pytest.approx(6e-3))


def test_two_optimizers_in_turn_are_one_step():
    script = Script()
    for _ in range(8):
        script.call(1).backward().call(1).backward().step(0).call(0, line="train.py:9").backward().step(1)
    found = script.found()
    assert (found.by_optimizer.count, found.by_optimizer.length) == (16, 2)
    kept = found.recorder.kept[StepKind.OPTIMIZER]
    assert (kept.cycle, kept.place >= 2) == (2, True)


def test_without_an_optimizer_a_backward_pass_ends_a_step():
    script = Script()
    for _ in range(5):
        script.call().returned(grads=True).backward()
    assert script.found(ear=Answers([(1, False, False)] * 9)).by_backward.count == 5


def test_a_call_of_the_heaviest_model_is_a_step_of_one_that_does_not_train():
    script = Script()
    for _ in range(5):
        script.call(0, elements=5, grads=False, training=False).returned()
        script.call(1, elements=50, grads=False, training=False).returned()
    found = script.found()
    assert (found.modules.heaviest, found.modules.calls[1].count) == (1, 5)
    assert StepKind.MODULE in found.recorder.kept


def test_an_evaluation_between_steps_is_known_as_one():
    script = Script()
    for number in range(9):
        script.fetch().call().backward().step()
        if number == 4:
            script.fetch(data=2)
            for _ in range(3):
                script.call(grads=False, training=False).returned()
    found = script.found()
    names = {each.name: each.seconds for each in found.by_optimizer.between(1, range(9))}
    assert found.by_optimizer.count == 9
    assert names["loader"] == pytest.approx(6e-3)
    assert names["evaluation"] == pytest.approx(13e-3 / 8)  # 6 to fetch, three calls, and until the next fetch


@pytest.mark.parametrize("name", [name for name, row in TRUTH.items() if row.get("kinds")])
def test_steps_of_recorded_scripts(name):
    heard = {each[0]: each[1:] for each in recorded()}
    if name not in heard:
        pytest.skip("not among those that were heard: benchmarks/hear_scripts.py")
    whole, happened, answers = heard[name]
    found, row = steps_of(happened, Notebook(skip=1), ear=Answers(answers)), TRUTH[name]
    kinds = {
        "optimizer": found.by_optimizer.count // (found.by_optimizer.length or 1),
        "backward": found.by_backward.count if not found.by_optimizer.count else 0,
        "module": max((each.count for each in found.modules.calls.values()), default=0),
        "function": 0,
        "none": 0,
    }
    counts = [kinds[kind] for kind in row["kinds"]]
    if whole and row.get("steps"):
        assert set(counts) & set(row["steps"])
    elif row["kinds"] != ["none"]:
        assert max(counts) > 0


def test_many_steps_are_rows_of_numbers():
    finder = StepFinder(skip=2, recorder=Notebook())
    script = Script().call().backward().step()
    first = script.heard
    tracemalloc.start()
    try:
        sizes = []
        for number in range(20_000):
            for event in first:
                finder.fold(event._replace(at=event.at + number * 10**7))
            if number in (10_000, 19_999):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert finder.by_optimizer.count == 20_000
    assert sizes[1] - sizes[0] < 10_000 * 9 * 8 * 1.5  # nine numbers a step


ANY = st.lists(
    st.sampled_from(
        ("call", "other", "evaluate", "returned", "backward", "step", "second", "closure", "fetch", "held_out")
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ANY, st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=20))
def test_of_any_events_steps_are_in_order_and_no_more_than_what_ends_them(words, answers):
    script = Script()
    does = {
        "call": script.call, "other": lambda: script.call(1, elements=3),
        "evaluate": lambda: script.call(grads=False, training=False), "returned": script.returned,
        "backward": script.backward, "step": script.step, "second": lambda: script.step(1),
        "closure": lambda: script.step(runs_model=True), "fetch": script.fetch, "held_out": lambda: script.fetch(2),
    }  # fmt: skip
    for word in words:
        does[word]()
    found = script.found(ear=Answers(answers))
    assert found.by_optimizer.count == sum(word in ("step", "second", "closure") for word in words)
    assert found.by_backward.count <= words.count("backward")
    for steps in (found.by_optimizer, found.by_backward):
        begins, ends = steps.spans(1)
        assert (begins <= ends).all()
        assert (begins[1:] >= ends[:-1]).all()
    again = script.found(ear=Answers(answers))
    assert again.by_optimizer.seconds().tolist() == found.by_optimizer.seconds().tolist()


def test_it_looks_at_nothing_but_events():
    source = Path(sys.modules[StepFinder.__module__].__file__).read_text()
    assert not any(word in source for word in ("import torch", "from torch", "perf_counter", "get_ident", "import sys"))
