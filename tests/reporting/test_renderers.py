"""Renderers from outside: a function of a user's file, and what packages announce."""

from __future__ import annotations

import pytest
from announced import announce

from rooflight.devices import all_devices
from rooflight.hardware.devices.tables import list_report
from rooflight.reporting.output import Outputs
from rooflight.reporting.renderers import ENTRY_POINT_GROUP, find

REPORT = list_report(all_devices())


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def titled(report):\n    return report.title\n\n\ndef numbered(report):\n    return 7\n")
    return path


def test_a_function_of_a_file_writes_the_report(tmp_path, mine, capsys):
    Outputs(render=[f"{mine}:titled={tmp_path / 'title.txt'}", f"markdown={tmp_path / 'it.md'}"]).write(REPORT)
    assert (tmp_path / "title.txt").read_text() == REPORT.title
    assert (tmp_path / "it.md").read_text().startswith(f"# {REPORT.title}")
    assert "Devices known" in capsys.readouterr().out


def test_it_can_have_standard_output_alone(mine, capsys):
    outputs = Outputs(render=[f"{mine}:titled=-"])
    assert outputs.to_stdout
    outputs.write(REPORT)
    assert capsys.readouterr().out == REPORT.title


def test_a_package_announces_a_renderer(tmp_path, monkeypatch):
    (tmp_path / "acme_text.py").write_text("def render(report):\n    return 'by acme'\n")
    announce(tmp_path, ENTRY_POINT_GROUP, "acme = acme_text:render", "json = acme_text:render")
    monkeypatch.syspath_prepend(tmp_path)
    assert find("acme")(REPORT) == "by acme"
    assert find("json")(REPORT).startswith("{")  # the name of a format of ours stays ours
    announce(tmp_path, ENTRY_POINT_GROUP, "acme = other:render", package="other")
    with pytest.raises(ValueError, match='2 packages announce a renderer "acme"'):
        find("acme")


def test_mistakes_are_refused_before_the_work(tmp_path, mine):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for text, said in (
        ("latex=it.tex", 'unknown renderer "latex": known are csv, html, json, markdown; for a function of yours'),
        (f"{mine}:none=it.txt", "has no function none"),
        (f"{tmp_path / 'nothing.py'}:f=it.txt", "no such file"),
        (f"{tmp_path / 'broken.py'}:f=it.txt", "ZeroDivisionError"),
        ("it.txt", "--render it.txt: write the renderer, =, and the file"),
        ("=it.txt", "write the renderer, =, and the file"),
        (f"{mine}:titled=", "has an empty name"),
        (f"csv={tmp_path}", "--csv writes a folder of tables"),
        (f"{mine}:titled={tmp_path}", "is a folder"),
    ):
        with pytest.raises(ValueError, match=said):
            Outputs(render=[text])
    with pytest.raises(ValueError, match="--json and --render name the same file"):
        Outputs(json=str(tmp_path / "it"), render=[f"{mine}:titled={tmp_path / 'it'}"])
    with pytest.raises(ValueError, match=r"--json - and --render .*=-: only one can have standard output"):
        Outputs(json="-", render=[f"{mine}:titled=-"])


def test_what_is_no_text_is_refused(tmp_path, mine):
    with pytest.raises(ValueError, match="the renderer returned int, not str"):
        Outputs(render=[f"{mine}:numbered={tmp_path / 'it'}"]).write(REPORT)
    assert not (tmp_path / "it").exists()
