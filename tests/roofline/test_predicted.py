"""Predicted times: sums of estimates that are given by hand."""

import json
from io import StringIO

import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sessions import Call, programs_of, session_of

from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec, Roofs
from rooflight.records.estimate import Estimate, Source
from rooflight.records.signature import OpSignature
from rooflight.reporting.console import print_report
from rooflight.reporting.json import render_json
from rooflight.reporting.markdown import render_markdown
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.ranks import merge, ranks_report
from rooflight.roofline.tables.report import report_of

H100 = get("H100-SXM5-80GB")
X = spec((1_000_000,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
# 12 MB at 3.35 TB/s
ADD_BOUND_S = 12e6 / 3.35e12
MM = op("aten::mm", {"self": spec((512, 512)), "mat2": spec((512, 512))}, [spec((512, 512))])
BMM = op("aten::bmm", {"self": spec((1, 512, 512)), "mat2": spec((1, 512, 512))}, [spec((1, 512, 512))])
VIEW = op("aten::view", {"self": spec((8,), storage=0)}, [spec((2, 4), storage=0)])
ODD = op("nobody::knows", {"x": spec((10,))}, [spec((10,))])
KEYS = ("phase", "module", "layer", "function", "op", "direction")
TOLERANCE = 1 + 1e-9  # sums of the same terms in another order


def estimate(time_s: float, low_s: float | None = None, high_s: float | None = None, **changes) -> Estimate:
    low_s = time_s if low_s is None else low_s
    figures = {"bound_s": 1e-9, "source": Source.REGRESSED, "extrapolated": False, **changes}
    return Estimate(time_s=time_s, low_s=low_s, high_s=time_s if high_s is None else high_s, **figures)


def predicted_of(calls, estimates: dict[OpSignature, Estimate | None], device=H100, **options) -> Analysis:
    session = session_of(calls, **options)
    return analyze(session, device, "a test", [estimates.get(one) for one in session.signatures])


def text_of(analysis: Analysis, width: int = 200) -> str:
    written = StringIO()
    print_report(report_of(analysis), Console(width=width, force_terminal=False, file=written))
    return " ".join(written.getvalue().split())


def test_the_total_is_the_sum_of_the_ops():
    calls = [Call(op=MM), Call(op=MM), Call(op=ADD), Call(op=ADD), Call(op=ADD), Call(op=VIEW)]
    analysis = predicted_of(calls, {MM: estimate(3e-3), ADD: estimate(1e-3)})
    predicted = analysis.totals.predicted
    assert predicted.calls == 6
    assert predicted.time_s == pytest.approx(2 * 3e-3 + 3 * 1e-3)
    assert predicted.bound_s == pytest.approx(analysis.totals.op_bound_s)
    assert predicted.efficiency == pytest.approx(analysis.totals.op_bound_s / 9e-3)
    assert {group.name: group.predicted.time_s for group in analysis.by("op")} == pytest.approx(
        {"aten::mm": 6e-3, "aten::add": 3e-3, "aten::view": 0.0}
    )
    assert {each.signature: each.predicted.time_s for each in analysis.operations} == pytest.approx(
        {MM: 6e-3, ADD: 3e-3, VIEW: 0.0}
    )


def test_errors_of_one_family_add_up_and_those_of_several_as_squares():
    estimates = {
        MM: estimate(10e-3, 9e-3, 14e-3),  # 1 down, 4 up
        BMM: estimate(10e-3, 8e-3, 12e-3),  # 2 down, 2 up
        ADD: estimate(10e-3, 6e-3, 18e-3),  # 4 down, 8 up
    }
    products = predicted_of([Call(op=MM), Call(op=BMM)], estimates).totals.predicted
    assert (products.low_s, products.high_s) == pytest.approx((20e-3 - 3e-3, 20e-3 + 6e-3))
    whole = predicted_of([Call(op=MM), Call(op=BMM), Call(op=ADD)], estimates).totals.predicted
    # down: sqrt(3^2 + 4^2) = 5, up: sqrt(6^2 + 8^2) = 10
    assert (whole.time_s, whole.low_s, whole.high_s) == pytest.approx((30e-3, 25e-3, 40e-3))
    often = predicted_of([Call(op=MM)] * 5, estimates).totals.predicted
    assert (often.low_s, often.high_s) == pytest.approx((5 * 9e-3, 5 * 14e-3))  # the same error five times


def test_what_lies_outside_of_measurements_may_err_for_one_reason():
    calls = [Call(op=MM), Call(op=ADD)]
    estimates = {
        MM: estimate(10e-3, 7e-3, 13e-3, extrapolated=True),
        ADD: estimate(10e-3, 6e-3, 14e-3, extrapolated=True, source=Source.TYPICAL),
    }
    predicted = predicted_of(calls, estimates).totals.predicted
    assert (predicted.low_s, predicted.high_s) == pytest.approx((20e-3 - 7e-3, 20e-3 + 7e-3))
    assert (predicted.extrapolated_s, predicted.typical_s) == pytest.approx((10e-3, 10e-3))


def test_views_take_no_time_and_what_has_no_cost_is_not_predicted():
    analysis = predicted_of([Call(op=VIEW), Call(op=ODD), Call(op=ADD)], {ADD: estimate(1e-3), ODD: estimate(5.0)})
    groups = {group.name: group.predicted for group in analysis.by("op")}
    assert groups["aten::view"].time_s == groups["aten::view"].high_s == 0
    assert groups["aten::view"].efficiency is None
    assert groups["nobody::knows"] is None
    assert analysis.totals.predicted.time_s == pytest.approx(1e-3)
    assert analysis.totals.predicted.calls == 2
    text = text_of(analysis)
    assert "1 op has no cost and is not predicted: the predicted time is lower than the truth." in text
    assert "of the predicted time" not in text.replace("the predicted time is lower", "")
    assert report_of(analysis).data.prediction.unpredicted_calls == 1


def test_only_views_are_predicted_to_be_nothing():
    analysis = predicted_of([Call(op=VIEW)], {})
    assert analysis.totals.predicted.time_s == 0
    assert "nothing: no op has a cost that takes time" in text_of(analysis)
    assert analysis.by("op")[0].predicted.calls == 1
    nothing = predicted_of([Call(op=ODD)], {})
    assert nothing.totals.predicted is None
    assert report_of(nothing).data.prediction.predicted_s is None


def test_work_that_nothing_bounds_is_not_predicted_and_said_to_be():
    blank = DeviceSpec(name="blank", vendor="", architecture="", kind="other", datasheet=Roofs(source="nothing known"))
    analysis = predicted_of([Call(op=ADD)] * 3, {ADD: estimate(1e-3)}, blank)
    assert analysis.totals.predicted is None
    assert "3 ops do work that no figure of blank bounds, and are not predicted." in text_of(analysis)


def test_a_costed_op_without_an_estimate_is_left_out_and_counted():
    analysis = predicted_of([Call(op=ADD), Call(op=MM)], {ADD: estimate(1e-3)})
    assert analysis.totals.predicted.bound_s == pytest.approx(ADD_BOUND_S)  # bound and time are of the same calls
    assert analysis.totals.predicted.efficiency == pytest.approx(ADD_BOUND_S / 1e-3)
    assert report_of(analysis).data.prediction.unpredicted_calls == 1


def test_an_estimate_made_with_a_lower_bound_does_not_beat_this_one():
    analysis = predicted_of([Call(op=ADD)], {ADD: estimate(2e-9, 1e-9, 3e-9)})
    predicted = analysis.totals.predicted
    assert predicted.time_s == predicted.low_s == predicted.high_s == predicted.bound_s == pytest.approx(ADD_BOUND_S)


def test_there_is_one_estimate_for_each_signature():
    with pytest.raises(ValueError, match="1 estimate for 2 ops"):
        analyze(session_of([Call(op=ADD), Call(op=MM)]), H100, "", [estimate(1.0)])


def test_without_estimates_nothing_is_predicted_and_the_data_say_null():
    analysis = analyze(session_of([Call(op=ADD)]), H100)
    assert not analysis.predicts
    assert analysis.totals.predicted is None
    data = json.loads(render_json(report_of(analysis)))
    assert data["prediction"] is None
    for row in (data["totals"], data["by_op"][0], data["by_module"][0], data["ops"][0]):
        assert (
            row["predicted_s"] is row["predicted_low_s"] is row["predicted_high_s"] is row["prediction_error"] is None
        )
    assert "redicted" not in text_of(analysis)


def test_an_empty_session_predicts_nothing():
    analysis = analyze(session_of([]), H100, "", [])
    assert analysis.totals.predicted is None
    assert analysis.by("module") == ()
    assert "No ops were recorded" in text_of(analysis)


def test_children_of_a_composite_are_not_predicted_again():
    analysis = predicted_of([Call(op=MM, parent=1), Call(op=ADD)], {ADD: estimate(1e-3), MM: estimate(1e-3)})
    assert analysis.totals.predicted.time_s == pytest.approx(1e-3)
    assert [group.name for group in analysis.by("op")] == ["aten::add"]


def test_the_longest_operation_is_that_predicted_to_be():
    estimates = {ADD: estimate(9e-3), MM: estimate(1e-3)}
    assert [each.signature for each in predicted_of([Call(op=MM), Call(op=ADD)], estimates).operations] == [ADD, MM]
    measured = predicted_of([Call(op=MM), Call(op=ADD)], estimates, times=[[2.0, 1.0]], walls=[3.0])
    assert [each.signature for each in measured.operations] == [MM, ADD]


def test_the_error_is_of_the_calls_that_were_predicted_and_timed():
    calls = [Call(op=ADD), Call(op=ADD), Call(op=ODD), Call(op=MM)]
    estimates = {ADD: estimate(1.5e-3, 1e-3, 3e-3), MM: estimate(4e-3, 3e-3, 5e-3)}
    session_times = [[1e-3, np.nan, 7.0, 5e-3]]
    analysis = predicted_of(calls, estimates, times=session_times, walls=[8.0])
    predicted = analysis.totals.predicted
    assert (predicted.timed_s, predicted.measured_s) == pytest.approx((1.5e-3 + 4e-3, 1e-3 + 5e-3))
    assert predicted.error == pytest.approx(5.5 / 6 - 1)
    errors = {group.name: group.predicted and group.predicted.error for group in analysis.by("op")}
    assert errors == {"aten::add": pytest.approx(0.5), "aten::mm": pytest.approx(-0.2), "nobody::knows": None}
    text = text_of(analysis)
    assert "prediction error -8.3% (predicted 5.50 ms, measured 6.00 ms in ops)" in text
    assert "Error: predicted / measured − 1, of the calls that have both." in text
    assert "predicted error" in text  # the two columns
    assert report_of(analysis).data.by_op[0].prediction_error is not None


@pytest.mark.parametrize(("measured_s", "holds"), [(0.9e-3, False), (1.1e-3, True), (2.9e-3, True), (3.1e-3, False)])
def test_a_measurement_outside_of_the_interval_is_said(measured_s, holds):
    estimates = {ADD: estimate(1.5e-3, 1e-3, 3e-3)}
    # one of two calls was timed: the interval of both, 2 to 6 ms, holds twice its time or not
    analysis = predicted_of([Call(op=ADD)] * 2, estimates, times=[[measured_s, np.nan]], walls=[8.0])
    assert analysis.totals.predicted.holds is holds
    assert ("lie outside of the predicted interval" in text_of(analysis)) is not holds


def test_ops_that_were_timed_at_nothing_have_no_error():
    analysis = predicted_of([Call(op=ADD), Call(op=VIEW)], {ADD: estimate(1e-3)}, times=[[0.0, 1e-6]], walls=[1.0])
    errors = {group.name: group.predicted.error for group in analysis.by("op")}
    assert errors == {"aten::add": None, "aten::view": None}
    assert analysis.totals.predicted.error == pytest.approx(1e-3 / 1e-6 - 1)


def test_the_same_analysis_with_other_times_keeps_its_predictions():
    analysis = predicted_of([Call(op=ADD)], {ADD: estimate(1e-3)})
    other = analysis.of(session_of([Call(op=ADD)], times=[[2e-3]], walls=[3e-3]))
    assert other.totals.predicted.time_s == pytest.approx(1e-3)
    assert other.totals.predicted.error == pytest.approx(-0.5)


def test_times_measured_elsewhere_are_not_held_against_the_prediction():
    elsewhere = {"device_kind": "cpu", "cpu": "a small CPU"}
    options = {"times": [[2e-3]], "walls": [3e-3], "environment": elsewhere}
    analysis = predicted_of([Call(op=ADD)], {ADD: estimate(1e-3)}, **options)
    assert analysis.totals.predicted.time_s == pytest.approx(1e-3)
    assert analysis.totals.predicted.error is None


def three_kinds() -> Analysis:
    estimates = {
        ADD: estimate(6e-3, 5e-3, 8e-3),
        MM: estimate(3e-3, 2e-3, 4e-3, extrapolated=True),
        BMM: estimate(1e-3, 0.5e-3, 2e-3, extrapolated=True, source=Source.TYPICAL),
    }
    calls = [Call(op=ADD, phase="load"), Call(op=MM, phase="train"), Call(op=BMM, phase="train")]
    return predicted_of(calls, estimates)


def test_the_report_says_how_long_how_sure_and_why():
    text = text_of(three_kinds())
    # down: sqrt(1^2 + (1 + 0.5)^2) = 1.80, up: sqrt(2^2 + (1 + 1)^2) = 2.83
    assert "predicted device time 10.0 ms (90 %: 8.20 ms to 12.8 ms), the ops one after the other, as if rep" in text
    assert "predicted wall time 10.0 ms" in text
    assert ": 9.00 µs each (typical" in text
    assert "such ops (60.0%), other ops, sizes or devices (30.0%), no measurement (10.0%) of the time" in text
    assert "10.0% of the predicted time is of ops without a model (bmm)" in text
    assert (
        "60.0% of the predicted time is of ops measured on this device. Others differ by kind, size or device (mm)"
        in text
    )
    assert "The step is predicted to take 10.0 ms (90 %: 8.2" in text
    assert (
        "the device takes longest. The device alone, as if replayed from a graph, is predicted to take 10.0 ms." in text
    )
    assert "Top operations by predicted time" in text
    assert "on the device, as if replayed from a graph" in text
    report = report_of(three_kinds())
    phases = report.table("by_phase")
    shown = dict(zip(phases.values("phase"), phases.values("predicted"), strict=True))
    assert shown == pytest.approx({"load": 6e-3, "train": 4e-3})
    ops = report.table("operations")
    assert dict(zip(ops.values("op"), ops.values("source"), strict=True)) == {
        "add": "regressed",
        "mm": "regressed, extrapolated",
        "bmm": "typical",
    }


def test_a_part_that_is_nothing_is_not_named():
    unshown = {"extrapolated": True}
    estimates = {MM: estimate(0.1, **unshown), ADD: estimate(0.7, source=Source.TYPICAL, **unshown)}
    text = text_of(predicted_of([Call(op=MM)] * 3 + [Call(op=ADD)] * 7, estimates))
    assert "learned from other ops, sizes or devices (5.8%), no measurement (94.2%) of the time" in text


def test_json_and_markdown_have_the_same_figures():
    analysis = three_kinds()
    data = json.loads(render_json(report_of(analysis)))
    assert data["schema"] == "rooflight.analysis/1"
    prediction = data["prediction"]
    assert prediction["predicted_s"] == data["totals"]["predicted_s"] == pytest.approx(10e-3)
    assert prediction["predicted_low_s"] == pytest.approx((10 - np.hypot(1, 1.5)) * 1e-3)
    assert prediction["predicted_high_s"] == pytest.approx((10 + np.hypot(2, 2)) * 1e-3)
    assert (prediction["extrapolated_s"], prediction["typical_s"]) == pytest.approx((3e-3, 1e-3))
    assert (prediction["calls"], prediction["unpredicted_calls"]) == (3, 0)
    for key in ("by_phase", "by_module", "by_layer", "by_op", "ops"):
        assert sum(row["predicted_s"] for row in data[key]) == pytest.approx(10e-3)
        assert all(row["predicted_efficiency"] <= 1 for row in data[key])
    found = {row["name"]: (row["prediction_source"], row["extrapolated"]) for row in data["ops"]}
    assert found == {
        "aten::add": ("regressed", False),
        "aten::mm": ("regressed", True),
        "aten::bmm": ("typical", True),
    }
    markdown = render_markdown(report_of(analysis))
    assert "- **predicted device time**: 10.0 ms (90 %: 8.20 ms to 12.8 ms)" in markdown
    assert "| predicted |" in markdown


def test_a_narrow_terminal_still_shows_the_predicted_time():
    assert "predicted" in text_of(three_kinds(), width=90)


def test_ranks_show_what_each_is_predicted_to_take():
    def rank(number: int, calls: int) -> Analysis:
        environment = {"rank": str(number), "world_size": "2"}
        return predicted_of([Call(op=ADD)] * calls, {ADD: estimate(1e-3)}, environment=environment)

    report = ranks_report(merge([rank(0, 3), rank(1, 5)]))
    table = report.tables[0]
    assert table.values("predicted") == pytest.approx((3e-3, 5e-3))
    assert [row.predicted_s for row in report.data.ranks] == pytest.approx([3e-3, 5e-3])
    assert {spread.name: spread.spread_s for spread in report.data.spreads}["predicted"] == pytest.approx(2e-3)
    assert report.data.slowest.prediction.predicted_s == pytest.approx(5e-3)
    render_json(report)
    render_markdown(report)
    environment = {"rank": "0", "world_size": "1"}
    plain = ranks_report(merge([analyze(session_of([Call(op=ADD)], environment=environment), H100)]))
    assert "predicted" not in plain.tables[0].names
    assert "predicted" not in {spread.name for spread in plain.data.spreads}


slowdowns = st.builds(
    lambda low, middle, high, extrapolated, source: (low, low * middle, low * middle * high, extrapolated, source),
    st.floats(1, 10),
    st.floats(1, 10),
    st.floats(1, 10),
    st.booleans(),
    st.sampled_from(list(Source)),
)


@given(programs_of(MM, BMM, ADD, VIEW, ODD), st.tuples(slowdowns, slowdowns, slowdowns))
def test_parts_sum_to_the_whole_and_none_beats_its_bound(program, factors):
    session = session_of(program)
    bounds = {each.signature: each.bound for each in analyze(session, H100).operations}
    estimates: list[Estimate | None] = []
    for one in session.signatures:
        if one not in (MM, BMM, ADD):
            estimates.append(None)
            continue
        bound_s = bounds[one].time_s
        low, middle, high, extrapolated, source = factors[(MM, BMM, ADD).index(one)]
        more = {"bound_s": bound_s, "extrapolated": extrapolated, "source": source}
        estimates.append(estimate(middle * bound_s, low * bound_s, high * bound_s, **more))
    analysis = analyze(session, H100, "", estimates)
    whole = analysis.totals.predicted
    rows = [analysis.by(key) for key in KEYS]
    for groups in (*rows, analysis.operations):
        found = [group.predicted for group in groups if group.predicted is not None]
        assert sum(each.time_s for each in found) == pytest.approx(whole.time_s if whole else 0.0)
        assert sum(each.calls for each in found) == (whole.calls if whole else 0)
        assert sum(each.typical_s + each.extrapolated_s for each in found) == pytest.approx(
            whole.typical_s + whole.extrapolated_s if whole else 0.0
        )
        for group in groups:
            predicted = group.predicted
            if predicted is not None:
                assert predicted.bound_s <= predicted.low_s <= predicted.time_s <= predicted.high_s
                assert group.bound_s <= predicted.low_s * TOLERANCE
        if whole:  # parts added as if they erred together are never surer than the whole
            assert sum(each.low_s for each in found) <= whole.low_s * TOLERANCE
            assert whole.high_s <= sum(each.high_s for each in found) * TOLERANCE
