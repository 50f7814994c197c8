"""Times joined to records: the longest common sequence, in order, whatever is missing on either side."""

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_model import recorded
from some_presets import presets
from torch import nn

import rooflight as rl
from rooflight.records import assembly
from rooflight.records.record import Direction, ModuleEntry, OpRecord
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.sources.capture.time.collectives import Event
from rooflight.sources.capture.time.kineto import STEP_MARK, align
from rooflight.sources.capture.time.kineto import op_times as times_and_starts
from rooflight.sources.capture.time.measure import joined_share
from rooflight.sources.workloads.presets import PRESETS
from rooflight.sources.workloads.steps import make_step

names = st.lists(st.sampled_from("abcd"), max_size=40)


def longest(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, the slow way."""
    row = [0] * (len(other) + 1)
    for name in one:
        previous = row
        row = [0]
        for j, wanted in enumerate(other):
            row.append(previous[j] + 1 if name == wanted else max(previous[j + 1], row[j]))
    return row[-1]


@settings(max_examples=400, deadline=None)
@given(names, names)
def test_as_many_as_possible_agree_in_order(expected: list[str], found: list[str]) -> None:
    pairs = align(expected, found)
    assert all(expected[i] == found[j] for i, j in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    assert len(pairs) == longest(expected, found)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=300), st.data())
def test_deletions_and_insertions_cost_only_themselves(program: list[str], data: st.DataObject) -> None:
    found, kept = [], 0
    changes = 0
    for name in program:
        kind = data.draw(st.integers(0, 20))
        if kind == 0:
            changes += 1
            continue
        if kind == 1:
            found.append("other")
        kept += 1
        found.append(name)
    assert len(align(program, found)) == kept
    assert kept == len(program) - changes


def test_long_sequences_with_few_changes_are_fast() -> None:
    layer = [f"op{number % 17}" for number in range(300)]
    program = layer * 120  # 36,000 ops
    found = [name for index, name in enumerate(program) if index % 997]
    assert len(align(program, found)) == len(found)


def test_two_different_programs_are_given_up() -> None:
    pairs = align([f"a{number}" for number in range(3000)], [f"b{number}" for number in range(3000)])
    assert pairs == []
    assert align([], ["a"]) == align(["a"], []) == align([], []) == []


def session_of(names: list[str], parents: dict[int, int] | None = None, views: tuple[str, ...] = ()) -> Session:
    records = [
        OpRecord(
            signature=OpSignature(name=name),
            module=ModuleEntry("", ""),
            phase="",
            direction=Direction.FORWARD,
            reads=() if name in views else (0,),
            parent=(parents or {}).get(number),
        )
        for number, name in enumerate(names)
    ]
    return assembly.session_of(records, storage_bytes=[4])


def events_of(names: list[str], *, start: int = 0, thread: int = 1) -> list[Event]:
    """A marked step whose op number n takes n + 1 microseconds."""
    events, now = [], start + 100
    for number, name in enumerate(names):
        events.append(Event(name, now, now + 1000 * (number + 1), thread, number + 1, False))
        now += 1000 * (number + 1) + 10
    return [Event(STEP_MARK, start, now, thread, 0, False), *events]


def op_times(session: Session, events: list[Event], *, device: bool) -> np.ndarray:
    return times_and_starts(session, events, device=device).seconds


def test_each_record_finds_its_event() -> None:
    session = session_of(["aten::mm", "aten::add", "aten::mm"])
    times = op_times(session, events_of(["aten::mm", "aten::add_", "aten::other", "aten::mm"]), device=False)
    assert times[0] == pytest.approx([1e-6, 2e-6, 4e-6])


def test_a_record_without_an_event_has_no_time() -> None:
    session = session_of(["aten::mm", "aten::add", "aten::mm"])
    times = op_times(session, events_of(["aten::mm", "aten::mm"]), device=False)
    assert np.isnan(times[0, 1])
    assert joined_share(session, times) == pytest.approx(2 / 3)


def test_a_parent_takes_the_sum_of_its_children_and_views_do_not_matter() -> None:
    session = session_of(["a::x", "a::view", "a::y", "a::whole"], {0: 3, 1: 3, 2: 3}, views=("a::view",))
    times = op_times(session, events_of(["a::x", "a::y"]), device=False)
    assert times[0, 3] == pytest.approx(3e-6)
    assert np.isnan(times[0, 1])
    assert joined_share(session, times) == 1


def test_ops_inside_ops_are_part_of_them() -> None:
    session = session_of(["a::x", "a::y"])
    step = Event(STEP_MARK, 0, 10_000, 1, 0, False)
    outer = Event("a::x", 100, 5000, 1, 1, False)
    inner = Event("a::y", 200, 300, 1, 2, False)
    after = Event("a::y", 6000, 6500, 1, 3, False)
    assert op_times(session, [step, outer, inner, after], device=False)[0] == pytest.approx([4.9e-6, 5e-7])


def test_kernels_belong_to_the_outermost_op_that_launched_them() -> None:
    session = session_of(["a::x", "a::y"])
    events = [
        Event(STEP_MARK, 0, 10_000, 1, 0, False),
        Event("a::x", 100, 5000, 1, 1, False),
        Event("a::inside", 200, 300, 1, 2, False),
        Event("a::y", 6000, 6500, 1, 3, False),
        Event("kernel", 7000, 9000, 0, 2, True),
        Event("kernel", 9000, 9500, 0, 1, True),
        Event("kernel", 20_000, 21_000, 0, 3, True),  # after the step's mark: the device lags behind
        Event("another step's", 7000, 9000, 0, 99, True),
    ]
    assert op_times(session, events, device=True)[0] == pytest.approx([2.5e-6, 1e-6])


def test_each_marked_step_is_a_row() -> None:
    session = session_of(["a::x"])
    events = [*events_of(["a::x"]), *events_of(["a::x"], start=10_000_000)]
    assert op_times(session, events, device=False).shape == (2, 1)
    assert op_times(session, [], device=False).shape == (0, 1)


@settings(max_examples=100, deadline=None)
@given(names, names)
def test_views_never_cost_a_working_op_its_time(program: list[str], found: list[str]) -> None:
    """The working ops ("a", "b") are joined as well as if there were no views ("c", "d")."""
    session = session_of([f"x::{name}" for name in program] or ["x::a"], views=("x::c", "x::d"))
    if not program:
        return
    times = op_times(session, events_of([f"x::{name}" for name in found]), device=False)[0]
    joined = sum(np.isfinite(times[index]) for index, name in enumerate(program) if name in "ab")
    assert joined == longest([n for n in program if n in "ab"], [n for n in found if n in "ab"])
    ticks = Counter(times[np.isfinite(times)].tolist())
    assert set(ticks.values()) <= {1}  # no event twice


# -- real models -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _untouched() -> None:
    """Transformers, imported inside, leaves filters of warnings."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["train", "forward"])
@pytest.mark.parametrize("preset", presets(PRESETS))
def test_the_records_of_every_preset_find_their_times(preset: str, mode: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    step = make_step(preset, small=True, device="cpu", step=mode)  # type: ignore[arg-type]
    step.run()
    recording = recorded(step.run, step.model)
    start = time.perf_counter()
    session = rl.measure(recording, step.run, warmup=1, max_runs=3, max_seconds=1, profiled=2)
    seconds = time.perf_counter() - start
    torch.set_num_threads(threads)
    measured = session.measurement
    assert joined_share(session, measured.op_samples_s) > 0.99
    times = measured.op_samples_s[:, session.counted]
    assert (times[np.isfinite(times)] >= 0).all()
    # on a CPU, ops are most of the step, and none of their time is counted twice
    assert 0.3 * float(measured.wall_samples_s.min()) < float(np.nansum(times, axis=1).max())
    assert float(np.nansum(times)) < seconds


def test_a_copy_that_autograd_keeps_is_an_op_of_its_own_before_the_op_that_overwrites() -> None:
    session = session_of(["aten::clone", "aten::mul_", "aten::clone"])
    events = [
        Event(STEP_MARK, 0, 10_000, 1, 0, False),
        Event("aten::mul_", 100, 5100, 1, 1, False),
        Event("aten::clone", 200, 1200, 1, 2, False),
        Event("aten::clone", 6000, 6500, 1, 3, False),
    ]
    assert op_times(session, events, device=False)[0] == pytest.approx([1e-6, 4e-6, 5e-7])


LINEAR, GRU, POOL = nn.Linear(8, 4), nn.GRU(8, 4), nn.MaxPool1d(3)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("model", [LINEAR, GRU, POOL], ids=["linear", "gru", "pool"])
def test_the_ops_that_run_are_those_recorded(model: nn.Module, mode: Any) -> None:
    x = torch.randn(3, 5, 8).transpose(0, 1)
    with mode():
        session = rl.measure(lambda: model(x))
    assert session.measurement is not None
    assert joined_share(session, session.measurement.op_samples_s) == 1
