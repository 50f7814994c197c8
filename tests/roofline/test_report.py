import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from builders import op, spec
from rich.console import Console
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.reporting.console import print_report
from rooflight.reporting.json import render_json
from rooflight.reporting.markdown import render_markdown
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.tables.report import conclusion, report_of

H100 = get("H100-SXM5-80GB")
BIG = spec((8192, 8192), "bfloat16")
MM = op("aten::mm", {"self": BIG, "mat2": BIG}, [BIG])
ODD = op("nobody::knows", {"x": spec((10,))}, [spec((10,))])
HOSTILE = op("nobody::<script>alert(1)</script>|[red]x[/red]", {"x": spec((10,))}, [spec((10,))])


def analysis_of(*ops, **options) -> Analysis:
    return analyze(session_of([Call(op=one, module="m", layer="Layer") for one in ops], **options), H100, "a test")


def console_text(analysis, width=160, **options) -> str:
    written = StringIO()
    print_report(report_of(analysis, **options), Console(width=width, force_terminal=False, file=written))
    return written.getvalue()


def test_the_console_names_device_roofs_totals_and_limiter():
    text = console_text(analysis_of(MM))
    for part in ("H100-SXM5-80GB", "989 TFLOP/s", "3.35 TB/s", "1.10 TFLOP", "100% of calls", "1.11 ms", "compute"):
        assert part in text
    assert "These ops, one by one, take at least 1.11 ms" in text


def test_json_has_the_agreed_keys_and_units():
    data = json.loads(render_json(report_of(analysis_of(MM, ODD))))
    assert data["schema"] == "rooflight.analysis/1"
    assert {"target", "device", "totals", "coverage", "by_phase", "by_module", "by_op", "ops"} <= set(data)
    assert data["totals"]["matrix_flops"] == 2 * 8192**3
    assert data["totals"]["bytes_moved"] == 3 * 2 * 8192**2
    assert data["totals"]["measured_s"] is None
    assert data["totals"]["op_bound_s"] == pytest.approx(2 * 8192**3 / 989.4e12)
    assert data["coverage"]["calls"] == 0.5
    assert data["coverage"]["uncosted"][0]["name"] == "nobody::knows"
    assert data["device"]["name"] == "H100-SXM5-80GB"
    assert [row["name"] for row in data["by_op"]] == ["aten::mm", "nobody::knows"]


def test_uncosted_ops_are_shown_and_their_effect_is_said():
    text = console_text(analysis_of(MM, ODD))
    assert "Not costed" in text
    assert "nobody::knows" in text
    assert "missing from the totals" in text


def test_markdown_escapes_what_programs_name():
    text = render_markdown(report_of(analysis_of(HOSTILE)))
    assert "<script>" not in text
    assert "\\<script\\>" in text
    rows = [line for line in text.splitlines() if "alert" in line]
    assert rows
    assert all("\\|" in row for row in rows)


def test_the_console_shows_markup_in_names_as_it_is():
    assert "[red]x[/red]" in console_text(analysis_of(HOSTILE), width=240)


def test_a_step_that_hardly_works_is_not_called_billions_of_times_too_slow():
    one = spec((1,), "uint8")
    idle = op("aten::add", {"self": one, "other": one}, [one])  # 3 B at 3.35 TB/s: 0.9 ps
    text = conclusion(analysis_of(idle, times=[[1e-6]], walls=[17.0]))
    assert text.startswith("The step took 17.0 s, and its ops hardly work: their op bound is below 1 ns; ")
    assert " times " not in text
    elsewhere = {"device_kind": "cuda", "gpu": "NVIDIA A100-SXM4-80GB"}
    there = conclusion(analysis_of(idle, times=[[1e-6]], walls=[17.0], environment=elsewhere))
    assert "where it was measured, the step took 17.0 s." in there


def test_a_measured_step_says_how_far_it_is_from_light():
    text = conclusion(analysis_of(MM, times=[[2e-3]], walls=[2.5e-3]))
    assert "2.50 ms" in text
    assert "2.2 times the op bound of 1.11 ms" in text  # 2.5 / 1.1113


def test_faster_than_light_is_a_contradiction_in_every_format():
    analysis = analysis_of(MM, times=[[1e-6]], walls=[1e-6])
    assert "Contradictions" in console_text(analysis)
    assert "Contradictions" in render_markdown(report_of(analysis))
    assert json.loads(render_json(report_of(analysis)))["contradictions"][0]["measured_s"] == 1e-6


def test_a_step_that_does_not_fit_says_by_how_much():
    calls = [Call(op=MM, reads=(0,), writes=(1,))]
    analysis = analyze(session_of(calls, storage_bytes=[80 << 30, 20 << 30]), H100)
    text = console_text(analysis)
    assert "does not fit" in text
    assert "1.2 devices' worth" in text  # 100 GiB over 80 GiB


def test_an_empty_recording_says_so():
    assert "No ops were recorded" in conclusion(analyze(session_of([]), H100))
    assert console_text(analyze(session_of([]), H100))


def test_long_tables_are_cut_and_say_so():
    many = [op("aten::mm", {"self": spec((n, n)), "mat2": spec((n, n))}, [spec((n, n))]) for n in range(1, 9)]
    assert "and 5 more" in console_text(analysis_of(*many), top=3)
    with pytest.raises(ValueError, match="at least 1"):
        report_of(analysis_of(MM), top=0)


def test_no_loss_is_said_to_be_larger_than_the_step():
    analysis = analysis_of(MM, times=[[9e-3]], walls=[2.5e-3])  # the profiler slowed the op down
    text = console_text(analysis)
    assert "kernels slower than their bound" in text  # scaled down to the step
    assert "timed one by one, took longer than whole steps" in text


def test_steps_that_scatter_are_doubted():
    assert "differ widely" in console_text(analysis_of(MM, times=[[2e-3]], walls=[2.5e-3, 80e-3, 2.4e-3]))
    assert "differ widely" not in console_text(analysis_of(MM, times=[[2e-3]], walls=[2.5e-3, 2.6e-3]))


def test_arithmetic_without_a_known_peak_is_said_to_be_unbounded():
    text = conclusion(analyze(session_of([Call(op=MM)]), get("V100-SXM2-16GB")))
    assert "Arithmetic is not bounded: V100-SXM2-16GB has no known bfloat16 matrix peak" in text


def test_times_of_another_device_are_kept_apart():
    calls, environment = [Call(op=MM)], {"device_kind": "cpu", "cpu": "a small CPU"}
    session = session_of(calls, times=[[2e-3]], walls=[2.5e-3], environment=environment)
    analysis = analyze(session, H100)
    assert analysis.totals.measured_s is None
    assert analysis.contradictions == ()
    assert analysis.session.measurement is session.measurement  # a saved copy keeps its times
    text = console_text(analysis)
    assert "Measured on a small CPU, not on H100-SXM5-80GB" in text
    assert "step of 2.50 ms on a small CPU" in text
    assert "On a small CPU, where it was measured, the step took 2.50 ms" in conclusion(analysis)
    document = analysis.report().data
    assert document.measured_there.device == "a small CPU"
    assert document.measured_there.measured_s == 2.5e-3
    assert [op.measured_there_s for op in document.ops] == [2e-3]
    assert [op.efficiency for op in document.ops] == [None]
    assert [group.measured_there_s for group in document.by_op] == [2e-3]
    on_gpu = {"device_kind": "cuda", "gpu": "NVIDIA H100 80GB HBM3"}
    session = session_of(calls, times=[[2e-3]], walls=[2.5e-3], environment=on_gpu)
    assert analyze(session, H100).totals.measured_s == 2.5e-3
    assert analyze(session, H100).report().data.measured_there is None
    assert analyze(session, get("H200-SXM-141GB")).totals.measured_s is None


def test_a_device_stands_for_a_gpu_that_is_not_in_the_catalog():
    environment = {"device_kind": "cuda", "gpu": "NVIDIA Something 9"}
    analysis = analyze(session_of([Call(op=MM)], times=[[2e-3]], walls=[2.5e-3], environment=environment), H100)
    assert analysis.totals.measured_s == 2.5e-3
    assert "NVIDIA Something 9, on which this was measured, is not in the catalog" in console_text(analysis)


def test_the_op_named_is_the_one_that_the_limiter_limits():
    small, wide = spec((1024, 1024), "bfloat16"), spec((1 << 26,))
    product = op("aten::mm", {"self": small, "mat2": small}, [small])
    cube = op("aten::mm", {"self": BIG, "mat2": BIG}, [BIG])
    add = op("aten::add", {"self": wide, "other": wide}, [wide])
    # 2 cubes of 1.1 ms are limited by arithmetic, 8 additions of 0.24 ms by memory
    text = conclusion(analysis_of(cube, cube, product, *[add] * 8))
    assert "limited by arithmetic, most of it in mm" in text
    many = conclusion(analysis_of(cube, *[add] * 8))
    assert "limited by memory bandwidth, most of it in add" in many


def test_a_peak_calibrated_above_the_datasheet_s_clock_leaves_no_headroom():
    said = "quoted below its highest clock: a kernel may run up to 8.2%"  # 1980 / 1830
    session = session_of([Call(op=MM, module="m", layer="Layer")])
    assert said in " ".join(report_of(analyze(session, H100, "a test")).notes)
    roofs = H100.datasheet
    assert roofs is not None
    for raised, expected in ((0.7, said), (1.05, "may run up to 3.0%"), (1.2, "")):
        peaks = {name: raised * peak for name, peak in roofs.matrix_flops_per_s.items()}
        notes = report_of(
            analyze(session, H100.with_calibration(replace(roofs, matrix_flops_per_s=peaks)), "a test")
        ).notes
        assert expected in " ".join(notes)
        assert any("highest clock" in note for note in notes) == bool(expected)


def measured_report(*, walls, **measurement):
    session = analysis_of(MM, times=[[2e-3]], walls=walls).session
    session = session.with_measurement(replace(session.measurement, **measurement))
    return report_of(analyze(session, H100, "a test"))


def test_times_taken_beside_other_programs_are_doubted():
    report = measured_report(walls=[2.5e-3, 9e-3], others_share=0.61)
    said = " ".join(report.notes)
    assert "Other programs took 61.0% of the CPU while the step was timed" in said
    assert "delays the launching of kernels" in said  # it is a GPU
    assert "Steps differ widely" not in said  # said once: why is known
    assert report.conclusion.startswith(
        "Other programs took 61.0% of the CPU: measure again on a quiet machine. The step"
    )
    assert report.data.measurement.disturbed
    assert report.data.measurement.others_share == 0.61


@pytest.mark.parametrize("share", [None, 0.0, 0.049])
def test_a_quiet_machine_is_not_mentioned(share):
    report = measured_report(walls=[2.5e-3], others_share=share)
    assert "Other programs" not in " ".join((*report.notes, report.conclusion))
    assert not report.data.measurement.disturbed


def test_steps_that_differ_are_doubted_also_without_times_of_ops():
    report = measured_report(walls=[2e-3, 2e-3, 5e-3], op_samples_s=np.empty((0, 1)))
    assert "the slowest took 2.5 times as long as the fastest" in " ".join(report.notes)


def test_a_step_faster_than_light_is_a_contradiction_and_nothing_is_clipped():
    # 8192^3 * 2 / 989.4e12 = 1.111 ms at least; 6 µs is 18519 % of that
    report = measured_report(walls=[6e-6], op_samples_s=np.empty((0, 1)))
    said = " ".join(report.notes)
    assert "Contradiction: the measured step, 6.00 µs, is shorter than its program bound, 1.11 ms" in said
    assert "Likely causes" in said
    assert report.conclusion.startswith("Contradiction: the step took 6.00 µs, and this device needs at least 1.11 ms")
    assert dict(report.facts)["efficiency"] == "18521.5% (op bound / measured step): a contradiction, see the notes"
    assert report.data.measurement.beats_light
    assert [(row.cause, row.seconds) for row in report.data.account.rows] == [("light", pytest.approx(6e-6))]


def test_nothing_recorded_is_not_covered():
    data = json.loads(render_json(report_of(analysis_of())))
    assert data["coverage"]["calls"] is None
    assert data["coverage"]["bytes"] is None
    report = report_of(analysis_of())
    assert report.tables == ()  # each would be empty
    assert dict(report.facts)["coverage"] == "no ops were recorded"
    assert "open it in the thread that works." in " ".join(console_text(analysis_of()).split())


def test_a_step_that_a_cache_may_have_served_is_no_contradiction():
    # 3 x 2 MiB in bfloat16 fit the H100's L2 of 50 MiB, whose bandwidth no datasheet gives. From memory they take
    # 6.29e6 B / 3.35e12 B/s = 1.88 µs, and adding them 1024^2 / 66.9e12 = 16 ns.
    side = spec((1024, 1024), "bfloat16")
    add = op("aten::add", {"self": side, "other": side}, [side])
    cold = 3 * 2 * 1024**2 / 3.35e12
    for wall, contradicted in ((0.5 * cold, False), (1e-9, True)):
        call = Call(op=add, reads=(0, 1), writes=(2,))
        session = session_of([call], times=[[wall]], walls=[wall], storage_bytes=[2 << 20] * 3)
        analysis = analyze(session, H100, "a test")
        assert analysis.program.warm.program_bound_s < 0.5 * cold < analysis.program.program_bound_s
        report = report_of(analysis)
        assert report.data.measurement.beats_light == contradicted
        assert bool(analysis.contradictions) == contradicted
        said = " ".join(report.notes)
        assert ("Contradiction" in said) == contradicted
        assert ("data came from a cache" in said) == (not contradicted)
        assert ("even with a full cache the bound is" in said) == contradicted


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("aten::lstm", {}, "lstm"),
        ("aten::_cudnn_rnn_backward", {}, "_cudnn_rnn_backward"),
        ("aten::convolution", {"transposed": True}, "convolution"),
        ("aten::convolution", {"transposed": False}, None),
        ("aten::convolution_backward", {}, "convolution_backward"),
        ("aten::mm", {}, None),
    ],
)
def test_ops_whose_kernels_allocate_inside_are_named(name, settings, named):
    given = op(name, {"x": spec((8, 8))}, [spec((8, 8))], **settings)
    told = [note for note in report_of(analysis_of(given)).notes if "allocate and free inside" in note]
    assert [note.endswith(f": {named}.") for note in told] == [True] * (named is not None)


def test_a_compiled_program_is_led_by_its_fused_bound_and_not_refused_for_eagers_peak():
    calls = [Call(op=MM, reads=(0,), writes=(1,)), Call(op=MM, reads=(1,), writes=(2,))]
    eager = session_of(calls, storage_bytes=[60 << 30, 40 << 30, 1 << 20])
    compiled = replace(eager, environment={**eager.environment, "compiled": "yes"})
    analysis = analyze(compiled, H100)
    text = console_text(analysis)
    assert "does not fit" not in text
    assert "whether the step fits is not known" in " ".join(text.split())
    facts = dict(report_of(analysis).facts)
    assert list(facts).index("fused bound") < list(facts).index("op bound")
    assert str(facts["memory"]).startswith("compiled at least 64.4 GB; run eagerly at least 107 GB")  # 60 GiB stood
    larger = replace(compiled, storage_bytes=compiled.storage_bytes * 2)
    told = " ".join(console_text(analyze(larger, H100)).split())
    assert "does not fit, even compiled: it needs at least 129 GB" in told
    assert conclusion(analysis).startswith("These ops, fused as compiled code may be, take at least")
    assert conclusion(analyze(eager, H100)).startswith("These ops, one by one, take at least")
