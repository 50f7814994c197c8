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


@pytest.mark.parametrize(
    ("kind", "how", "per_parameter", "flops"),
    [
        (optim.Adam, {"fused": True}, 28, 14),  # read p, g, m, v, write p, m, v
        (optim.AdamW, {"fused": True}, 28, 14),
        (optim.Adam, {"fused": True, "amsgrad": True}, 36, None),  # the maximum of v too
        # p *= (8), lerp m with g (12), v *= (8), v += g * g (12: g is read once), root of v (8), / (8), + eps (8),
        # p += m / that (16)
        (optim.AdamW, {"foreach": True}, 80, 14),
        (optim.AdamW, {"foreach": False}, 80, None),
    ],
)
def test_adam(kind, how, per_parameter, flops):
    totals = step(lambda parameters: kind(parameters, **how))
    if "fused" in how:
        assert totals.bytes_moved == per_parameter * NUM_PARAMETERS + COUNTS
    else:  # and the step counts
        assert 0 < totals.bytes_moved - per_parameter * NUM_PARAMETERS <= 64
    assert flops is None or totals.vector_flops == flops * NUM_PARAMETERS + 2


def test_first_step_makes_the_state():
    first = step(lambda parameters: optim.AdamW(parameters, fused=True), 0)
    later = step(lambda parameters: optim.AdamW(parameters, fused=True))
    assert first.bytes_moved == later.bytes_moved + 8 * NUM_PARAMETERS + 8  # zeros for m and v, and for the counts


@pytest.mark.parametrize(
    ("how", "before", "per_parameter", "flops"),
    [
        ({"fused": True}, 1, 12, 2),  # read p, g, write p
        ({"foreach": True}, 1, 12, 1),  # the list op's scale is not told
        ({"fused": True, "momentum": 0.9}, 1, 20, None),  # read p, g, buffer, write p, buffer
        ({"foreach": True, "momentum": 0.9}, 1, 32, None),  # buffer *= (8), += g (12), p += buffer (12)
        ({"fused": True, "momentum": 0.9}, 0, 16, None),  # at first the buffer is only written
    ],
)
def test_sgd(how, before, per_parameter, flops):
    totals = step(lambda parameters: optim.SGD(parameters, lr=0.1, **how), before)
    assert totals.bytes_moved == per_parameter * NUM_PARAMETERS
    assert flops is None or totals.vector_flops == flops * NUM_PARAMETERS
