"""Files with sessions in formats that packages read."""

from __future__ import annotations

import pytest
from announced import announce
from builders import op, spec
from kineto_traces import kernel, launch, write
from kineto_traces import op as host_op
from sessions import Call, session_of

from rooflight.front.options import RunOptions, TraceOptions
from rooflight.front.sessions import analyze_file, analyze_ranks
from rooflight.front.sources import ENTRY_POINT_GROUP, is_session, read_session
from rooflight.front.targets import analyze_target

X = spec((4, 8))


@pytest.fixture
def acme(tmp_path, monkeypatch):
    session_of([Call(op=op("aten::relu", [X], [X]))]).save(tmp_path / "run.session")
    (tmp_path / "acme_sources.py").write_text(
        "from rooflight.records.archive import load\n"
        "def read(path):\n    return load(path.with_suffix('.session'))\n"
        "def wrong(path):\n    return 7\n"
    )
    announce(tmp_path, ENTRY_POINT_GROUP, "acme = acme_sources:read", "odd = acme_sources:wrong")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run.acme").write_text("what acme writes")
    return tmp_path


def test_a_package_reads_files_of_its_suffix(acme):
    assert is_session(str(acme / "run.acme"))
    assert analyze_file(str(acme / "run.acme"), "H100-SXM5-80GB").totals.calls == 1
    assert len(read_session(str(acme / "run.session"))) == 1  # the own format stays


def test_ranks_may_be_in_such_files_too(acme):
    with pytest.raises(ValueError, match="rank"):  # the session has no rank, which only a session that was read shows
        analyze_ranks([str(acme / "run.acme"), str(acme / "run.session")], "H100-SXM5-80GB")


def test_mistakes_are_said(acme):
    with pytest.raises(FileNotFoundError, match=r"no session file .*none\.acme"):
        read_session(str(acme / "none.acme"))
    (acme / "run.odd").write_text("")
    with pytest.raises(ValueError, match=r"the source of \.odd files returned int, not a Session"):
        read_session(str(acme / "run.odd"))
    announce(acme, ENTRY_POINT_GROUP, "acme = other:read", package="other")
    with pytest.raises(ValueError, match=r"2 packages read \.acme files: "):
        read_session(str(acme / "run.acme"))


def test_options_of_traces_are_refused_where_there_is_no_trace(acme, tmp_path):
    with pytest.raises(ValueError, match=r"^--capture: no effect on .*run\.acme"):
        analyze_file(str(acme / "run.acme"), options=TraceOptions(capture=tmp_path / "capture.json"))
    with pytest.raises(ValueError, match=r"^--capture: no effect on gpt2"):
        analyze_target("gpt2", RunOptions(), trace=TraceOptions(capture=tmp_path / "capture.json"))


def mm(number):
    shapes = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
    start = 10 * number
    return [
        host_op("aten::mm", start, start + 5, **shapes),
        launch(start + 1, number),
        kernel(start, start + 9, number),
    ]


def test_how_much_of_a_trace_is_read_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("rooflight.sources.traces.file.chunks._CHUNK", 1 << 10)
    path = write(tmp_path / "trace.json", [event for number in range(40) for event in mm(number)])
    said = []
    analyze_file(str(path), progress=said.append)
    assert said[-1] == "working out the ops of trace.json"
    shares = [int(text.removeprefix("reading trace.json: ").removesuffix(" %")) for text in said[:-1]]
    assert len(shares) > 3
    assert shares == sorted(set(shares))


def test_reading_a_trace_can_be_interrupted(tmp_path, monkeypatch, run):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflight.sources.traces.session.find_signatures", interrupted)
    code, out, err = run("analyze", write(tmp_path / "trace.json", mm(0)), "--save", tmp_path / "it.session")
    assert (code, out) == (130, "")
    assert err == "rooflight: interrupted: nothing was left half-written\n"
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]
