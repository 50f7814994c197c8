"""Optimizer steps on two parameters of 10 x 10: bytes per parameter of the second step, when state exists."""

from __future__ import annotations

import pytest
import torch
from counting import analyse
from torch import optim

from rooflight.roofline.groups import Totals

NUM_PARAMETERS = 200


def step(make, steps_before: int = 1) -> Totals:
    parameters = [torch.nn.Parameter(torch.ones(10, 10)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.ones(10, 10)
    optimizer = make(parameters)
    for _ in range(steps_before):
        optimizer.step()
    analysis = analyse(optimizer.step)
    assert analysis.coverage.uncosted == ()
    assert {group.name for group in analysis.by("direction")} == {"optimizer"}
    return analysis.totals


# The two step counts, one float a parameter tensor: added to (8 B read, 8 B written) and read again by the kernel.
COUNTS = 8 + 8 + 8


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_fused_adam(kind):
    totals = step(lambda parameters: kind(parameters, fused=True))
    assert totals.bytes_moved == 28 * NUM_PARAMETERS + COUNTS  # read p, g, m, v, write p, m, v
    assert totals.vector_flops == 14 * NUM_PARAMETERS + 2


def test_fused_adam_with_amsgrad():
    totals = step(lambda parameters: optim.Adam(parameters, fused=True, amsgrad=True))
    assert totals.bytes_moved == 36 * NUM_PARAMETERS + COUNTS  # the maximum of v too


def test_foreach_adamw_moves_three_times_as_much():
    totals = step(lambda parameters: optim.AdamW(parameters, foreach=True))
    # p *= (8), lerp m with g (12), v *= (8), v += g * g (12: g is read once), root of v (8), / (8), + eps (8),
    # p += m / that (16)
    assert 80 * NUM_PARAMETERS < totals.bytes_moved <= 80 * NUM_PARAMETERS + 64  # and the step counts
    assert totals.vector_flops == 14 * NUM_PARAMETERS + 2


def test_adamw_one_tensor_at_a_time_moves_as_foreach():
    totals = step(lambda parameters: optim.AdamW(parameters, foreach=False))
    assert 80 * NUM_PARAMETERS < totals.bytes_moved <= 80 * NUM_PARAMETERS + 64


def test_first_step_makes_the_state():
    first = step(lambda parameters: optim.AdamW(parameters, fused=True), 0)
    later = step(lambda parameters: optim.AdamW(parameters, fused=True))
    assert first.bytes_moved == later.bytes_moved + 8 * NUM_PARAMETERS + 8  # zeros for m and v, and for the counts


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_sgd(how):
    totals = step(lambda parameters: optim.SGD(parameters, lr=0.1, **{how: True}))
    assert totals.bytes_moved == 12 * NUM_PARAMETERS  # read p, g, write p
    assert totals.vector_flops == 2 * NUM_PARAMETERS / (1 if how == "fused" else 2)  # the list op's scale is not told


def test_sgd_with_momentum_fused():
    totals = step(lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True))
    assert totals.bytes_moved == 20 * NUM_PARAMETERS  # read p, g, buffer, write p, buffer


def test_sgd_with_momentum_foreach():
    totals = step(lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True))
    assert totals.bytes_moved == 32 * NUM_PARAMETERS  # buffer *= (8), += g (12), p += buffer (12)


def test_sgd_with_momentum_only_writes_the_buffer_at_first():
    totals = step(lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True), 0)
    assert totals.bytes_moved == 16 * NUM_PARAMETERS
