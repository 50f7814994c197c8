"""Predicted gains of torch.compile, on GPUs and CPUs, and what measured programs correct of them."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from math import exp, log

import numpy as np
import pytest
import torch
from torch import nn

import rooflight as rl
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.hardware.machine.memory import fresh_page_s
from rooflight.prediction.gain import gain as gains
from rooflight.prediction.gain.gain import (
    FILE,
    FOLDER,
    NAMES,
    Correction,
    Gain,
    decode,
    learn,
    predicted_gain,
    shipped,
    verdict_of,
)
from rooflight.prediction.gain.kernels import CompiledWork, Kind, compiled_work
from rooflight.prediction.gain.walls import (
    DISPATCH_S,
    FRESH_PAGE_S,
    MODES,
    PAGE_BYTES,
    Walls,
    fresh_pages,
    most_fresh_pages,
)

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
    return rl.analyze(recording.session, device, predictor=None if device is CPU else rl.Predictor())


def test_what_is_saved_pays_back_what_compiling_costs():
    found = gain(0.010, 0.008, 1.0)
    assert found.steady_speedup == 1.25
    assert found.break_even_iterations == 500  # 1 s / 2 ms
    assert found.total_speedup(1000) == pytest.approx(10 / 9)  # 10 s beside 8 s and 1 s of compiling
    assert [found.pays_within(runs) for runs in (499, 501)] == [False, True]
    never = gain(0.010, 0.010, 1.0)
    assert never.break_even_iterations is None
    assert not never.pays_within(10**9)
    assert [verdict_of(each) for each in (1.051, 1.049, 0.951, 0.949)] == ["pays", "neutral", "neutral", "hurts"]
    # an interval across a verdict is unsure
    assert [gain(0.010, 0.008, 1.0, low=low, high=1.5).sure for low in (1.0, 1.1)] == [False, True]
    slower = found.given_eager(0.1)  # keeps the speedup
    assert slower.compiled_s == pytest.approx(0.08)
    assert slower.break_even_iterations == 50  # 1 s / 20 ms
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


def test_the_less_a_step_is_like_measured_ones_the_less_is_learned_from_them(monkeypatch):
    def trained(dtype):
        x = torch.empty(N, device="meta", dtype=dtype, requires_grad=True)
        return analysis_of(lambda: torch.tanh(x * 2.0).abs().sum().backward())

    forward = analysis_of(lambda: torch.tanh(torch.empty(N, device="meta") * 2.0))

    class Learned:
        def of(self, _features, _mode):
            return 0.64, 0.32, 1.28

    monkeypatch.setattr(gains, "shipped", Learned)
    for analysis, best in ((forward, 0.64), (trained(torch.float32), 0.8), (trained(torch.bfloat16), 0.64 ** (1 / 3))):
        found = gains.predicted_gain(analysis)
        assert found.steady_speedup == pytest.approx(best * found.eager.wall_s / found.compiled.wall_s)
        assert found.speedup_low == pytest.approx(found.steady_speedup / 2)


def test_other_modes_and_analyses_without_times_are_refused():
    x = torch.empty(N, device="meta")
    analysis = analysis_of(lambda: x * 2.0)
    with pytest.raises(ValueError, match='no gain is predicted for the mode "fast": take default'):
        predicted_gain(analysis, "fast")
    with pytest.raises(ValueError, match="nothing is predicted"):
        predicted_gain(rl.analyze(analysis.session, H100))


INTERVALS = dict.fromkeys(MODES, (-0.1, 0.2))


@pytest.fixture(scope="module")
def content() -> bytes:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, len(NAMES)))
    return Correction(trees=learn(features, np.where(features[:, 0] > 0, 0.5, -0.5)), intervals=INTERVALS).encode()


def test_a_correction_comes_back_as_it_was_kept(content):
    found = decode(content)
    asked = np.zeros(len(NAMES))
    asked[0] = 2.0
    best, low, high = found.of(asked, "default")
    assert best == pytest.approx(exp(0.5), rel=0.05)
    assert (low, high) == (pytest.approx(best * exp(-0.1)), pytest.approx(best * exp(0.2)))
    assert decode(found.encode()).of(asked, "cudagraphs") == (best, low, high)


def test_no_correction_is_beyond_reason():
    features = np.zeros((100, len(NAMES)))
    found = Correction(trees=learn(features, np.full(100, 9.0)), intervals=INTERVALS)
    assert log(found.of(features[0], "default")[0]) == 3.0


@pytest.mark.parametrize(
    "about",
    [
        {"schema": "rooflight.gain/0"},
        {"features": list(NAMES[:-1])},
        {"features": ["other", *NAMES[1:]]},
        {"intervals": {"default": [-1, 1]}},
        {"intervals": dict.fromkeys(MODES, (0.1, 0.2))},
        {"intervals": dict.fromkeys(MODES, (-0.1, "wide"))},
        {"more": 1},
    ],
)
def test_what_is_no_correction_is_refused(content, about):
    with pytest.raises(ValueError, match="install Rooflight again"):
        decode(changed(content, **about))


def test_damaged_bytes_and_trees_that_are_cut_are_refused(content):
    for damage in (b"", b"PK", b"\x80\x04N."):
        with pytest.raises(ValueError, match="no corrections of predicted gains"):
            decode(damage)
    with pytest.raises(ValueError, match="leaves"):
        decode(changed(content, without="leaves"))


def changed(content: bytes, without: str = "none", **about) -> bytes:
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files if not name.endswith(without)}
    text = json.dumps(json.loads(arrays["about"].tobytes()) | about)
    arrays["about"] = np.frombuffer(text.encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def test_the_shipped_one_is_the_one_that_the_manifest_lists(tmp_path, monkeypatch):
    listed = json.loads((FOLDER / "manifest.json").read_text())["models"][FILE]["sha256"]
    given = (FOLDER / FILE).read_bytes()
    assert sha256(given).hexdigest() == listed
    assert len(given) < 32_000
    monkeypatch.setattr(gains, "FOLDER", tmp_path)
    shipped.cache_clear()
    try:
        with pytest.raises(ValueError, match="install Rooflight again"):
            shipped()
        (tmp_path / "manifest.json").write_bytes((FOLDER / "manifest.json").read_bytes())
        (tmp_path / FILE).write_bytes(Correction(trees=decode(given).trees, intervals=INTERVALS).encode())
        with pytest.raises(ValueError, match="is not the file that manifest"):
            shipped()
    finally:
        shipped.cache_clear()


CPU = DeviceSpec(
    name="a CPU", vendor="AMD", architecture="Zen", kind="cpu",
    datasheet=Roofs(
        source="a test", matrix_flops_per_s={"float32": 1e11}, vector_flops_per_s={"float32": 1e11},
        memory=(MemoryLevel(name="DRAM", bytes_per_s=1e11),),
    ),
)  # fmt: skip


def test_small_ops_gain_their_dispatches():
    x = torch.ones(16)

    def step():
        out = x
        for _ in range(20):
            out = out * 2.0
        return out

    gain = predicted_gain(analysis_of(step, device=CPU))
    assert gain.eager.host_s == pytest.approx(20 * DISPATCH_S)
    assert gain.compiled.launches == 1
    assert gain.compiled.host_s == pytest.approx(9e-6 + 0.7e-6)  # one graph entered, one kernel called
    assert gain.verdict == "pays"
    assert gain.compiled.host_s == pytest.approx(gain.compiled.enter_s + 0.7e-6)


def test_a_single_op_loses_what_entering_costs_and_modules_cost_calls_only_where_they_are_eager():
    x = torch.ones(16)
    gain = predicted_gain(analysis_of(lambda: x * 2.0, device=CPU))
    assert (gain.verdict, gain.break_even_iterations) == ("hurts", None)
    model = nn.Sequential(*(nn.ReLU() for _ in range(6)))
    gain = predicted_gain(analysis_of(lambda: model(x), model, CPU))
    assert gain.eager.host_s == pytest.approx(6 * DISPATCH_S + 7 * 3e-6)  # six and what holds them
    assert gain.compiled.host_s == pytest.approx(9e-6 + 12e-6 + 0.7e-6)  # a graph, of a module, with one kernel


def test_pages_are_fresh_where_more_than_twice_the_largest_tensor_is_freed():
    x = torch.ones(1 << 20)  # 4 MiB

    def deep():
        return ((x * 2) + (x * 3)) * (x * 4)

    analysis = analysis_of(deep, device=CPU)
    assert most_fresh_pages(analysis) == 5 * (4 << 20) / PAGE_BYTES  # three products by a number, a sum, a product
    assert fresh_pages(analysis) == pytest.approx(0.65 * most_fresh_pages(analysis))
    assert fresh_pages(analysis_of(lambda: x * 2, device=CPU)) == 0.0  # one tensor: the heap keeps it
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
    assert most_fresh_pages(analysis_of(lambda: (small * 2) * (small * 3), device=CPU)) == 0.0


def test_what_is_broadcast_is_computed_again_for_each_element():
    row, x = torch.ones(1, 1 << 10), torch.ones(1 << 10, 1 << 10)
    often, once = (
        predicted_gain(analysis_of(step, device=CPU)) for step in (lambda: row.sin() * x, lambda: (row * 2.0) * x)
    )
    # a sine per element of x costs 70 FLOPs at the vector peak, a product by a number 1.5
    (kernel,) = often.work.launches
    assert kernel.arithmetic_s == pytest.approx((70 + 1.5) * (1 << 20) / 1e11)
    assert often.compiled_s > once.compiled_s


def test_the_first_touch_of_a_page_is_measured_by_the_clock():
    ticks = iter([0.0, 3.0, 10.0, 12.0, 20.0, 24.0])
    assert fresh_page_s(lambda: next(ticks)) == 2.0 / (16 << 20) * 4096  # the best of 3, 2 and 4 s over 16 MB
    assert fresh_page_s() >= 0


def test_a_step_without_ops_gains_nothing_on_a_cpu():
    with rl.record() as recording:
        pass
    found = predicted_gain(rl.analyze(recording.session, CPU))
    assert found.steady_speedup == 1.0  # 1 ns over 1 ns
    assert "nothing of the step is compiled" in found.doubts


@pytest.mark.parametrize("memory", [False, True])
def test_a_recording_without_memory_is_doubted(memory):
    """What stood before the step, and what is kept after it, is then not known: the features are of another program."""
    model = nn.Linear(64, 64, device="meta")
    with torch.no_grad(), rl.record(model, memory=memory) as recording:
        model(torch.empty(8, 64, device="meta")).relu()
    found = predicted_gain(rl.analyze(recording.session, H100, predictor=rl.Predictor()))
    assert any("without memory=True" in doubt for doubt in found.doubts) != memory
