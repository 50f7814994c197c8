"""Results compared: what counts as right, and at which precision."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rooflight.sources.workloads.outputs import Difference, compare, copied, same_tensors

X = torch.tensor([1.0, -2.0, 3.0])


def test_the_error_is_relative_to_the_tensor_and_the_element():
    # scale: the mean of 1, 2, 3 is 2, more than 1, so 1; errors: 0.3 / (1 + 2) = 0.1, the others 0
    found = compare(X, torch.tensor([1.0, -2.3, 3.0]))
    assert found.error == pytest.approx(0.1)
    assert found.rms == pytest.approx(0.3 / math.sqrt(14))
    assert (found.outside, found.elements, found.tolerance) == (1, 3, 1e-4)
    assert found.message == "the result differs: 1 of 3 elements by more than 0.0001, the worst by 0.1"


def test_zeros_are_no_right_result_where_all_values_are_tiny():
    tiny = torch.full((1000,), 1e-6)  # a softmax over a million: an absolute tolerance of 1e-4 would let zeros pass
    assert compare(tiny, torch.zeros(1000)).error == pytest.approx(0.5)  # 1e-6 / (1e-6 + 1e-6)
    assert compare(torch.zeros(5), torch.full((5,), 1e-6)).agrees  # nothing to be relative to: absolute


@pytest.mark.parametrize(
    ("dtype", "error", "tf32", "agrees"),
    [
        (torch.float32, 5e-5, False, True),
        (torch.float32, 5e-3, False, False),
        (torch.float32, 5e-3, True, True),
        (torch.float64, 1e-5, False, False),
        (torch.bfloat16, 8e-3, False, True),
        (torch.float16, 3e-2, False, False),
    ],
)
def test_the_tolerance_is_that_of_the_precision(dtype, error, tf32, agrees):
    reference = torch.ones(8, dtype=dtype)
    found = compare(reference, reference + torch.tensor(2 * error, dtype=dtype), tf32=tf32)  # scale + |1| = 2
    assert found.agrees is agrees
    assert compare(reference, reference + torch.tensor(2 * error, dtype=dtype), tolerance=0.5).agrees


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        (X[:2], "result has shape [2], the reference's [3]"),
        (X.double(), "result has dtype float64, the reference's float32"),
        (X.to("meta"), "result has device meta, the reference's cpu"),
        (torch.tensor([1.0, math.nan, 3.0]), "result has NaN in 1 of 3 elements, the reference's in 0"),
        (torch.tensor([1.0, -2.0, math.inf]), "result has infinity in 1 of 3 elements, the reference's in 0"),
        (None, "returns nothing, the reference returns one Tensor"),
        ([X], "returns 1 value ([0]), the reference returns one Tensor"),
        ((X, X), "returns 2 values ([0], [1]), the reference returns one Tensor"),
        (3.0, "result is a float, the reference's a tensor"),
        ("x", "result is a str, the reference's a tensor"),
    ],
)
def test_what_is_no_right_result_whatever_its_numbers(solution, why):
    assert compare(X, solution).why == why


def test_nan_and_infinity_are_right_where_the_reference_has_them():
    strange = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert compare(strange, strange.clone()).agrees
    other = torch.tensor([math.inf, math.nan, -math.inf, 1.0])
    assert compare(strange, other).why == "result has NaN or infinity in other places than the reference's"


def test_nested_results_are_compared_leaf_by_leaf():
    reference = {"y": X, "parts": (X, [torch.arange(3), 2.0])}
    assert compare(reference, {"y": X.clone(), "parts": [X, (torch.arange(3), 2.0)]}).agrees  # a tuple is as good
    found = compare(reference, {"y": X, "parts": (X, [torch.arange(3) + 1, 2.0])})
    assert found.why == "result['parts'][1][0] differs in 3 of 3 elements"
    assert compare(reference, {"y": X, "parts": (X, [torch.arange(3), 2])}).why.endswith("the reference's a float")


def test_empty_complex_and_sparse_results_are_compared_and_anything_else_is_not():
    for empty in (torch.zeros(0), torch.zeros(3, 0, dtype=torch.int64)):
        assert compare(empty, empty.clone()).agrees
    value, sparse = torch.tensor([1 + 2j, 3 - 1j]), torch.eye(3).to_sparse()
    assert compare(value, value * (1 + 1e-6)).agrees
    assert not compare(value, value.conj()).agrees
    assert compare(sparse, sparse.clone()).agrees
    assert not compare(sparse, 2 * sparse).agrees
    with pytest.raises(TypeError, match="the reference returns a str as result"):
        compare("text", "text")


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, "float32"), (torch.float16, "TF32 or float16"), (torch.bfloat16, "bfloat16"),
     (torch.float8_e4m3fn, "8 bits or fewer")],
)  # fmt: skip
@pytest.mark.parametrize("width", [16, 256, 2048])
def test_a_product_of_rounded_factors_is_as_precise_as_the_rounding(dtype, precision, width):
    generator = torch.Generator().manual_seed(width)
    a, b = (torch.randn(32, width, generator=generator, dtype=torch.float64) for _ in range(2))
    exact = (a @ b.T).float()
    rounded = (a.float().to(dtype).double() @ b.float().to(dtype).double().T).float()
    assert compare(exact, rounded).precision == precision


def test_chunks_sum_to_the_whole(monkeypatch):
    reference, solution = torch.randn(1000), torch.randn(1000)
    whole = compare(reference, solution)
    monkeypatch.setattr("rooflight.sources.workloads.outputs._CHUNK", 7)
    pieces = compare(reference, solution)
    assert (pieces.error, pieces.outside) == (whole.error, whole.outside)
    assert pieces.rms == pytest.approx(whole.rms)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(0.0, 1.0))
def test_allclose_at_the_error_agrees_where_values_are_large(values, gap):
    """With a scale of 1 the error is the least tolerance, absolute and relative, at which torch.allclose agrees."""
    reference = torch.tensor([*values, 1e6, 1e6, 1e6], dtype=torch.float64)
    solution = reference + gap
    error = compare(reference, solution).error
    assert torch.allclose(solution, reference, atol=error * (1 + 1e-9), rtol=error * (1 + 1e-9))


@given(st.permutations([Difference(), Difference(error=0.0), Difference(error=0.2), Difference(why="wrong")]))
def test_the_worst_of_differences_does_not_depend_on_their_order(differences):
    found = Difference()
    for each in differences:
        found = found.worse(each)
    assert found.why == "wrong"


def test_copies_are_equal_and_their_own():
    value = ({"x": X.clone()}, [2, None], X.clone())
    other = copied(value)
    assert same_tensors(value, other)
    other[0]["x"].add_(1)
    assert not same_tensors(value, other)
    assert not same_tensors((X,), (X, X))
    assert same_tensors(torch.tensor([math.nan]), torch.tensor([math.nan]))
