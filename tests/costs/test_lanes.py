"""Lanes compute what Python computes of each number alone, bit for bit."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.lanes import Disagreement, Lanes, OneByOneError, array_of, larger, over_lanes, smaller

edges = st.sampled_from([2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63])
whole = st.integers(-(2**70), 2**70) | st.integers(-50, 50) | edges
real = st.floats(1e-6, 1e12) | st.floats(-1e12, -1e-6) | st.sampled_from([0.0, 0.5, 1e100])
BOTH = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod]
COMPARED = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def lanes(numbers: list[Any]) -> Any:
    """As integers where all are, int64 where it holds them."""
    if any(isinstance(number, float) for number in numbers):
        return Lanes(np.array(numbers, dtype=np.float64))
    return Lanes(np.array(numbers, dtype=np.int64 if max(map(abs, numbers)) < 2**63 else object))


def numbers(found: Any, count: int) -> list[Any]:
    """What lanes hold, the same number in all where it is a plain one."""
    return found.values.tolist() if type(found) is Lanes else [found] * count


pairs = st.one_of(*(st.lists(st.tuples(each, each), min_size=2, max_size=6) for each in (whole, real)))


@pytest.mark.parametrize("operation", [*BOTH, *COMPARED, larger, smaller], ids=lambda each: each.__name__)
@given(pairs=pairs, alone=st.booleans())
def test_an_operation_on_lanes_is_that_on_each(operation: Callable[[Any, Any], Any], pairs: list[Any], alone: bool):
    left, right = map(list, zip(*pairs, strict=True))
    if operation in (operator.truediv, operator.floordiv, operator.mod, divmod):
        right = [each or 1 for each in right]
    if alone:
        right = right[:1] * len(right)
    plain = {larger: max, smaller: min}.get(operation, operation)
    try:
        expected = [plain(one, other) for one, other in zip(left, right, strict=True)]
    except OverflowError:  # the quotient of ints that no float holds
        return
    for one, other in ((lanes(left), right[0] if alone else lanes(right)), (lanes(left), lanes(right))):
        found = operation(one, other)
        if operation is divmod:
            found = list(zip(*(numbers(part, len(left)) for part in found), strict=True))
            assert found == expected
        else:
            assert numbers(found, len(left)) == expected
            assert [type(each) for each in numbers(found, len(left))] == [type(each) for each in expected]


@given(st.lists(whole, min_size=2, max_size=5), whole)
def test_a_plain_number_may_stand_on_the_left(right: list[int], left: int):
    for operation in (operator.add, operator.sub, operator.mul):
        assert numbers(operation(left, lanes(right)), 0) == [operation(left, each) for each in right]
    assert numbers(left // lanes([each or 1 for each in right]), 0) == [left // (each or 1) for each in right]


@pytest.mark.parametrize("operation", [operator.and_, operator.or_, operator.xor], ids=lambda each: each.__name__)
@given(pairs=st.lists(st.tuples(whole, whole), min_size=2, max_size=6), truth=st.booleans())
def test_bits_are_those_of_python(operation: Callable[[Any, Any], Any], pairs: list[Any], truth: bool):
    left, right = map(list, zip(*pairs, strict=True))
    found = operation(lanes(left), lanes(right))
    assert numbers(found, 0) == [operation(one, other) for one, other in pairs]
    assert all(abs(each) <= found.limit for each in numbers(found, 0))
    same = [operation(truth, one > other) for one, other in pairs]
    assert [repr(each) for each in numbers(operation(truth, lanes(left) > lanes(right)), len(pairs))] == list(
        map(repr, same)
    )


def test_what_formulas_do_with_sizes():
    sizes = lanes([3, 4, 5])
    assert math.prod((2, sizes, sizes)).values.tolist() == [18, 32, 50]
    assert sum([1, sizes]).values.tolist() == [4, 5, 6]
    assert (-(-sizes // 2)).values.tolist() == [2, 2, 3]
    assert math.trunc(sizes * 0.3).values.tolist() == [0, 1, 1]
    assert math.ceil(sizes / 2).values.tolist() == [2, 2, 3]
    assert ((1 - 1 / sizes) ** 2).values.tolist() == [(1 - 1 / each) ** 2 for each in (3, 4, 5)]
    assert (sizes & -sizes).values.tolist() == [1, 4, 1]
    assert (1 + (sizes > 3)).values.tolist() == [1, 2, 2]
    assert isinstance(sizes, int)
    assert isinstance(sizes / 2, float)
    assert array_of(sizes, 3).tolist() == [3, 4, 5]
    assert array_of(2, 3).tolist() == [2, 2, 2]


def test_lanes_that_agree_are_as_good_as_a_number():
    four = lanes([4, 4])
    assert four == 4
    assert bool(four > 3)
    assert [0] * four == [0] * 4
    assert (list(range(four)), f"{four}", float(four), hash(four)) == ([0, 1, 2, 3], "4", 4.0, hash(4))


def test_lanes_that_disagree_stop_the_run():
    few, many = lanes([1, 1, 7]), lanes(list(range(1000)))
    with pytest.raises(Disagreement) as found:
        bool(few > 3)
    assert found.value.parts.tolist() == [0, 0, 1]
    with pytest.raises(Disagreement) as found:
        [0] * few
    assert found.value.parts.tolist() == [0, 0, 1]
    with pytest.raises(Disagreement):
        1 // lanes([0, 1])
    with pytest.raises(ZeroDivisionError):
        1 // lanes([0, 0])
    for odd in (lambda: range(many), lambda: few.bit_length, lambda: np.sqrt(few), lambda: few + "1"):
        with pytest.raises(OneByOneError):
            odd()


def branching(shape: Any) -> Any:
    """Branches, repeats, asks for a number, and fails for some."""
    a, b = shape["a"], shape["b"]
    if a > b:
        return a - b
    if a % 3 == 0:
        return sum([b] * (a % 5)) + len(f"{a % 2}")
    if a == 7:
        return a.bit_length() * b
    return min(a * a, b) if b > 10 else 1.5 * a


shapes = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 40)), min_size=1, max_size=120)


@given(shapes)
def test_a_run_over_lanes_is_one_run_for_each_shape(wanted: list[tuple[int, int]]):
    a, b = np.array(wanted, dtype=np.int64).T
    found = np.full(len(wanted), np.nan)
    for rows, value in over_lanes(branching, {"a": a, "b": b}):
        assert np.isnan(found[rows]).all()  # each shape once
        found[rows] = array_of(value, len(rows))
    assert found.tolist() == [branching({"a": one, "b": other}) for one, other in wanted]


def test_what_fails_for_a_shape_fails_as_it_would_alone():
    def fails(shape: Any) -> Any:
        if shape["a"] == 50:
            raise ValueError("fifty")
        return shape["a"]

    with pytest.raises(ValueError, match="fifty"):
        list(over_lanes(fails, {"a": np.arange(100)}))


def test_runs_that_part_without_end_go_on_one_by_one():
    def collatz(shape: Any) -> Any:
        number, steps = shape["a"], 0
        while number != 1:
            number, steps = (3 * number + 1 if number % 2 else number // 2), steps + 1
        return steps

    values = np.arange(1, 400)
    found = np.zeros(len(values))
    for rows, steps in over_lanes(collatz, {"a": values}):
        found[rows] = array_of(steps, len(rows))
    assert found.tolist() == [collatz({"a": int(each)}) for each in values]
