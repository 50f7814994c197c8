"""``rl.analyze(..., predictor=)``: estimates of a predictor beside the bounds of what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import op, spec
from gemm_table import A100, SLOWDOWN, fit_models, gemm
from sessions import Call, session_of
from tracked import CPU

import rooflight as rl
from rooflight.devices import get
from rooflight.front.sessions import analyze_ranks, predicted
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.predictor import Predictor
from rooflight.records.dtypes import float32_fact
from rooflight.records.estimate import Estimate, Source
from rooflight.records.signature import OpSignature
from rooflight.roofline.tables.report import report_of
from rooflight.sources.workloads.steps import make_step

KEYS = ("phase", "module", "layer", "function", "op", "direction")
TOLERANCE = 1 + 1e-9  # sums of the same terms in another order
ODD = op("nobody::knows", {"x": spec((10,))}, [spec((10,))])
VIEW = op("aten::view", {"self": spec((8,), storage=0)}, [spec((2, 4), storage=0)])
ADD = op("aten::add", {"self": spec((1 << 20,)), "other": spec((1 << 20,))}, [spec((1 << 20,))])


class Watched(Predictor):
    """Without models, it notes what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Sequence[Sequence[OpSignature]], DeviceSpec | str]] = []

    def predict_many(self, works: Sequence[Sequence[OpSignature]], device: DeviceSpec | str) -> list[Estimate | None]:
        self.asked.append((works, device))
        return super().predict_many(works, device)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Knows that products of fp16 matrices take twice their bound on an A100."""
    return Predictor.load(fit_models(tmp_path_factory.mktemp("tables")))


def test_each_distinct_op_is_asked_once_and_those_inside_others_are_not():
    watched = Watched()
    inside = gemm(64, 64, 64)
    calls = [Call(op=inside, parent=3), Call(op=ADD), Call(op=ADD), Call(op=gemm(512, 512, 512)), Call(op=ADD)]
    rl.analyze(session_of(calls), A100, predictor=watched)
    ((works, device),) = watched.asked
    assert sorted(works, key=str) == sorted([(ADD,), (gemm(512, 512, 512),)], key=str)
    assert device == A100


def test_what_no_model_knows_takes_its_usual_share_of_the_bound():
    analysis = rl.analyze(session_of([Call(op=ADD)] * 3), "H100-SXM5-80GB", predictor=Predictor.empty())
    estimate = Predictor.empty().predict(ADD, "H100-SXM5-80GB")
    whole = analysis.totals.predicted
    assert whole.time_s == pytest.approx(3 * estimate.time_s)
    assert (whole.low_s, whole.high_s) == pytest.approx((3 * estimate.low_s, 3 * estimate.high_s))
    assert whole.typical_s == whole.time_s
    (operation,) = analysis.operations
    assert operation.estimate == estimate
    assert analysis.totals.op_bound_s < whole.time_s


def test_views_and_ops_without_a_cost_are_as_they_should_be():
    analysis = rl.analyze(session_of([Call(op=VIEW), Call(op=ODD), Call(op=ADD)]), A100, predictor=Predictor.empty())
    found = {group.name: group.predicted for group in analysis.by("op")}
    assert found["aten::view"].time_s == 0
    assert found["nobody::knows"] is None
    assert analysis.totals.predicted.calls == 2


def test_learned_times_are_used_where_a_model_knows_the_work(predictor):
    known, large = gemm(1024, 512, 1024), gemm(1 << 15, 1 << 13, 1 << 13)
    calls = [Call(op=known, phase="one"), Call(op=known, phase="one"), Call(op=large, phase="two")]
    analysis = rl.analyze(session_of(calls), "A100-SXM4-80GB", predictor=predictor)
    groups = {group.name: group for group in analysis.by("phase")}
    one = groups["one"]
    assert one.predicted.time_s == pytest.approx(SLOWDOWN * one.bound_s, rel=0.1)
    assert one.predicted.extrapolated_s == one.predicted.typical_s == 0
    two = groups["two"].predicted
    assert two.extrapolated_s == two.time_s
    assert two.typical_s == 0
    sources = {each.signature: (each.estimate.source, each.estimate.extrapolated) for each in analysis.operations}
    assert sources == {known: (Source.REGRESSED, False), large: (Source.REGRESSED, True)}


def test_a_device_that_no_row_was_measured_on_is_predicted_too(predictor):
    session = session_of([Call(op=gemm(1024, 512, 1024))])
    here, there = (rl.analyze(session, name, predictor=predictor) for name in ("A100-SXM4-80GB", "B200-SXM"))
    assert there.device.name == "B200-SXM"
    assert there.totals.predicted.extrapolated_s == there.totals.predicted.time_s
    assert there.totals.predicted.time_s >= there.totals.op_bound_s
    width = [each.totals.predicted.high_s / each.totals.predicted.time_s for each in (here, there)]
    assert width[1] > width[0]


def test_float32_products_are_predicted_at_the_peak_that_the_run_allowed():
    product = gemm(4096, 4096, 4096, "float32")
    found = {}
    for setting, precision in (("ieee", "float32"), ("tf32", "tfloat32")):
        session = session_of([Call(op=product)], environment={float32_fact("cuda.matmul"): setting})
        analysis = rl.analyze(session, A100, predictor=Predictor.empty())
        bound_s = 2 * 4096**3 / A100.matrix_peak(precision)
        (operation,) = analysis.operations
        assert operation.bound_s == pytest.approx(bound_s)
        assert operation.estimate.bound_s == operation.bound_s
        found[setting] = analysis.totals.predicted.time_s
    # 19.5 and 156 TFLOP/s: without a model, both take a usual share of the peak, 8 times as long the one as the other
    assert found["ieee"] / found["tf32"] == pytest.approx(8)


def test_predicting_makes_a_new_analysis_and_leaves_the_old_one():
    analysis = rl.analyze(session_of([Call(op=ADD)]), A100, target="a name")
    other = predicted(analysis, Predictor.empty())
    assert other.predicts
    assert not analysis.predicts
    assert analysis.totals.predicted is None
    assert (other.target, other.device, other.totals.op_bound_s) == ("a name", A100, analysis.totals.op_bound_s)


def test_ranks_are_predicted_each(tmp_path: Path):
    files = []
    for rank in range(2):
        session = session_of([Call(op=ADD)] * (rank + 1), environment={"rank": str(rank), "world_size": "2"})
        files.append(str(session.save(tmp_path / f"rank{rank}.session")))
    ranked = analyze_ranks(files, "A100-SXM4-80GB", predictor=Predictor.empty())
    first, second = (time.predicted_s for time in ranked.times)
    assert second == pytest.approx(2 * first)


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("name", ["gpt2", "resnet-50"])
def test_a_whole_model_is_predicted_part_by_part(name: str, mode: str, predictor):
    step = make_step(name, step=mode, batch=1, seq=16 if name == "gpt2" else None, small=True)
    with rl.record(step.model, functions=True) as recording:
        step.run()
    for device in ("A100-SXM4-80GB", "H100-SXM5-80GB", get("MI300X")):
        analysis = rl.analyze(recording, device, predictor=predictor)
        whole = analysis.totals.predicted
        assert whole.calls == analysis.totals.calls
        assert whole.bound_s == pytest.approx(analysis.totals.op_bound_s)
        assert whole.bound_s <= whole.low_s <= whole.time_s < whole.high_s  # ops so small take a shortest kernel each
        for key in KEYS:
            groups = analysis.by(key)
            assert sum(group.predicted.time_s for group in groups) == pytest.approx(whole.time_s)
            assert all(group.bound_s <= group.predicted.low_s * TOLERANCE for group in groups)
        assert sum(each.predicted.time_s for each in analysis.operations) == pytest.approx(whole.time_s)
        data = report_of(analysis).data
        assert data.prediction.unpredicted_calls == 0
        assert data.totals.predicted_s == whole.time_s


def test_predicted_and_measured_stand_side_by_side_on_this_machine():
    step = make_step("gpt2", step="forward", batch=1, seq=16, device="cpu", small=True)
    step.run()
    with rl.record(step.model) as recording:
        step.run()
    session = rl.measure(recording.session, step.run, max_seconds=1.0)
    cpu = DeviceSpec(name="any CPU", vendor="", architecture="", kind="cpu", datasheet=A100.datasheet)
    whole = rl.analyze(session, cpu, predictor=Predictor.empty()).totals.predicted
    assert whole.measured_s > 0
    assert whole.error == pytest.approx(whole.timed_s / whole.measured_s - 1)
    assert -1 < whole.error < 0  # an A100's roofs are higher


def test_the_host_is_seconds_per_launch_or_a_fitted_one(predictor):
    session = session_of([Call(op=ADD), Call(op=VIEW)])
    walls = [
        rl.analyze(session, A100, predictor=predictor, host=host).totals.predicted_wall
        for host in (1e-3, rl.Host.of(1e-3), rl.Host.of_graph(), None)
    ]
    assert walls[0].time_s == walls[1].time_s == pytest.approx(1e-3 * (1.2 + 1 + 0.34), rel=0.01)
    assert walls[2].time_s < walls[3].time_s < walls[0].time_s
    assert "typical" in walls[3].host.source
    with pytest.raises(ValueError, match="at least 0"):
        rl.analyze(session, A100, predictor=predictor, host=-1.0)
    with pytest.raises(ValueError, match="only predictions"):
        rl.analyze(session, A100, host=1e-6)
    with pytest.raises(ValueError, match="leave it out"):
        predicted(rl.analyze(session, CPU), predictor, 1e-6)
