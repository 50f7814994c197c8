"""The log of a step: what is read from it, also where a program was interrupted, and that it stays short."""

import threading

import pytest
from fake_clock import FakeClock
from fake_device import FakeDevice

from rooflight.sources.capture.time.bucket_log import _MOST_PLANS, _MOST_READ, BucketLog
from rooflight.sources.capture.time.buckets import IN_STEP, OUTSIDE
from rooflight.sources.capture.time.marks import CudaStamps, HostStamps


class Bench:
    def __init__(self) -> None:
        self.clock, self.problems = FakeClock(), []
        self.log = BucketLog(HostStamps(self.clock.now_ns), ("m",), self.problems.append, self.problems.append)
        self.states = self.log

    def step(self, *programs: tuple[str, int]) -> tuple[int, int]:
        """A step of buckets that take nanoseconds."""
        begun = self.log.begin()
        for name, nanoseconds in programs:
            with self.log.bucket("m", name):
                self.clock.time_ns += nanoseconds
        self.clock.time_ns += 1
        return begun, self.log.end()

    def by_name(self, place: tuple[int, int]) -> dict[str | None, int]:
        found, _ = self.log.read(*place)
        return {self.states.innermost("m", state): ns for state, ns in found if state != OUTSIDE}


def test_steps_are_read_in_order_whenever_that_is():
    bench = Bench()
    places = [bench.step(("a", 2), ("b", 4)), bench.step(("a", 8)), bench.step(("a", 16), ("b", 32), ("a", 64))]
    assert [bench.by_name(place) for place in places] == [
        {None: 1, "a": 2, "b": 4}, {None: 1, "a": 8}, {None: 1, "a": 80, "b": 32}]  # fmt: skip
    assert bench.log.read(*bench.step(("a", 3)))[1] == ((("m", "a"), 1),)


def test_the_time_between_steps_is_outside_and_not_counted_after_one_that_is_left_out():
    bench = Bench()
    bench.log.read(*bench.step())
    bench.clock.time_ns += 5
    assert dict(bench.log.read(*bench.step())[0]) == {OUTSIDE: 5, IN_STEP: 1}
    bench.clock.time_ns += 7
    bench.step()
    bench.log.lose()
    assert dict(bench.log.read(*bench.step())[0]) == {IN_STEP: 1}


def test_a_step_that_was_interrupted_while_it_wrote_spoils_no_other():
    bench = Bench()
    first = bench.step(("a", 2))
    begun = bench.log.begin()
    bench.log._pen.log.append(3)  # a stamp whose key was never written
    second = begun, bench.log.end()
    third = bench.step(("a", 4))
    assert bench.by_name(first) == {None: 1, "a": 2}
    with pytest.raises(ValueError, match="interrupted"):
        bench.log.read(*second)
    assert bench.by_name(third) == {None: 1, "a": 4}


def test_what_a_step_that_was_stopped_wrote_is_not_in_the_next():
    bench = Bench()
    bench.log.begin()
    bench.log.bucket("m", "a").__enter__()
    bench.log.stop()
    with bench.log.bucket("m", "a"):  # in no step: nothing is written
        pass
    length = len(bench.log._pen.log)
    assert length == 4  # begin and the bucket, each a stamp and a key
    assert bench.by_name(bench.step(("b", 2))) == {None: 1, "b": 2}


def test_the_log_stays_short_also_where_one_step_always_waits():
    bench = Bench()
    for _ in range(3):
        waiting = bench.step(("a", 1))
        for number in range(2000):
            place, waiting = waiting, bench.step(("a", number))
            bench.log.read(*place)
            bench.log.forget(place[1])
        assert len(bench.log._pen.log) <= _MOST_READ + 16
        bench.log.read(*waiting)
        bench.log.forget(waiting[1])
        assert bench.log._pen.log == []


def test_steps_that_never_repeat_are_not_all_kept():
    bench = Bench()
    for number in range(1, 3 * _MOST_PLANS):
        place = bench.step(*[("a", 1)] * number)
        assert bench.by_name(place) == {None: 1, "a": number}
        bench.log.forget(place[1])
    assert len(bench.log._plans) <= _MOST_PLANS


def test_in_order_each_stretch_is_one():
    bench = Bench()
    log = BucketLog(HostStamps(bench.clock.now_ns), ("m",), bench.problems.append, bench.problems.append, in_order=True)
    begun = log.begin()
    for nanoseconds in (2, 3):
        with log.bucket("m", "a"):
            bench.clock.time_ns += nanoseconds
    found, _ = log.read(begun, log.end())
    (a,) = {state for state, _ in found} - {IN_STEP}
    assert found == [(IN_STEP, 0), (a, 2), (IN_STEP, 0), (a, 3), (IN_STEP, 0)]


def test_events_are_used_again_and_read_when_the_device_has_passed_them():
    device = FakeDevice()
    log = BucketLog(CudaStamps(device), ("m",), print, print)

    def step() -> tuple[int, int]:
        begun = log.begin()
        with log.bucket("m", "a"):
            device.work(5)
        return begun, log.end()

    place = step()
    assert log.read(*place) is None
    device.finish()
    assert sorted(ns for _, ns in log.read(*place)[0]) == [0, 5]
    for _ in range(50):
        place = step()
        device.finish()
        assert sum(ns for _, ns in log.read(*place)[0]) == 5
        log.forget(place[1])
    assert device.events == 5  # four a step, and the end of the one before
    assert device.syncs == 0


def test_a_call_with_a_bucket_around_it():
    bench = Bench()
    a, b, c, d = (bench.log.bucket("m", name) for name in "abcd")

    def work(nanoseconds, *, then=lambda: None):
        bench.clock.time_ns += nanoseconds
        then()
        return nanoseconds

    def fails():
        raise KeyError("x")

    assert a.around(work, (3,), {}) == 3  # outside of a step: called, not timed
    begun = bench.log.begin()
    assert a.around(work, (5,), {"then": lambda: b.around(work, (7,), {})}) == 5
    with pytest.raises(KeyError):
        c.around(work, (11,), {"then": fails})
    elsewhere = threading.Thread(target=d.around, args=(work, (17,), {}))
    elsewhere.start()
    elsewhere.join()
    assert bench.by_name((begun, bench.log.end())) == {None: 17, "a": 5, "b": 7, "c": 11}
    assert bench.problems == ["bucket d was opened in another thread than its step's: it was not timed there"]


def test_a_call_goes_on_where_the_clock_fails_and_where_its_step_ends_in_it():
    bench = Bench()
    a = bench.log.bucket("m", "a")
    begun = bench.log.begin()
    ended = []
    assert a.around(lambda: ended.append(bench.log.end()) or 1, (), {}) == 1
    assert bench.by_name((begun, ended[0])).keys() <= {None, "a"}
    assert bench.problems == ["bucket a was left open at the end of a step: it was closed there"]
    assert bench.log._pen.log[-1] == -1  # nothing after the step's end

    readings = iter([1])
    log = BucketLog(HostStamps(lambda: next(readings)), ("m",), bench.problems.append, bench.problems.append)
    log.begin()
    assert log.bucket("m", "a").around(lambda: 2, (), {}) == 2
    assert bench.problems[1:] == ["timing ended after an error: StopIteration: "]


@pytest.mark.parametrize("around", [False, True])
def test_a_full_log_drops_and_counts_what_opens_and_the_next_step_is_whole(monkeypatch, around):
    monkeypatch.setattr("rooflight.sources.capture.time.bucket_log.MOST_NOTES", 5)
    bench = Bench()
    outer, inner = bench.log.bucket("m", "outer"), bench.log.bucket("m", "a")

    def work():
        bench.clock.time_ns += 10

    begun = bench.log.begin()  # a note
    with outer:  # the second
        bench.clock.time_ns += 2
        for _ in range(4):
            # two notes each: with the third opening there are seven, which is too much
            if around:
                inner.around(work, (), {})
            else:
                with inner:
                    work()
            bench.clock.time_ns += 100
    step = begun, bench.log.end()
    found, calls = bench.log.read(*step)
    by_name = {bench.states.innermost("m", state): ns for state, ns in found}
    # the third opening is in the log, and takes no time: from there on the step is in no bucket
    assert by_name == {None: 110 + 110, "outer": 2 + 100 + 100, "a": 10 + 10}
    assert dict(calls) == {("m", "outer"): 1, ("m", "a"): 3}
    assert sum(by_name.values()) == 2 + 4 * 110
    assert not bench.problems  # nothing was left open, and no other thread opened anything
    assert bench.log.take_dropped() == 1
    assert bench.log.take_dropped() == 0
    bench.log.forget(step[1])
    assert bench.by_name(bench.step(("a", 2), ("b", 4))) == {None: 1, "a": 2, "b": 4}


def test_a_log_is_no_longer_than_its_limit(monkeypatch):
    monkeypatch.setattr("rooflight.sources.capture.time.bucket_log.MOST_NOTES", 1000)
    bench = Bench()
    for _ in range(50):
        bench.step(*(("a", 1),) * 100)  # never read
    assert bench.log.notes <= 1000 + 4 * 50  # begin, one opening, the mark that it is full, and end
