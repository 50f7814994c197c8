"""The gain of torch.compile on a CPU, predicted: dispatches, arithmetic in generated kernels, fresh pages."""

import pytest
import torch
from torch import nn

import rooflight as rl
from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.machine.memory import fresh_page_s
from rooflight.prediction.gain.gain import predicted_gain
from rooflight.prediction.gain.walls import DISPATCH_S, FRESH_PAGE_S, PAGE_BYTES, fresh_pages, most_fresh_pages

CPU = DeviceSpec(
    name="a CPU", vendor="AMD", architecture="Zen", kind="cpu",
    datasheet=Roofs(
        source="a test", matrix_flops_per_s={"float32": 1e11}, vector_flops_per_s={"float32": 1e11},
        memory=(MemoryLevel(name="DRAM", bytes_per_s=1e11),),
    ),
)  # fmt: skip


def analysis_of(step, model=None):
    with rl.record(model, memory=True) as recording:
        step()
    return rl.analyze(recording.session, CPU)


def test_small_ops_gain_their_dispatches():
    x = torch.ones(16)

    def step():
        out = x
        for _ in range(20):
            out = out * 2.0
        return out

    gain = predicted_gain(analysis_of(step))
    assert gain.eager.host_s == pytest.approx(20 * DISPATCH_S)
    assert gain.compiled.launches == 1
    assert gain.compiled.host_s == pytest.approx(9e-6 + 0.7e-6)  # one graph entered, one kernel called
    assert gain.verdict == "pays"
    assert gain.compiled.host_s == pytest.approx(gain.compiled.enter_s + 0.7e-6)


def test_a_single_op_loses_what_entering_costs():
    x = torch.ones(16)
    gain = predicted_gain(analysis_of(lambda: x * 2.0))
    assert gain.verdict == "hurts"
    assert gain.break_even_iterations is None


def test_modules_cost_calls_only_where_they_are_eager():
    model, x = nn.Sequential(*(nn.ReLU() for _ in range(6))), torch.ones(16)
    gain = predicted_gain(analysis_of(lambda: model(x), model))
    assert gain.eager.host_s == pytest.approx(6 * DISPATCH_S + 7 * 3e-6)  # six and what holds them
    assert gain.compiled.host_s == pytest.approx(9e-6 + 12e-6 + 0.7e-6)  # a graph, of a module, with one kernel


def test_pages_are_fresh_where_more_than_twice_the_largest_tensor_is_freed():
    x = torch.ones(1 << 20)  # 4 MiB

    def deep():
        return ((x * 2) + (x * 3)) * (x * 4)

    analysis = analysis_of(deep)
    assert most_fresh_pages(analysis) == 5 * (4 << 20) / PAGE_BYTES  # three products by a number, a sum, a product
    assert fresh_pages(analysis) == pytest.approx(0.65 * most_fresh_pages(analysis))
    assert fresh_pages(analysis_of(lambda: x * 2)) == 0.0  # one tensor: the heap keeps it
    cheap, dear = (predicted_gain(analysis, page_s=each) for each in (FRESH_PAGE_S, 8 * FRESH_PAGE_S))
    assert dear.eager.fresh_s == pytest.approx(8 * cheap.eager.fresh_s)
    assert dear.steady_speedup > cheap.steady_speedup
    assert cheap.speedup_low < cheap.steady_speedup < cheap.speedup_high


def test_small_tensors_and_recordings_without_lifetimes_have_no_fresh_pages():
    x = torch.ones(1 << 20)
    with rl.record() as recording:
        (x * 2 + x * 3).sum()
    assert most_fresh_pages(rl.analyze(recording.session, CPU)) == 0.0
    small = torch.ones(16)
    assert most_fresh_pages(analysis_of(lambda: (small * 2) * (small * 3))) == 0.0


def test_what_is_broadcast_is_computed_again_for_each_element():
    row, x = torch.ones(1, 1 << 10), torch.ones(1 << 10, 1 << 10)
    often, once = (predicted_gain(analysis_of(step)) for step in (lambda: row.sin() * x, lambda: (row * 2.0) * x))
    # a sine per element of x costs 70 FLOPs at the vector peak, a product by a number 1.5
    (kernel,) = often.work.launches
    assert kernel.arithmetic_s == pytest.approx((70 + 1.5) * (1 << 20) / 1e11)
    assert often.compiled_s > once.compiled_s


def test_the_first_touch_of_a_page_is_measured_by_the_clock():
    ticks = iter([0.0, 3.0, 10.0, 12.0, 20.0, 24.0])
    assert fresh_page_s(lambda: next(ticks)) == 2.0 / (16 << 20) * 4096  # the best of 3, 2 and 4 s over 16 MB
    assert fresh_page_s() >= 0
