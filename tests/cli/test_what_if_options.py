"""``--precision`` and ``--clock``, and the same in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import op, spec
from sessions import Call, session_of

import rooflight as rl

X = spec((1024, 1024))
PRODUCT = op("aten::mm", {"self": X, "mat2": X}, [X])
ADD = op("aten::add", {"self": X, "other": X}, [X])
DEVICE = ("--device", "A100-SXM4-80GB")
FLOPS = 2 * 1024**3


@pytest.fixture
def session(tmp_path: Path) -> str:
    step = session_of([Call(op=PRODUCT), Call(op=ADD)], environment={"target": "a step"})
    return str(step.save(tmp_path / "x.session"))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_report_says_what_is_supposed(ok, session):
    said = flat(ok("analyze", session, *DEVICE, "--precision", "bf16", "--clock", "1.1GHz"))
    for part in (
        "Speed of light: a step on A100-SXM4-80GB at 1.1 GHz in bf16",
        "float32 work bounded as if done in bfloat16 (--precision bf16): the program says float32; its bytes count as "
        "they are stored",
        "the clock is locked at 1.1 GHz (--clock)",
        "bfloat16 matrix 243 TFLOP/s",  # 312 * 1.1 / 1.41
        "matrix products at the bfloat16 peak (what if)",
    ):
        assert part in said


def test_the_document_has_both_and_bounds_go_by_them(as_json, session):
    data = as_json("analyze", session, *DEVICE, "--precision", "bf16", "--clock", "705MHz")
    device = data["device"]
    assert device["part"] == "A100-SXM4-80GB"
    assert (device["what_if_precision"], device["what_if_clock_hz"]) == ("bfloat16", 705e6)
    product = next(row for row in data["ops"] if row["name"] == "aten::mm")
    assert product["op_bound_s"] == pytest.approx(FLOPS / 156e12)
    plain = as_json("analyze", session, *DEVICE)["device"]
    assert (plain["what_if_precision"], plain["what_if_clock_hz"]) == (None, None)
    assert plain["part"] == plain["name"]


def test_a_precision_that_bounds_nothing_differently_is_said(ok, session):
    said = flat(ok("analyze", session, *DEVICE, "--precision", "fp32"))
    assert "nothing is bounded differently (--precision fp32)" in said


def test_ranks_of_a_run_take_both(ok, session, tmp_path):
    for rank in range(2):
        facts = {"target": "a step", "rank": str(rank), "world_size": "2"}
        session_of([Call(op=PRODUCT)], environment=facts).save(tmp_path / f"rank{rank}.session")
    paths = [str(tmp_path / f"rank{rank}.session") for rank in range(2)]
    assert "A100-SXM4-80GB at 1 GHz" in flat(ok("analyze", *paths, *DEVICE, "--clock", "1GHz"))


def test_devices_show_has_the_scaled_peaks(as_json):
    data = as_json("devices", "show", "A100-SXM4-80GB", "--clock", "705MHz", "--precision", "tf32")
    figures = {figure["figure"]: figure["datasheet"] for figure in data["figures"]}
    assert figures["matrix bfloat16"] == pytest.approx(156e12)
    assert figures["matrix float32 (what if: in tfloat32)"] == pytest.approx(78e12)
    assert figures["DRAM bandwidth"] == 2039e9
    assert data["what_if_clock_hz"] == 705e6


def test_predictions_for_such_a_device_are_extrapolated_and_never_beat_its_bound(as_json):
    asked = ("predict", "gemm", "--m", "4096", "--n", "4096", "--k", "4096", *DEVICE)
    known, data = as_json(*asked)["step"], as_json(*asked, "--clock", "705MHz")
    slow = data["step"]
    assert (known["extrapolated"], slow["extrapolated"]) == (False, True)
    assert data["device"] == "A100-SXM4-80GB at 705 MHz"
    assert slow["bound_s"] == pytest.approx(2 * known["bound_s"])
    assert slow["bound_s"] <= slow["low_s"] <= slow["time_s"]


@pytest.mark.parametrize(
    ("operator", "dtype", "precision", "changes"),
    [
        ("gemm --m 4096 --n 4096 --k 4096", "fp32", "tf32", True),
        ("gemm --m 4096 --n 4096 --k 4096", "bf16", "tf32", False),  # no more bits
        ("gemm --m 4096 --n 4096 --k 4096", "tf32", "tf32", False),
        ("softmax_rows --rows 4096 --width 512", "fp32", "bf16", False),  # no products
    ],
)
@pytest.mark.parametrize("clock", [(), pytest.param(("--clock", "705MHz"), marks=pytest.mark.slow)])
def test_a_precision_without_effect_on_a_prediction_is_said_and_left_out(
    as_json, ok, operator, dtype, precision, changes, clock
):
    asked = ("predict", *operator.split(), *DEVICE, "--dtype", dtype, *clock)
    data, plain = as_json(*asked, "--precision", precision), as_json(*asked)
    said = f"Nothing is bounded differently (--precision {precision}): no product has more bits and a lower peak."
    console = flat(ok(*asked, "--precision", precision))
    assert (said in data["notes"], said in console) == (not changes, not changes)
    assert (data["device"] == plain["device"]) == (f" in {precision} " not in console) == (not changes)
    if not changes:
        assert data | {"notes": []} == plain | {"notes": []}
    assert plain["notes"] == [note for note in data["notes"] if note != said] or changes


def test_tf32_where_no_peak_of_it_is_listed_is_refused_in_the_same_words_either_way(run):
    asked = ("predict", "gemm", "--m", "64", "--n", "64", "--k", "64", "--device", "V100-PCIE-32GB")
    errors = {run(*asked, *options)[2] for options in (("--dtype", "tf32"), ("--dtype", "fp32", "--precision", "tf32"))}
    assert len(errors) == 1
    assert "V100-PCIE-32GB has no known tf32 matrix peak: it has one for fp64, fp32, fp16" in errors.pop()


def test_an_analysis_predicted_for_such_a_device_says_so(ok, session):
    out = ok("analyze", session, *DEVICE, "--clock", "1GHz", "--predict")
    assert "is predicted as on a device that nobody measured" in flat(out)


def test_python_takes_both():
    device = rl.find_device("A100-SXM4-80GB", precision="tf32", clock_hz=705e6)
    assert rl.analyze(session_of([Call(op=PRODUCT)]), device).totals.op_bound_s == pytest.approx(FLOPS / 78e12)
    with pytest.raises(ValueError, match="no precision for matrix products"):
        rl.find_device("A100-SXM4-80GB", precision="int4")


def test_times_of_the_part_stay_and_are_doubted(tmp_path):
    facts = {"device_kind": "cuda", "gpu": "NVIDIA A100-SXM4-80GB"}
    recorded = session_of([Call(op=PRODUCT)], times=[[1e-3]], walls=[1e-3], environment=facts)
    analysis = rl.analyze(recorded, rl.find_device("A100-SXM4-80GB", clock_hz=1e9))
    assert analysis.totals.measured_s == 1e-3
    assert any("lock it too" in note for note in analysis.report().notes)
