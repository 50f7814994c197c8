"""Where reports go: files that are checked before the work, standard output for one format alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflight.devices import all_devices
from rooflight.hardware.devices.tables import list_report
from rooflight.reporting.output import Outputs

REPORT = list_report(all_devices())


def test_every_format_has_its_file_and_the_report_is_shown(tmp_path, capsys):
    names = {name: str(tmp_path / f"it.{name}") for name in ("json", "markdown", "html")}
    Outputs(**names, csv=str(tmp_path / "tables")).write(REPORT)
    assert "Devices known" in capsys.readouterr().out
    assert json.loads((tmp_path / "it.json").read_text())["schema"] == "rooflight.devices/1"
    assert (tmp_path / "it.markdown").read_text().startswith("# Devices known")
    assert (tmp_path / "it.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["devices.csv"]


@pytest.mark.parametrize(
    ("name", "start"),
    [("json", "{\n"), ("markdown", "# Devices"), ("csv", "device,memory_bytes,dram_bytes_per_s"), ("html", "<!doc")],
)
def test_a_dash_prints_that_format_alone(capsys, name, start):
    outputs = Outputs(**{name: "-"})
    assert outputs.to_stdout
    outputs.write(REPORT)
    printed = capsys.readouterr().out
    assert printed.startswith(start)
    assert "… and" not in printed


def test_a_file_and_a_dash_go_together(tmp_path, capsys):
    Outputs(json="-", html=str(tmp_path / "it.html")).write(REPORT)
    assert json.loads(capsys.readouterr().out)["devices"]
    assert (tmp_path / "it.html").exists()


def test_only_one_can_have_standard_output():
    with pytest.raises(ValueError, match="--json - and --html -: only one can have standard output"):
        Outputs(json="-", html="-")


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for outputs, said in (
        ({"html": str(tmp_path / "none" / "it.html")}, "there is no folder"),
        ({"json": str(tmp_path)}, "is a folder"),
        ({"csv": str(tmp_path / "file")}, "is no folder: name one"),
        ({"csv": str(tmp_path / "none" / "tables")}, "there is no folder"),
        ({"csv": ""}, "--csv has an empty name"),
        ({"json": str(tmp_path / "it"), "html": f"{tmp_path}/./it"}, "--json and --html name the same file"),
        ({"json": str(tmp_path / "it"), "others": {"--save": tmp_path / "it"}}, "--save and --json name the same file"),
        ({"others": {"--save": tmp_path}}, "is a folder"),
    ):
        with pytest.raises(ValueError, match=said):
            Outputs(**outputs)
    Outputs(csv=str(tmp_path / "tables"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]  # nothing is made by asking
    Outputs(json="/dev/null", html="/dev/null", others={"--save": Path("/dev/null"), "--out": None})


def test_closed_standard_output_is_said(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(ValueError, match="--json -: standard output is closed"):
        Outputs(json="-")


def test_a_link_that_leads_nowhere_is_judged_by_where_it_leads(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none" / "it.json")
    with pytest.raises(ValueError, match=r"there is no folder .*none to write it\.json to"):
        Outputs(json=str(link))
    (tmp_path / "none").mkdir()
    Outputs(json=str(link)).write(REPORT)
    assert json.loads((tmp_path / "none" / "it.json").read_text())["devices"]
