"""Hot paths: what the page promises, streams that interleave and nest, and memory over any stream."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.compiling import HotPath, HotPathDetector
from rooflight.studies.compiling.hot import detector as module


def iteration(detector: HotPathDetector, *ops: tuple[str, tuple[int, ...]]) -> bool:
    detector.begin_iteration()
    for op, shape in ops:
        detector.record_operation(op, shape)
    return detector.end_iteration()


def test_patterns_that_alternate_are_both_found() -> None:
    train, evaluate = [("mm", (8, 8)), ("backward", (8, 8))], [("mm", (8, 8))]
    detector = HotPathDetector(3)
    answers = [iteration(detector, *(train if number % 2 else evaluate)) for number in range(8)]
    assert answers == [False] * 4 + [True] * 4


def test_other_shapes_orders_and_wirings_are_other_patterns() -> None:
    detector = HotPathDetector(2)
    assert not iteration(detector, ("mm", (8, 8)), ("relu", (8, 8)))
    assert not iteration(detector, ("mm", (8, 9)), ("relu", (8, 8)))
    assert not iteration(detector, ("relu", (8, 8)), ("mm", (8, 8)))
    for inputs, hot in (((1, 1), False), ((1, 2), False), ((1, 1), True)):
        detector.begin_iteration()
        detector.record_operation("mm", [8, 8])
        detector.record_operation("mm", [8, 8])
        detector.record_operation("add", [8, 8], inputs=inputs)
        assert detector.end_iteration() is hot


def test_each_pattern_is_announced_once() -> None:
    found: list[HotPath] = []
    detector = HotPathDetector(2, on_hot=found.append)
    for _ in range(5):
        iteration(detector, *[(f"op{number}", (1,)) for number in range(9)])
    assert found == [HotPath(9, tuple(f"op{number}" for number in range(8)), 2, iteration=True)]
    assert str(found[0]) == (
        "hot path: an iteration of 9 operations, seen 2 times: op0, op1, op2, op3, op4, op5, op6, op7, …"
    )


def test_a_stream_without_iterations_is_hot_while_it_repeats() -> None:
    found: list[HotPath] = []
    detector = HotPathDetector(3, on_hot=found.append)
    states = []
    for op in "abcabcabcabxy":
        detector.record_operation(op)
        states.append(detector.should_compile())
    assert states == [False] * 8 + [True] * 3 + [False] * 2
    assert found == [HotPath(3, ("a", "b", "c"), 3, iteration=False)]


def test_nested_loops_are_hot_as_a_whole() -> None:
    # an inner loop of 3, twice unequal inside the outer one: only the outer period of 8 repeats 4 times
    detector = HotPathDetector(4)
    for _ in range(4):
        assert not detector.should_compile()
        for op in "aaabaaac":
            detector.record_operation(op, (4,))
    assert detector.should_compile()


def test_an_iteration_without_end_is_forgotten_and_an_empty_one_is_no_pattern() -> None:
    detector = HotPathDetector(2)
    iteration(detector, ("mm", (8,)))
    detector.begin_iteration()
    detector.record_operation("relu", (8,))
    # an exception of the program's
    assert iteration(detector, ("mm", (8,)))
    detector = HotPathDetector(1)
    assert not iteration(detector)
    assert not iteration(detector)
    with pytest.raises(ValueError, match="end_iteration without begin_iteration"):
        HotPathDetector().end_iteration()


def test_what_on_hot_raises_passes_and_the_count_is_kept() -> None:
    def refuse(path: HotPath) -> None:
        raise RuntimeError(str(path.operations))

    detector = HotPathDetector(2, on_hot=refuse)
    iteration(detector, ("mm", (8,)))
    with pytest.raises(RuntimeError, match="1"):
        iteration(detector, ("mm", (8,)))
    assert iteration(detector, ("mm", (8,)))


@pytest.mark.parametrize("threshold", [0, -1, True, 2.5, "10", None])
def test_thresholds_that_are_no_counts(threshold) -> None:
    with pytest.raises(ValueError, match=r"hot_threshold .* a whole number from 1"):
        HotPathDetector(threshold)


def test_memory_is_bounded_over_random_streams(monkeypatch) -> None:
    monkeypatch.setattr(module, "_MOST_PATTERNS", 100)
    detector, noise = HotPathDetector(10), random.Random(0)
    for number in range(3000):
        iteration(detector, (f"op{noise.random()}", (number,)))
    assert len(detector._seen) == 100
    for number in range(2 * module.LONGEST_PERIOD):
        detector.record_operation(f"op{noise.random()}", (number,))
    stream = detector._stream
    assert (
        max(*(len(context._last) for context in stream._contexts), len(stream._kinds), len(stream._names))
        <= module.LONGEST_PERIOD
    )
    assert len(stream._periods) <= 8
    assert not detector.should_compile()


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(2, 6), st.text("xyz", max_size=20))
def test_any_pattern_repeated_often_enough_is_hot(pattern, threshold, before) -> None:
    detector = HotPathDetector(threshold)
    # a pattern within which others repeat is known by its last 16 operations
    for op in [*before, *(pattern * (threshold + 16))[: len(pattern) * threshold + 16]]:
        detector.record_operation(op)
    assert detector.should_compile()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=200), st.integers(2, 5))
def test_a_stream_is_hot_only_where_it_repeats(stream, threshold) -> None:
    detector = HotPathDetector(threshold)
    for number, op in enumerate(stream, start=1):
        detector.record_operation(str(op))
        seen = stream[:number]
        periods = range(1, number // threshold + 1)
        repeats = any(seen[-period * threshold :] == seen[-period:] * threshold for period in periods)
        assert not detector.should_compile() or repeats


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(2, 4), st.lists(st.integers(4, 6), max_size=5))
def test_a_stream_that_stopped_repeating_is_found_again(pattern, threshold, between) -> None:
    detector = HotPathDetector(threshold)
    many = pattern * (threshold + 20)
    for op in [*many, *between, *many]:
        detector.record_operation(str(op))
    assert detector.should_compile()
    last = [str(op) for op in many][-len(pattern) :]
    # one more of the same keeps it hot, and an operation that never was ends it
    detector.record_operation(last[-len(pattern)])
    assert detector.should_compile()
    detector.record_operation("never before")
    assert not detector.should_compile()
