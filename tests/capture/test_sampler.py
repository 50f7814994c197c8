"""The sampler of a script's main thread: by a timer's signal, where that is free, else by a thread."""

from __future__ import annotations

import signal
import sys
import threading
import time
from math import inf

import numpy as np
import pytest

from rooflight.records.timeline import HostTime
from rooflight.sources.capture.run import sampler as module
from rooflight.sources.capture.run.sampler import Sampler
from rooflight.sources.capture.time.ticks import Ticks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timers that interrupt one thread are Linux's")


def busy(seconds: float) -> float:
    """How long it took: beside other programs more than it worked."""
    begin, end = time.perf_counter(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return time.perf_counter() - begin


def sampled(run: object, sampler: Sampler) -> HostTime:
    begin = time.perf_counter_ns()
    sampler.start()
    try:
        run()  # type: ignore[operator]
    finally:
        sampler.stop()
    found = sampler.within(np.array([begin]), np.array([time.perf_counter_ns()]))
    assert found is not None
    return found


def test_a_busy_line_and_a_sleeping_one_are_told_apart() -> None:
    took = [0.0, 0.0]

    def program() -> None:
        for _ in range(20):
            took[0] += busy(0.01)
            begin = time.perf_counter()
            time.sleep(0.02)
            took[1] += time.perf_counter() - begin

    found = sampled(program, Sampler(lambda: False, interval_s=5e-3, share=inf))
    by_function: dict[str, list[float]] = {}
    for line in filter(lambda each: each.where, found.lines):
        sums = by_function.setdefault(line.where.function.rpartition(".")[2], [0.0, 0.0])
        sums[0] += line.seconds
        sums[1] += line.asleep_s
    assert by_function["busy"][0] == pytest.approx(took[0], rel=0.5)
    assert by_function["program"][1] > 0.6 * by_function["program"][0]  # asleep
    assert by_function["program"][0] == pytest.approx(took[1], rel=0.5)
    assert found.cpu_s < 0.35


def test_turns_that_are_shorter_than_the_interval_are_told_apart_too() -> None:
    def program() -> None:
        for _ in range(300):
            busy(0.003)
            time.sleep(0.003)

    def are_told_apart() -> bool:
        lines = [each for each in sampled(program, Sampler(lambda: False)).lines if each.where]
        working = [each for each in lines if each.where.function == "busy"]
        asleep = [each for each in lines if each.where.function.endswith("program")]
        works = sum(each.asleep_s for each in working) < 0.4 * sum(each.seconds for each in working)
        return works and sum(each.asleep_s for each in asleep) > 0.6 * sum(each.seconds for each in asleep)

    assert any(are_told_apart() for _ in range(4))  # few samples, on a machine that does other work too


def test_ticks_go_on_where_a_look_at_the_thread_fails() -> None:
    looks = []

    def see(_: object) -> None:
        looks.append(1)
        if len(looks) < 4:
            raise RecursionError

    ticks = Ticks(see, lambda *_: None, 5e-3)
    ticks.start()
    busy(0.2)
    ticks.stop()
    assert len(looks) > 8


def test_a_tick_within_a_tick_is_none() -> None:
    # what a look frees may run code of its own, and parsing within parsing fails in Python 3.11
    depths, depth = [], 0

    def see(_: object) -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        signal.raise_signal(signal.SIGURG)
        depth -= 1

    ticks = Ticks(see, lambda *_: None, 5e-3)
    ticks.start()
    busy(0.1)
    ticks.stop()
    assert len(depths) > 4
    assert set(depths) == {1}


def test_the_signal_is_as_before_and_nothing_ticks_afterwards() -> None:
    sampler = Sampler(lambda: False)
    sampler.start()
    assert signal.getsignal(signal.SIGURG) == sampler._ticks._tick
    sampler.stop()
    sampler.stop()
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
    count = len(sampler._samples)
    busy(0.03)
    assert len(sampler._samples) == count


def test_a_handler_that_the_script_set_meanwhile_stays() -> None:
    sampler = Sampler(lambda: False)
    sampler.start()
    own = lambda *_: None  # noqa: E731
    try:
        signal.signal(signal.SIGURG, own)
        sampler.stop()
        assert signal.getsignal(signal.SIGURG) is own
    finally:
        signal.signal(signal.SIGURG, signal.SIG_DFL)


def test_where_the_signal_is_taken_a_thread_looks() -> None:
    signal.signal(signal.SIGURG, lambda *_: None)
    try:
        found = sampled(lambda: busy(0.3), Sampler(lambda: False, interval_s=1e-2, share=inf))
    finally:
        signal.signal(signal.SIGURG, signal.SIG_DFL)
    assert sum(line.seconds for line in found.lines if line.where and line.where.function == "busy") > 0.15


def test_in_another_thread_it_does_not_fail() -> None:
    found: list[HostTime] = []

    def work() -> None:
        found.append(sampled(lambda: busy(0.3), Sampler(lambda: False, interval_s=1e-2, share=inf)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].lines[0].where.function == "busy"


def test_samples_are_thinned_and_still_stand_for_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 32)
    sampler = Sampler(lambda: False, interval_s=1e-3, share=inf)
    took = []
    found = sampled(lambda: took.append(busy(0.4)), sampler)
    assert len(sampler._samples) < 32 * module._WIDTH
    assert sampler._ticks._interval_s > 1e-3
    assert sum(line.seconds for line in found.lines) == pytest.approx(took[0], rel=0.3)


def test_a_tick_while_samples_are_thinned_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 4)
    sampler = Sampler(lambda: False, share=inf)
    plain, nested = module.add, []

    def ticking(one: int, other: int) -> int:
        if not nested:  # a signal comes in the middle
            nested.append(True)
            sampler._take(("nested",), 1.0, 0.0, 0.0)
        return plain(one, other)

    monkeypatch.setattr(module, "add", ticking)
    for _ in range(4):
        sampler._take(("line",), 1.0, 0.0, 0.0)
    seconds = np.array(sampler._samples).reshape(-1, module._WIDTH)[:, 2]
    assert seconds.sum() == 5e9
    assert len(seconds) == 3  # two pairs, and the one that came


def test_evaluations_are_apart() -> None:
    evaluates = [False]
    took = []

    def program() -> None:
        took.append(busy(0.1))
        evaluates[0] = True
        took.append(busy(0.2))
        evaluates[0] = False

    sampler = Sampler(lambda: evaluates[0], interval_s=5e-3, share=inf)
    begin = time.perf_counter_ns()
    rest = sampled(program, sampler)
    other = sampler.within(np.array([begin]), np.array([time.perf_counter_ns()]), evaluating=True)
    assert other is not None
    assert sum(each.seconds for each in other.lines) == pytest.approx(took[1], rel=0.4)
    assert sum(each.seconds for each in rest.lines) == pytest.approx(took[0], rel=0.6)


def test_of_few_samples_nothing_is_said() -> None:
    sampler = Sampler(lambda: False)
    sampler.start()
    sampler.stop()
    assert sampler.within(np.array([0]), np.array([time.perf_counter_ns()])) is None
    assert sampler.within(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)) is None
    assert sampler.whole == ()
