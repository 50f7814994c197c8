"""Products of matrices and vectors, recorded from real calls."""

from __future__ import annotations

import pytest
import torch
from counting import analyse, analyse_training, cost, flops, moved, rand, training_flops
from torch import nn


def test_mm():
    a, b = rand(4, 5), rand(5, 6)
    assert flops(lambda: a @ b) == 240  # 2 * 4 * 6 * 5
    assert moved(lambda: a @ b) == (200, 96)  # 4 B * (4 * 5 + 5 * 6), 4 B * 4 * 6


def test_mm_of_a_matrix_with_itself_reads_it_once():
    a = rand(5, 5)
    assert moved(lambda: a @ a) == (100, 100)  # 4 B * 5 * 5, though it is both operands


def test_vector_times_matrix():
    a, b = rand(5), rand(5, 7)
    assert flops(lambda: a @ b) == 70  # 2 * 5 * 7
    assert moved(lambda: a @ b) == (160, 28)  # 4 B * (5 + 5 * 7), 4 B * 7


def test_three_dimensions_times_matrix():
    a, b = rand(2, 3, 5), rand(5, 7)
    assert flops(lambda: a @ b) == 420  # 2 * (2 * 3) * 5 * 7
    assert moved(lambda: a @ b) == (260, 168)  # 4 B * (2 * 3 * 5 + 5 * 7), 4 B * 2 * 3 * 7


def test_addmm_counts_bias_on_the_vector_unit():
    bias, a, b = rand(6), rand(4, 5), rand(5, 6)
    found = cost(analyse(lambda: torch.addmm(bias, a, b)), "aten::addmm")
    assert found.matrix_flops == 240  # 2 * 4 * 6 * 5
    assert found.vector_flops == 24  # 4 * 6
    assert found.bytes_read == 224  # 4 B * (6 + 4 * 5 + 5 * 6)


def test_linear():
    layer, x = nn.Linear(5, 7), rand(4, 5)
    totals = analyse(lambda: layer(x)).totals
    assert totals.matrix_flops == 280  # 2 * 4 * 5 * 7
    assert totals.vector_flops == 28  # 4 * 7
    assert totals.bytes_read == 248  # 4 B * (4 * 5 + 5 * 7 + 7)
    assert totals.bytes_written == 112  # 4 B * 4 * 7


def test_linear_on_one_dimension():
    layer, x = nn.Linear(5, 7), rand(5)
    assert flops(lambda: layer(x)) == 70  # 2 * 5 * 7


def test_linear_on_three_dimensions():
    layer, x = nn.Linear(5, 7), rand(2, 3, 5)
    assert flops(lambda: layer(x)) == 420  # 2 * 2 * 3 * 5 * 7
    without_bias = nn.Linear(5, 7, bias=False)
    assert flops(lambda: without_bias(x)) == 420


def test_linear_backward():
    layer, x = nn.Linear(5, 7), rand(4, 5, grad=True)
    assert training_flops(lambda: layer(x)) == 840  # forward, dx and dw: 3 * 2 * 4 * 5 * 7


def test_linear_backward_on_three_dimensions():
    layer, x = nn.Linear(5, 7), rand(2, 3, 5, grad=True)
    assert training_flops(lambda: layer(x)) == 1260  # 3 * 2 * (2 * 3) * 5 * 7


def test_first_layer_needs_no_data_gradient():
    layer, x = nn.Linear(5, 7), rand(4, 5)
    assert training_flops(lambda: layer(x)) == 560  # forward and dw: 2 * 2 * 4 * 5 * 7


def test_frozen_weight_needs_no_weight_gradient():
    layer, x = nn.Linear(5, 7).requires_grad_(False), rand(4, 5, grad=True)
    assert training_flops(lambda: layer(x)) == 560  # forward and dx


def test_linear_backward_bytes():
    layer, x = nn.Linear(5, 7), rand(4, 5, grad=True)
    backward = {group.name: group for group in analyse_training(lambda: layer(x), layer).by("direction")}["backward"]
    # dx: dy 112 + w 140 read, 80 written; dw: dy 112 + x 80 read, 140 written; db: dy 112 read, 28 written
    assert backward.bytes_moved == 112 + 140 + 80 + 112 + 80 + 140 + 112 + 28
    assert backward.vector_flops == 28  # db adds up 4 * 7


def test_bmm():
    a, b = rand(4, 3, 5), rand(4, 5, 6)
    assert flops(lambda: torch.bmm(a, b)) == 720  # 2 * 4 * 3 * 6 * 5
    assert moved(lambda: torch.bmm(a, b)) == (720, 288)  # 4 B * 4 * (3 * 5 + 5 * 6), 4 B * 4 * 3 * 6


def test_bmm_reads_an_expanded_batch_once():
    a, b = rand(4, 3, 5), rand(5, 6).expand(4, 5, 6)
    assert flops(lambda: torch.bmm(a, b)) == 720
    assert moved(lambda: torch.bmm(a, b)) == (360, 288)  # 4 B * (4 * 3 * 5 + 5 * 6)


def test_bmm_backward():
    a, b = rand(4, 3, 5, grad=True), rand(4, 5, 6, grad=True)
    assert training_flops(lambda: torch.bmm(a, b)) == 2160  # 3 * 720


def test_baddbmm():
    bias, a, b = rand(4, 3, 6), rand(4, 3, 5), rand(4, 5, 6)
    totals = analyse(lambda: torch.baddbmm(bias, a, b)).totals
    assert totals.matrix_flops == 720  # 2 * 4 * 3 * 6 * 5
    assert totals.vector_flops == 72  # 4 * 3 * 6
    assert totals.bytes_read == 1008  # 4 B * 4 * (3 * 6 + 3 * 5 + 5 * 6)


def test_einsum():
    q, k = rand(2, 3, 4, 8), rand(2, 3, 5, 8)
    assert flops(lambda: torch.einsum("bhqd,bhkd->bhqk", q, k)) == 1920  # 2 * 2 * 3 * 4 * 5 * 8


def test_einsum_of_three():
    a, b, c = rand(3, 4), rand(4, 5), rand(5, 6)
    assert flops(lambda: torch.einsum("ij,jk,kl->il", a, b, c)) == 300  # 2 * 3 * 4 * 5 + 2 * 3 * 5 * 6


def test_tensordot():
    a, b = rand(3, 4, 5), rand(4, 5, 6)
    assert flops(lambda: torch.tensordot(a, b, 2)) == 720  # 2 * 3 * (4 * 5) * 6


def test_matrix_times_vector():
    a, b = rand(4, 5), rand(5)
    assert flops(lambda: torch.mv(a, b)) == 40  # 2 * 4 * 5
    assert moved(lambda: torch.mv(a, b)) == (100, 16)  # 4 B * (4 * 5 + 5), 4 B * 4


def test_addmv():
    bias, a, b = rand(4), rand(4, 5), rand(5)
    totals = analyse(lambda: torch.addmv(bias, a, b)).totals
    assert (totals.matrix_flops, totals.vector_flops) == (40, 4)  # 2 * 4 * 5, 4


def test_dot():
    a, b = rand(5), rand(5)
    assert flops(lambda: torch.dot(a, b)) == 10  # 2 * 5
    assert moved(lambda: torch.dot(a, b)) == (40, 4)  # 4 B * (5 + 5), 4 B


def test_complex_multiply_add_is_four_real_ones():
    a, b = rand(3, 4, dtype=torch.complex64), rand(4, 5, dtype=torch.complex64)
    assert flops(lambda: a @ b) == 480  # 8 * 3 * 4 * 5


def test_outer_product_stays_on_the_vector_unit():
    a, b = rand(3), rand(4)
    totals = analyse(lambda: torch.outer(a, b)).totals
    assert (totals.matrix_flops, totals.vector_flops) == (0, 12)  # 3 * 4


def test_product_without_elements():
    a, b = rand(0, 4), rand(4, 5)
    assert flops(lambda: a @ b) == 0


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
