"""A trace of one device, bounded and predicted for another."""

import json

import pytest
from kineto_traces import kernel, launch, op, write

import rooflight as rl

H100, B200 = "H100-SXM5-80GB", "B200-SXM"
GPU = "NVIDIA H100 80GB HBM3"


def trace(path):
    """A product of 100 µs and a sum of 40 µs, and 7 µs of work without an op."""
    events = [op("aten::mm", 0, 10, dims=[[4096, 512], [512, 4096]], types=["c10::BFloat16"] * 2)]
    events += [launch(2, 5), kernel(12, 112, 5)]
    events += [op("aten::neg", 200, 210, dims=[[1 << 24]], types=["float"]), launch(202, 6), kernel(212, 252, 6)]
    events += [kernel(300, 307, 99, name="stray")]
    return write(path / "trace.json", events, gpu=GPU)


def report_of(path, run, *options):
    code, out, error = run("analyze", path, *options, "--json", "-")
    assert code == 0, error
    return json.loads(out)


def test_predicted_times_there_say_how_many_times_as_fast(tmp_path, run):
    found = report_of(trace(tmp_path), run, "--device", B200, "--predict")
    predicted = {each["name"]: each["predicted_s"] for each in found["ops"]}
    assert found["measured_there"]["predicted_speedup"] == pytest.approx(140e-6 / sum(predicted.values()))
    assert {each["name"] for each in found["ops"] if each["prediction_error"] is not None} == set()
    assert found["timeline"]["busy_s"] == pytest.approx(147e-6)
    code, text, _ = run("analyze", trace(tmp_path), "--device", B200, "--predict", "--markdown", "-")
    assert code == 0
    assert "times as fast here" in text


def test_without_predictions_there_is_no_speed_up(tmp_path, run):
    assert report_of(trace(tmp_path), run, "--device", B200)["measured_there"]["predicted_speedup"] is None


def test_predicted_times_of_the_traced_device_have_errors_in_total_and_per_op(tmp_path, run):
    found = report_of(trace(tmp_path), run, "--predict")
    assert found["measured_there"] is None
    by_op = {each["name"]: each for each in found["ops"]}
    for name, measured_s in (("aten::mm", 100e-6), ("aten::neg", 40e-6)):
        each = by_op[name]
        assert each["measured_s"] == pytest.approx(measured_s)
        assert each["prediction_error"] == pytest.approx(each["predicted_s"] / measured_s - 1)
    total = sum(each["predicted_s"] for each in by_op.values()) / 140e-6 - 1
    assert found["totals"]["prediction_error"] == pytest.approx(total)


def test_a_saved_session_has_the_same_report(tmp_path):
    session = rl.read_trace(trace(tmp_path))
    session.save(tmp_path / "a.session")
    for device in (None, B200):
        assert rl.analyze(tmp_path / "a.session", device).report() == rl.analyze(session, device).report()
