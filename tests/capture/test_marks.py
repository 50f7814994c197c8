"""Marks cut time without losing any: exact sums on a fake clock, and events that stand in for CUDA's."""

from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fake_device import FakeDevice
from hypothesis import given
from hypothesis import strategies as st

from rooflight.sources.capture.time.marks import CudaMarks, HostMarks
from rooflight.sources.capture.time.spans import look_of


def seconds(found: Any) -> dict[int, float]:
    total: dict[int, int] = {}
    for key, nanoseconds in found:
        assert type(nanoseconds) is int
        total[key] = total.get(key, 0) + nanoseconds
    return {key: nanoseconds / 1e9 for key, nanoseconds in total.items() if nanoseconds}


def host(clock: FakeClock, keys: int) -> HostMarks:
    marks = HostMarks(clock.now_ns)
    marks.start(keys)
    return marks


def test_time_belongs_to_the_mark_before_it():
    clock = FakeClock()
    marks = host(clock, 3)
    clock.advance(1)
    assert marks.mark(2) == 0
    clock.advance(2)
    assert marks.mark(1) == 2
    clock.advance(4)
    assert marks.mark(2) == 1
    clock.advance(8)
    assert seconds(marks.cut(1)()) == {0: 1, 1: 4, 2: 10}  # 2 + 8 = 10
    clock.advance(16)
    assert seconds(marks.cut(0)()) == {1: 16}


def test_time_before_the_start_does_not_count():
    clock = FakeClock()
    marks = HostMarks(clock.now_ns)
    clock.advance(100)
    marks.start(2)
    marks.mark(1)
    clock.advance(1)
    assert seconds(marks.cut(0)()) == {1: 1}
    clock.advance(100)
    marks.start(2)
    clock.advance(1)
    assert seconds(marks.cut(0)()) == {0: 1}


def test_what_a_cut_gave_stays_while_marks_go_on():
    clock = FakeClock()
    marks = host(clock, 2)
    clock.advance(1)
    read = marks.cut(0)
    clock.advance(5)
    marks.mark(1)
    assert seconds(read()) == {0: 1}
    assert seconds(read()) == {0: 1}


def test_more_keys_than_at_the_start():
    clock = FakeClock()
    marks = host(clock, 1)
    marks.reserve(5)
    marks.mark(4)
    clock.advance(1)
    assert seconds(marks.cut(0)()) == {4: 1}
    marks.reserve(2)
    marks.mark(4)  # room is never given up
    clock.advance(1)
    assert seconds(marks.cut(0)()) == {4: 1}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**12)), max_size=40))
def test_the_sums_are_the_wall_to_the_nanosecond(steps):
    clock = FakeClock()
    marks = host(clock, 6)
    for key, nanoseconds in steps:
        clock.time_ns += nanoseconds
        marks.mark(key)
    found = marks.cut(0)()
    assert found is not None
    assert sum(nanoseconds for _, nanoseconds in found) == clock.time_ns


S = 10**9  # nanoseconds of a FakeDevice's second


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def marks(device) -> CudaMarks:
    found = CudaMarks(device)
    found.start(3)
    return found


def test_events_are_read_once_the_device_has_passed_them(device, marks):
    for key, took in ((1, 1), (2, 2)):
        device.work(took * S)
        marks.mark(key)
    device.work(4 * S)
    read = marks.cut(0)
    assert [read(), read()] == [None, None]
    device.finish()
    assert [seconds(read()) for _ in range(2)] == [{0: 1, 1: 2, 2: 4}] * 2


def test_the_next_step_begins_where_the_last_ended(device, marks):
    reads = []
    for step in range(1, 4):
        marks.mark(1)
        device.work(step * S)
        reads.append(marks.cut(0))
        device.work(10 * S)
    device.finish()
    assert [seconds(read()) for read in reads] == [{1: 1}, {0: 10, 1: 2}, {0: 10, 1: 3}]


def test_events_are_used_again(device, marks):
    for _ in range(1000):
        for key in (1, 0):
            marks.mark(key)
            device.work(S)
        read = marks.cut(0)
        device.finish()
        assert seconds(read()) == {0: 1, 1: 1}
    assert device.events < 10


def test_a_step_that_is_never_read_spoils_no_other(device, marks):
    reads = []
    for _ in range(3):
        marks.mark(1)
        device.work(S)
        reads.append(marks.cut(0))
    device.finish()
    assert seconds(reads[1]()) == {1: 1}  # the first was given up
    for _ in range(5):  # on the events of the step that was read
        marks.mark(1)
        device.work(7 * S)
    device.finish()
    assert seconds(reads[2]()) == {1: 1}
    read = marks.cut(0)
    device.finish()
    assert seconds(read()) == {1: 35}


def test_a_graph_that_is_being_captured_gets_no_marks(device, marks):
    device.capturing, made = True, device.events
    assert marks.mark(1) == 0
    assert marks.mark(0) == 1
    assert device.events == made
    device.capturing = False
    device.work(S)
    read = marks.cut(0)
    device.finish()
    assert seconds(read()) == {0: 1}


# -- what calls look like -------------------------------------------------------------------------------------------


class Cache:
    def __init__(self, length: Any) -> None:
        self.length = length

    def get_seq_length(self) -> Any:
        if isinstance(self.length, Exception):
            raise self.length
        return self.length


def test_calls_of_the_same_shapes_look_the_same():
    a, b = torch.ones(2, 3), torch.zeros(2, 3)
    assert look_of(((a, None), {"mask": [b]})) == look_of(((b, None), {"mask": [a]}))
    hash(look_of(((a, object(), {1: {2: {3: {4: {5: [6]}}}}}), {"mask": [b]})))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        ((1, 2), (1, 3)),
        ({"use_cache": True}, {"use_cache": False}),
        ({"a": 1}, {"b": 1}),
        (None, 0),
        (Cache(3), Cache(4)),
        (Cache(3), None),
    ],
)
def test_calls_that_run_other_ops_look_different(one, other):
    assert look_of(one) != look_of(other)


def test_values_and_a_cache_of_fixed_size_do_not_count():
    assert look_of(1.5) == look_of(2.5)
    assert look_of(Cache(torch.tensor(3))) == look_of(Cache(torch.tensor(4)))  # not even read: on a GPU it would wait
    assert look_of(Cache(ValueError("not yet"))) == (Cache, None)


def test_a_look_at_a_huge_argument_is_short():
    many = [torch.ones(1)] * 100_000
    assert len(look_of(many)) == 64
    loop: list[Any] = []
    loop.append(loop)
    hash(look_of(loop))
