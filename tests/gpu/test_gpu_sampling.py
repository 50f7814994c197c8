"""Sampling on a GPU: device events, cold L2, graphs of short calls, backward apart."""

from __future__ import annotations

import pytest

from rooflight.costs.operators import registry
from rooflight.records.samples import Status
from rooflight.sampling.runner import Repeats, Sampler
from rooflight.sampling.sweeps import small_shapes

pytestmark = pytest.mark.gpu
ONE_PROCESS = [operator for operator in registry.every() if not operator.ranks]


@pytest.mark.parametrize(
    "operator", [each for each in registry.every() if not each.ranks], ids=lambda operator: operator.name
)
def test_every_operator_has_a_row(operator):
    row = Sampler("cuda:0", "bfloat16", Repeats()).row(operator, small_shapes(operator)[0])
    if operator.name == "scaled_mm" and row.status is Status.UNSUPPORTED:
        pytest.skip(row.note)
    assert row.status is Status.OK, row.note
    assert all(1e-7 < sample < 1e-1 for samples in row.samples_s.values() for sample in samples)


def test_a_large_product_takes_as_long_as_its_flops():
    gemm = registry.find("gemm")
    shapes = [gemm.shape([size, 4096, 4096]) for size in (4096, 8192)]
    sampler = Sampler("cuda:0", "bfloat16", Repeats())
    short, long = (min(sampler.row(gemm, shape).samples_s["step"]) for shape in shapes)
    assert 1.6 < long / short < 2.6
