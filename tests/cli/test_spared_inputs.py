"""No verb writes over a file that it reads, by whatever name: it refuses before it works."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from builders import op, spec
from sessions import Call, session_of

from rooflight.records.report import Report, table
from rooflight.reporting.output import Outputs

TENSOR = spec((64, 64), "float32")
ON = ("--device", "H100-SXM5-80GB")
OPTIONS = ("--json", "--markdown", "--html", "--save", "--render")
STEP = "def make_step():\n    raise AssertionError('the step was made')\n"


@pytest.fixture
def saved(tmp_path) -> Path:
    session = session_of([Call(op=op("aten::mm", {"self": TENSOR, "mat2": TENSOR}, [TENSOR]))])
    return session.save(tmp_path / "a.session")


@pytest.fixture
def spared(run):
    """Run words, which must be refused for the sake of a file; what was said."""

    def check(file: Path, *words) -> str:
        before = file.read_bytes()
        code, shown, said = run(*words)
        assert (code, shown) == (2, ""), said
        assert said.count("\n") == 1
        assert file.read_bytes() == before
        return said

    return check


@pytest.mark.parametrize("option", OPTIONS)
def test_a_session_is_not_written_over(spared, saved, option):
    value = f"json={saved}" if option == "--render" else saved
    said = spared(saved, "analyze", saved, *ON, option, value)
    assert said == f"rooflight: {option} {saved}: the command reads that file, so give the output another name\n"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_nor_through_links_nor_by_a_relative_name(spared, saved, tmp_path, monkeypatch, link):
    link(saved, tmp_path / "b")
    (tmp_path / "in").symlink_to(tmp_path)
    (tmp_path / "x").mkdir()
    for name in ("b", "in/a.session", "./a.session", "x/../a.session"):
        monkeypatch.chdir(tmp_path)
        assert f", which is {saved}: the command" in spared(saved, "analyze", saved, *ON, "--json", name)
    assert spared(saved, "analyze", tmp_path / "b", *ON, "--json", saved)


def test_nor_a_program_a_renderer_or_a_device(spared, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step, mine = tmp_path / "x.py", tmp_path / "mine.py"
    step.write_text(STEP)
    mine.write_text("def text(report):\n    return ''\n")
    toml = tmp_path / "d.toml"
    toml.write_text('name = "D"\nvendor = "V"\nsource = ["S"]\n')
    assert "--json" in spared(step, "analyze", f"{step}:make_step", "--json", "x.py")
    assert "--html" in spared(step, "analyze", "x.py:make_step", "--html", step)
    assert "--render" in spared(mine, "analyze", saved, *ON, "--render", f"{mine}:text=mine.py")
    assert "--markdown" in spared(toml, "analyze", saved, "--device", toml, "--markdown", toml)
    assert "--json" in spared(toml, "devices", "show", toml, "--json", toml)
    assert "--json" in spared(step, "explain", f"{step}:make_step", "--json", step)
    assert "--json" in spared(step, "compile-bench", f"{step}:make_step", "--json", step)
    assert "--html" in spared(mine, "score", step, mine, "--html", mine)
    assert "--json" in spared(step, "profile-decode", f"{step}:make_step", "--json", step)


def test_nor_what_a_folder_is_read_for(spared, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    table = data / "cpu_gemm_fp32.csv"
    table.write_text("m,n,k,dur(us)\n8,8,8,1.0\n")
    for verb in ("lint", "fit"):
        assert "--json" in spared(table, verb, data, "--json", table)
    assert "--markdown" in spared(table, "merge", table, "--markdown", table)
    assert "--out" in spared(table, "merge", table, "--out", table)


def test_nor_a_config_in_the_folder_of_the_results(spared, tmp_path):
    config = tmp_path / "out" / "r" / "config.json"
    config.parent.mkdir(parents=True)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 64, **shape}))
    said = spared(config, "profile-decode", config, "--output-dir", tmp_path / "out", "--run-name", "r")
    assert f"{config} is in the folder that is written" in said


def test_a_table_of_the_report_does_not_replace_the_one_that_is_read(tmp_path, capsys):
    rows = table("rows", "Rows", [1], ("n", "", lambda each: each))
    read, page = tmp_path / "rows.csv", tmp_path / "a.md"
    read.write_text("m,n\n")
    with pytest.raises(ValueError, match=r"the command reads rows\.csv there"):
        Outputs(csv=str(tmp_path), markdown=str(page), reads=[read]).write(Report(title="T", data=None, tables=(rows,)))
    assert read.read_text() == "m,n\n"
    assert page.exists()
    assert "Rows" in capsys.readouterr().out


def test_other_files_may_lie_beside_it(run, saved, tmp_path):
    assert run("analyze", saved, *ON, "--json", tmp_path / "a.json", "--csv", tmp_path)[0] == 0
    assert run("analyze", saved, *ON, "--json", tmp_path / "a.json", "--csv", tmp_path)[0] == 0
