"""Products of matrices and vectors, recorded from real calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from counting import Run, analyse, analyse_training, flops, moved, rand, training_flops
from torch import nn


def with_tensors(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Run:
    tensors = [rand(*shape, dtype=dtype) for shape in shapes]
    return lambda: function(*tensors)


def expanded_bmm() -> Run:
    a, b = rand(4, 3, 5), rand(5, 6).expand(4, 5, 6)
    return lambda: torch.bmm(a, b)


def square() -> Run:
    a = rand(5, 5)
    return lambda: a @ a


MATMUL, LINEAR = torch.matmul, nn.Linear(5, 7)

PRODUCTS: dict[str, tuple[Run, int, tuple[int, int] | None]] = {
    # FLOPs, and bytes read and written of 4 B
    "mm": (with_tensors(MATMUL, (4, 5), (5, 6)), 240, (200, 96)),  # 2 * 4 * 6 * 5; 4 * 5 + 5 * 6, 4 * 6
    "a matrix with itself is read once": (square(), 250, (100, 100)),  # 5 * 5, though it is both operands
    "vector times matrix": (with_tensors(MATMUL, (5,), (5, 7)), 70, (160, 28)),  # 5 + 5 * 7, 7
    "three dimensions": (with_tensors(MATMUL, (2, 3, 5), (5, 7)), 420, (260, 168)),  # 2 * 3 * 5 + 5 * 7, 2 * 3 * 7
    "linear": (with_tensors(LINEAR, (4, 5)), 280, (248, 112)),  # 4 * 5 + 5 * 7 + 7, 4 * 7
    "linear of one dimension": (with_tensors(LINEAR, (5,)), 70, None),
    "linear of three": (with_tensors(LINEAR, (2, 3, 5)), 420, None),
    "linear of three, no bias": (with_tensors(nn.Linear(5, 7, bias=False), (2, 3, 5)), 420, None),
    "bmm": (with_tensors(torch.bmm, (4, 3, 5), (4, 5, 6)), 720, (720, 288)),  # 4 * (3 * 5 + 5 * 6), 4 * 3 * 6
    "bmm reads an expanded batch once": (expanded_bmm(), 720, (360, 288)),  # 4 * 3 * 5 + 5 * 6
    "einsum": (
        with_tensors(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), (2, 3, 4, 8), (2, 3, 5, 8)),
        1920,  # 2 * 2 * 3 * 4 * 5 * 8
        None,
    ),
    "einsum of three": (
        with_tensors(lambda *abc: torch.einsum("ij,jk,kl->il", *abc), (3, 4), (4, 5), (5, 6)),
        300,  # 2 * 3 * 4 * 5 + 2 * 3 * 5 * 6
        None,
    ),
    "tensordot": (with_tensors(lambda a, b: torch.tensordot(a, b, 2), (3, 4, 5), (4, 5, 6)), 720, None),
    "matrix times vector": (with_tensors(torch.mv, (4, 5), (5,)), 40, (100, 16)),  # 4 * 5 + 5, 4
    "dot": (with_tensors(torch.dot, (5,), (5,)), 10, (40, 4)),
    # a complex multiply-add is four real ones
    "complex": (with_tensors(MATMUL, (3, 4), (4, 5), dtype=torch.complex64), 480, None),  # 8 * 3 * 4 * 5
    "without elements": (with_tensors(MATMUL, (0, 4), (4, 5)), 0, None),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    run, expected, nbytes = PRODUCTS[name]
    assert flops(run) == expected
    if nbytes:
        assert moved(run) == nbytes


@pytest.mark.parametrize(
    ("run", "matrix", "vector", "read"),
    [
        (with_tensors(torch.addmm, (6,), (4, 5), (5, 6)), 240, 24, 224),  # 4 * 6; 4 B * (6 + 4 * 5 + 5 * 6)
        (with_tensors(LINEAR, (4, 5)), 280, 28, 248),
        (with_tensors(torch.baddbmm, (4, 3, 6), (4, 3, 5), (4, 5, 6)), 720, 72, 1008),
        (with_tensors(torch.addmv, (4,), (4, 5), (5,)), 40, 4, 116),  # 4 B * (4 + 4 * 5 + 5)
        (with_tensors(torch.outer, (3,), (4,)), 0, 12, 28),  # all of it
    ],
    ids=["addmm", "linear", "baddbmm", "addmv", "outer"],
)
def test_what_is_added_counts_on_the_vector_unit(run: Run, matrix: int, vector: int, read: int) -> None:
    totals = analyse(run).totals
    assert (totals.matrix_flops, totals.vector_flops, totals.bytes_read) == (matrix, vector, read)


def test_linear_backward():
    layer, x = nn.Linear(5, 7), rand(4, 5, grad=True)
    backward = {group.name: group for group in analyse_training(lambda: layer(x), layer).by("direction")}["backward"]
    # dx: dy 112 + w 140 read, 80 written; dw: dy 112 + x 80 read, 140 written; db: dy 112 read, 28 written
    assert backward.bytes_moved == 112 + 140 + 80 + 112 + 80 + 140 + 112 + 28
    assert backward.vector_flops == 28  # db adds up 4 * 7
    assert training_flops(lambda: layer(x)) == 840  # forward, dx and dw: 3 * 2 * 4 * 5 * 7
    assert training_flops(lambda: layer(x.detach())) == 560  # the first layer needs no dx
    deep = rand(2, 3, 5, grad=True)
    assert training_flops(lambda: layer(deep)) == 1260  # 3 * 2 * (2 * 3) * 5 * 7
    layer.requires_grad_(False)
    assert training_flops(lambda: layer(x)) == 560  # forward and dx: a frozen weight needs no gradient


def test_bmm_backward():
    a, b = rand(4, 3, 5, grad=True), rand(4, 5, 6, grad=True)
    assert training_flops(lambda: torch.bmm(a, b)) == 2160  # 3 * 720


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_linear_on_nested_sequences(layout):
    layer = nn.Linear(16, 8)
    nested = torch.nested.nested_tensor([rand(5, 16), rand(3, 16)], layout=layout)
    assert flops(lambda: layer(nested)) == 2048  # 2 * (5 + 3) * 16 * 8


def test_double_backward():
    x, w = rand(4, 8, grad=True), rand(8, 8, grad=True)

    def run():
        (slope,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
        slope.square().sum().backward()

    # y = x w (1); dy w' (1); backward of dy w': d(dy), dw (2); of y: dx, dw (2)
    assert flops(run) == 6 * 512  # each 2 * 4 * 8 * 8
