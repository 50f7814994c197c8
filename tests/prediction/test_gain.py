"""The gain of torch.compile, predicted: what is fused, what host and device then do, and when it pays."""

import numpy as np
import pytest
import torch
from torch import nn

import rooflight as rl
from rooflight.prediction.gain.gain import Gain, predicted_gain, verdict_of
from rooflight.prediction.gain.kernels import CompiledWork, Kind, compiled_work
from rooflight.prediction.gain.walls import Walls

N = 1 << 20
H100 = "H100-SXM5-80GB"


def work_with(**changes):
    none = {
        "launches": (), "eager": np.zeros(0, dtype=bool), "graphs": 1, "copied_bytes": 0, "copies": 0, "op_s": {},
        "channels_last": False,
    }  # fmt: skip
    return CompiledWork(**{**none, **changes})


def gain(eager_s, compiled_s, compile_s, low=0.9, high=1.1):
    walls = Walls(wall_s=eager_s, host_s=0.0, device_s=eager_s, launches=1, bytes_moved=0)
    return Gain(
        mode="default", eager_s=eager_s, compiled_s=compiled_s, compile_s=compile_s, speedup_low=low,
        speedup_high=high, eager=walls, compiled=walls, work=work_with(),
    )  # fmt: skip


def analysis_of(step, model=None, device=H100):
    with rl.record(model, memory=True) as recording:
        step()
    return rl.analyze(recording.session, device, predictor=rl.Predictor())


def test_what_is_saved_pays_back_what_compiling_costs():
    found = gain(0.010, 0.008, 1.0)
    assert found.steady_speedup == 1.25
    assert found.break_even_iterations == 500  # 1 s / 2 ms
    assert found.total_speedup(1000) == pytest.approx(10 / 9)  # 10 s beside 8 s and 1 s of compiling
    assert found.pays_within(501)
    assert not found.pays_within(499)


def test_what_is_slower_never_pays():
    found = gain(0.010, 0.010, 1.0)
    assert found.break_even_iterations is None
    assert not found.pays_within(10**9)
    assert [verdict_of(each) for each in (1.051, 1.049, 0.951, 0.949)] == ["pays", "neutral", "neutral", "hurts"]


def test_an_interval_across_a_verdict_is_unsure():
    assert not gain(0.010, 0.008, 1.0, low=1.0, high=1.5).sure
    assert gain(0.010, 0.008, 1.0, low=1.1, high=1.5).sure


def test_a_measured_eager_time_keeps_the_speedup():
    found = gain(0.010, 0.008, 1.0).given_eager(0.1)
    assert found.compiled_s == pytest.approx(0.08)
    assert found.break_even_iterations == 50  # 1 s / 20 ms
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="give the seconds of one iteration"):
            found.given_eager(wrong)


def test_a_chain_becomes_one_kernel():
    x, y = (torch.empty(N, device="meta") for _ in range(2))
    analysis = analysis_of(lambda: torch.tanh(x * y + 1.0).abs())
    work = compiled_work(analysis, analysis.predicted_op_s)
    assert (work.generated, work.library_calls, work.graphs) == (1, 0, 1)
    assert work.bytes_moved == 3 * 4 * N  # x and y in, the result out
    assert work.op_bytes == (3 + 2 + 2 + 2) * 4 * N
    assert work.launches[0].ops == {Kind.POINTWISE: 4}


def test_a_product_stays_a_call_and_what_follows_is_a_kernel():
    a, b = torch.empty(512, 256, device="meta"), torch.empty(256, 1024, device="meta")
    analysis = analysis_of(lambda: torch.relu(a @ b) * 2.0)
    work = compiled_work(analysis, analysis.predicted_op_s)
    call, kernel = work.launches
    assert (call.generated, kernel.generated) == (False, True)
    assert call.bytes_moved == 4 * (512 * 256 + 256 * 1024 + 512 * 1024)
    assert kernel.bytes_moved == 2 * 4 * 512 * 1024  # what the product wrote in, the result out


def test_only_the_model_is_compiled_and_its_optimizer_is_not():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 64)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    analysis = analysis_of(step, model)
    work = compiled_work(analysis, analysis.predicted_op_s)
    assert work.graphs == 2  # forward and backward
    assert work.eager.any()
    assert not work.eager.all()
    assert work.copied_bytes == 8 * 64 * 4  # x; weights are where they are


def test_a_graph_copies_inputs_and_pays_where_the_host_is_late():
    x = torch.empty(1 << 28, device="meta")
    analysis = analysis_of(lambda: x * 2.0)
    plain, replayed = (predicted_gain(analysis, mode) for mode in ("default", "reduce-overhead"))
    # 2 * 1 GiB of copies, at most at 3.35 TB/s
    assert replayed.compiled.device_s - plain.compiled.device_s > 2 * 2**30 / 3.36e12
    small = torch.empty(64, 64, device="meta")

    def many():
        out = small
        for _ in range(60):
            out = (out @ small).relu()
        return out

    late = analysis_of(many)
    assert predicted_gain(late, "reduce-overhead").verdict == "pays"
    assert predicted_gain(late, "reduce-overhead").steady_speedup > predicted_gain(late).steady_speedup


def test_no_gain_is_beyond_the_program_bound():
    x = torch.empty(1 << 26, device="meta")
    for device in ("H100-SXM5-80GB", "L40S", "T4"):
        analysis = analysis_of(
            lambda: torch.tanh(torch.softmax(x.view(1 << 13, 1 << 13), 0) * 2 + 1).sum(), None, device
        )
        for mode in ("default", "max-autotune", "cudagraphs"):
            found = predicted_gain(analysis, mode)
            assert found.compiled_s >= analysis.program.program_bound_s
            assert found.speedup_low <= found.steady_speedup <= found.speedup_high
            assert found.eager_s / found.speedup_high >= analysis.program.program_bound_s * (1 - 1e-9)


def test_other_modes_and_analyses_without_times_are_refused():
    x = torch.empty(N, device="meta")
    analysis = analysis_of(lambda: x * 2.0)
    with pytest.raises(ValueError, match='no gain is predicted for the mode "fast": take default'):
        predicted_gain(analysis, "fast")
    with pytest.raises(ValueError, match="nothing is predicted"):
        predicted_gain(rl.analyze(analysis.session, H100))
