"""The gain of compiling forward passes in 16 bits, by hand arithmetic on the bounds of an RTX 4090."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.prediction.gain.gain import predicted_gain
from rooflight.prediction.gain.half import COMPILED, EAGER, HIGH, LOW, bounds_of, gain_in_half
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.fusion.regions import fuse

GPU = "RTX 4090"
PEAK, BANDWIDTH = 165.2e12, 1008e9
SHAPE = (256, 64, 56, 56)
IMAGES = 2 * 256 * 64 * 56 * 56  # bytes


def network(dtype: torch.dtype = torch.float16) -> Callable[[], torch.Tensor]:
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 1, bias=False), torch.nn.ReLU(), torch.nn.Tanh()).to(dtype)
        images = torch.empty(SHAPE, dtype=dtype)
    return lambda: net(images)


def analysis_of(step: Callable[[], Any], device: str = GPU) -> Analysis:
    with rl.record(memory=True) as recording:
        kept = step()
    del kept
    return rl.analyze(recording.session, device, predictor=rl.Predictor())


def test_eager_and_compiled_time_are_multiples_of_bounds() -> None:
    analysis = analysis_of(network())
    weight = 2 * 64 * 64
    compute_s = 2 * 64 * 64 * 256 * 56 * 56 / PEAK
    convolution_s = [compute_s, (2 * IMAGES + weight) / BANDWIDTH, 0, 0]
    eager = [*convolution_s, 4 * IMAGES / BANDWIDTH]  # relu and tanh, each read and written
    compiled = [*convolution_s, 2 * IMAGES / BANDWIDTH]  # one kernel
    assert bounds_of(analysis) == pytest.approx(np.array([eager, compiled, [0] * 5]))

    speedup = np.dot(eager, EAGER) / np.dot(compiled, COMPILED)
    found = predicted_gain(analysis)
    assert found.steady_speedup == pytest.approx(speedup)
    assert (found.speedup_low, found.speedup_high) == pytest.approx((LOW * speedup, HIGH * speedup))
    assert not any("float32 alone" in doubt for doubt in found.doubts)


def test_a_kernel_computes_all_of_a_result_of_which_a_part_is_read() -> None:
    x = torch.empty(1 << 20, device="meta")

    def step() -> torch.Tensor:
        return x.exp()[: 1 << 18].sin()

    part = analysis_of(step)
    whole = fuse(part.session, part.costs, whole=True)
    assert sum(region.bytes_read for region in part.fusion.regions) == 4 << 18
    assert sum(region.bytes_read for region in whole.regions) == 4 << 20


def test_what_stays_eager_takes_as_long_as_before() -> None:
    step = network()
    analysis = analysis_of(lambda: step().exp())  # which is outside of the model
    eager, _, left = bounds_of(analysis)
    assert left == pytest.approx(np.array([0, 0, 0, 0, 2 * IMAGES / BANDWIDTH]))
    assert eager[4] == pytest.approx(6 * IMAGES / BANDWIDTH)


@pytest.mark.slow
def test_other_programs_devices_and_modes_are_predicted_as_before() -> None:
    def trains() -> None:
        with torch.device("meta"):
            net = torch.nn.Conv2d(64, 64, 3).half()
            net(torch.empty(SHAPE, dtype=torch.float16)).sum().backward()

    half = analysis_of(network())
    assert gain_in_half(half, host_s=1e-6) is not None
    assert gain_in_half(half, host_s=1.0) is None  # it waits for the host
    others = (analysis_of(trains), analysis_of(network(torch.float32)), analysis_of(network(), "H100-SXM5-80GB"))
    pointwise = analysis_of(lambda: torch.empty(SHAPE, dtype=torch.float16, device="meta").relu().tanh())
    assert [gain_in_half(each, host_s=0.0) for each in (*others, pointwise)] == [None] * 4
    factor = predicted_gain(half, "reduce-overhead")
    assert factor.speedup_high / factor.speedup_low != pytest.approx(HIGH / LOW)


def test_the_finding_has_this_gain() -> None:
    analysis = analysis_of(network())
    finding = next(each for each in diagnose(analysis).findings if each.id == "compile")
    step_s = diagnose(analysis).step_s
    assert finding.predicted_gain_s == pytest.approx(step_s * (1 - 1 / predicted_gain(analysis).steady_speedup))
