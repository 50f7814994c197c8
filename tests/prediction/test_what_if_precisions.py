"""A what-if precision changes what it bounds, and nothing else: one piece of work has one time."""

from __future__ import annotations

import pytest
import torch

import rooflight as rl
from rooflight.devices.what_if import WhatIf, without_precision

A100 = rl.find_device("A100-SXM4-80GB")
GEMM = {"m": 4096, "n": 2048, "k": 1024}
ROWS = {"rows": 4096, "width": 2048}


@pytest.fixture(scope="module")
def predictor() -> rl.Predictor:
    return rl.Predictor()


@pytest.mark.parametrize(
    ("operator", "shape", "supposed", "dtype", "same"),
    [
        ("gemm", GEMM, "tf32", "fp32", "tf32"),  # float32 products in TF32 are what torch runs where it is allowed
        ("gemm", GEMM, "tf32", "bf16", "bf16"),  # no fewer bits
        ("gemm", GEMM, "fp16", "bf16", "bf16"),  # as many
        ("softmax_rows", ROWS, "bf16", "fp32", "fp32"),  # no products
        ("linear", {"rows": 64, "inputs": 512, "outputs": 512}, "tf32", "fp32", "tf32"),
    ],
)
def test_one_piece_of_work_has_one_time(predictor, operator, shape, supposed, dtype, same) -> None:
    lowered = WhatIf(precision=supposed).of(A100)
    asked = predictor.predict_shape(operator, shape, dtype, lowered)
    assert asked == predictor.predict_shape(operator, shape, same, A100)
    batches = predictor.predict_shapes(operator, shape, dtype, lowered)
    assert {direction: float(batch.time_s[0]) for direction, batch in batches.items()} == {
        direction: pytest.approx(estimate.time_s, rel=1e-12) for direction, estimate in asked.items()
    }


def test_products_of_many_shapes_too(predictor) -> None:
    sizes = [torch.tensor([64.0, 4096.0]).double().numpy()] * 3
    lowered = predictor.predict_products(*sizes, "fp32", WhatIf(precision="tf32").of(A100))
    assert lowered.time_s.tolist() == predictor.predict_products(*sizes, "tf32", A100).time_s.tolist()


def test_products_of_fewer_bits_than_their_tensors_are_what_nobody_measured(predictor) -> None:
    asked = predictor.predict_shape("gemm", GEMM, "fp32", WhatIf(precision="bf16").of(A100))["step"]
    assert asked.extrapolated
    assert asked.time_s < predictor.predict_shape("gemm", GEMM, "fp32", A100)["step"].time_s


def test_a_program_changes_only_where_it_has_products(predictor) -> None:
    x, weight = torch.randn(512, 512), torch.randn(512, 512)
    with rl.record() as recording:
        (x @ weight).softmax(-1)
    own, lowered = (
        rl.analyze(recording.session, device, predictor=predictor).totals.predicted.time_s
        for device in (A100, WhatIf(precision="tf32").of(A100))
    )
    product = {device: predictor.predict_shape("gemm", {"m": 512, "n": 512, "k": 512}, device, A100)["step"].time_s
               for device in ("fp32", "tf32")}  # fmt: skip
    assert own - lowered == pytest.approx(product["fp32"] - product["tf32"], rel=1e-9)


@pytest.mark.parametrize("what_if", [WhatIf(precision="tf32"), WhatIf(precision="tf32", clock_hz=1e9)])
def test_without_the_precision_it_is_the_device_again(what_if) -> None:
    assert without_precision(what_if.of(A100)) == WhatIf(clock_hz=what_if.clock_hz).of(A100)
