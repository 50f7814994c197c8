"""What a user of the Python functions meets: reports that show themselves, short reprs, clear errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import op, spec
from sessions import Call, session_of
from torch import nn

import rooflight as rl
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction
from rooflight.reporting.console import print_report
from rooflight.roofline.ranks import merge
from rooflight.roofline.tables.report import report_of

H100 = "H100-SXM5-80GB"
TENSOR = spec((64, 64), "float32")
MM = op("aten::mm", {"self": TENSOR, "mat2": TENSOR}, [TENSOR])


def session(**environment: str) -> rl.Session:
    calls = [Call(op=MM, direction=direction) for direction in (Direction.FORWARD, Direction.BACKWARD)]
    return session_of(calls, times=[[1e-3, 2e-3]], walls=[5.6e-3], environment=environment)


# -- showing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [1, 10])
def test_show_prints_the_report_of_the_command(capsys, top):
    analysis = rl.analyze(session(), H100)
    print_report(report_of(analysis, top=top, found=rl.diagnose(analysis)))
    of_command = capsys.readouterr().out
    assert "By phase" in of_command
    analysis.show(top=top)
    assert capsys.readouterr().out == of_command
    with pytest.raises(ValueError, match="at least 1 row"):
        analysis.show(top=0)


def test_show_prints_what_rooflight_analyze_prints(run, capsys, tmp_path):
    path = session(target="a step").save(tmp_path / "a.session")
    code, printed, _ = run("analyze", path, "--device", H100)
    assert code == 0
    rl.analyze(path, H100).show()
    assert capsys.readouterr().out == printed


def test_printed_it_is_the_main_part_as_plain_text():
    text = str(rl.analyze(session(), H100, target="a\x1b[31m step"))
    lines = text.splitlines()
    assert lines[0] == rf"Speed of light: a\x1b[31m step on {H100}"
    assert [line.split("  ")[1] for line in lines[8:12]] == ["device", "roofs", "operations", "matrix FLOPs"]
    assert "  operations     2 calls of 1 distinct signature" in lines
    assert "The step took 5.60 ms" in lines[2]


def test_a_notebook_shows_tables_and_no_script():
    analysis = rl.analyze(session(), H100, target="<script>alert(1)</script>")
    shown = analysis._repr_html_()
    assert shown == analysis.report()._repr_html_()
    assert shown.startswith('<div class="rooflight">')
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown
    assert shown.count("<table") == 1 + len(analysis.report().tables)  # the facts are one
    assert "By phase" in shown
    assert "The step took 5.60 ms" in shown


def test_what_shows_reports_is_imported_when_it_is_first_needed():
    program = (
        "import sys; import rooflight.roofline.analysis as a, rooflight as rl\n"
        "before = {name for name in sys.modules if name.startswith('rooflight.reporting') or name == 'rich'}\n"
        "from rooflight.hardware.devices.tables import list_report\n"
        "list_report([rl.devices.get('H100-SXM5-80GB')]).show()\n"
        "print(sorted(before), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Devices known" in done.stdout
    assert done.stdout.endswith("[] False\n")


# -- what analyze takes ----------------------------------------------------------------------------------------------


def test_analyze_takes_a_session_a_recording_or_a_path(tmp_path):
    model = nn.Linear(4, 4)
    with rl.record(model) as recording:
        model(torch.randn(2, 4))
    path = recording.session.save(tmp_path / "a.session")
    bounds = {
        rl.analyze(each, H100).totals.op_bound_s
        for each in (recording, recording.session, path, str(path), rl.analyze(recording, "A100-SXM4-80GB"))
    }
    assert len(bounds) == 1


def test_a_saved_session_keeps_its_target_in_python_too(tmp_path):
    path = session(target="my step").save(tmp_path / "a.session")
    assert rl.analyze(path, H100).target == "my step"
    assert rl.analyze(rl.load(path), H100).target == "my step"
    assert rl.analyze(path, H100, target="other").target == "other"
    assert rl.analyze(session().save(tmp_path / "b.session"), H100).target == "b.session"


def test_a_device_can_be_the_path_of_its_file():
    file = Path(rl.devices.__file__).parent / "data" / "h100-sxm5-80gb.toml"
    assert rl.find_device(file).name == H100


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: rl.analyze(None), TypeError, r"analyze takes a Session, a recording .* not NoneType: with rl\.record"),
        (lambda: rl.analyze(3, H100), TypeError, "not int"),
        (lambda: rl.analyze([session()], H100), TypeError, "not list"),
        (lambda: rl.analyze("gpt2", H100), FileNotFoundError, "no saved session gpt2: .* rooflight analyze"),
        (lambda: rl.analyze("x.session", H100), FileNotFoundError, r"no saved session x\.session: pass a Session"),
        (lambda: rl.analyze(Path("/"), H100), IsADirectoryError, "/ is a folder: pass a Session, a recording, or"),
        (lambda: rl.analyze(rl.record(), H100), RuntimeError, r"still open: read \.session after the with block"),
        (lambda: rl.analyze(session(), object()), TypeError, r"a device is a name such as .* not object"),
        (lambda: rl.analyze(session(), 3), TypeError, "not int"),
        (lambda: rl.analyze(session(), H100, predictor=3), TypeError, r"predictor is int: pass rl\.Predictor\(\)"),
        (lambda: rl.find_device(3), TypeError, "a device is a name .* not int"),
        (lambda: rl.find_device("nope"), ValueError, 'unknown device "nope": rooflight devices lists those'),
        (lambda: rl.devices.get(None), TypeError, "get takes the name of a device.* not NoneType"),
        (lambda: rl.load(None), TypeError, "load takes the path of a saved session, not NoneType"),
        (lambda: rl.load("/"), FileNotFoundError, "no session file /: it is a folder, name a file in it"),
        (lambda: rl.load(__file__), ValueError, "this is no session: save one"),
        (lambda: rl.measure(None, print), TypeError, r"measure takes a Session, not NoneType: pass recording\.session"),
        (lambda: rl.measure(session(), None), TypeError, "a function that runs the recorded step again"),
        (lambda: rl.record("gpt2"), TypeError, r"str is not a torch\.nn\.Module: give the model"),
        (lambda: rl.record(3), TypeError, r"int is not a torch\.nn\.Module: give the model"),
        (lambda: rl.phase(3), TypeError, "a phase is named by a text"),
        (lambda: rl.formula(print), TypeError, r"takes the names of ops: @rl\.formula"),
        (lambda: rl.Predictor.load(None), TypeError, "load takes the folder that rooflight fit wrote"),
        (lambda: rl.Predictor.of([3]), TypeError, r"of takes models, not int: Predictor\.load"),
        (lambda: rl.Predictor.of(3), TypeError, "of takes models, not int"),
    ],
)
def test_a_wrong_argument_is_one_line_that_says_what_to_do(call: Any, error: type[Exception], said: str):
    with pytest.raises(error, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- reprs -----------------------------------------------------------------------------------------------------------


def test_reprs_are_short_and_say_what_it_is():
    measured = session(device_kind="meta")
    assert repr(measured) == "Session(2 ops, 2 phases, recorded on meta, measured 5.60 ms)"
    assert repr(session_of([Call(op=MM, phase="a\x1b")])) == "Session(1 op, 1 phase)"
    assert repr(session_of([])) == "Session(0 ops, 0 phases)"
    assert repr(session_of([], environment={"device_kind": "cuda", "gpu": "NVIDIA H100"})).endswith("on NVIDIA H100)")
    assert repr(session_of([], environment={"device_kind": "cpu", "cpu": "a\x1b"})).endswith(r"recorded on a\x1b)")
    assert repr(measured.columns) == "Columns(2 records)"
    assert repr(measured.measurement) == "Measurement(1 step, mean 5.60 ms, by hand)"
    analysis = rl.analyze(measured, H100)
    bound = str(Quantity(analysis.totals.op_bound_s, "s"))
    assert repr(analysis) == f"Analysis(2 ops on {H100}, op bound {bound})"  # another device's time is left out
    assert repr(rl.analyze(session(), H100)) == f"Analysis(2 ops on {H100}, op bound {bound}, measured 5.60 ms)"
    tables, pictures = len(analysis.report().tables), len(analysis.report().series)
    title = f"Speed of light: recorded session on {H100}"
    assert repr(analysis.report()) == f"Report('{title}', {tables} tables, {pictures} pictures)"
    assert repr(merge([rl.analyze(session(rank="0", world_size="1"), H100)])) == "RankedAnalysis(1 rank)"
    assert repr(analysis.device) == f"DeviceSpec('{H100}', datasheet)"
    assert repr(rl.Predictor.empty()) == "Predictor(0 models)"
    assert repr(rl.Predictor()) == f"Predictor({len(rl.Predictor().models)} models)"


def test_a_recording_says_whether_it_has_ended():
    recording = rl.record()
    assert repr(recording) == "Recording(not begun: use it in a with block)"
    with recording:
        assert repr(recording) == "Recording(still open)"
        torch.ones(2) + 1
    assert repr(recording).startswith("Recording(2 ops, 1 phase, recorded on ")


@pytest.mark.parametrize(("number", "said"), [(0, "0 calls"), (1, "1 call"), (2, "2 calls"), (2000, "2,000 calls")])
def test_one_is_no_plural(number, said):
    assert count_of(number, "call") == said
