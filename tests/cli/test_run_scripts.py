"""Rows of tests/scripts/truth.toml, by the check of benchmarks/run_scripts.py: scripts as users write them."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "run_scripts.py"
SPEC = importlib.util.spec_from_file_location("run_scripts", PATH)
run_scripts = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = run_scripts
SPEC.loader.exec_module(run_scripts)
ROWS = run_scripts.rows()


def test_the_table_names_each_script_once_and_no_other():
    named = {run_scripts.SCRIPTS / row.script for row in ROWS}
    beside = {(run_scripts.SCRIPTS / row.script).parent / name for row in ROWS for name in row.beside}
    assert all(path.exists() for path in named | beside)
    entries = {path for folder in run_scripts.SCRIPTS.iterdir() if folder.is_dir() for path in folder.iterdir()}
    entries = {path for path in entries if path.parent.name != "cuda"}  # for GPUs that are not here: tests/virtual
    assert {path for path in entries if path.name != "__pycache__"} == named | beside
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert sorted(row.like for row in ROWS if row.like) == list(range(1, 32))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nothing_of_a_script_changes_and_its_step_is_found(row, tmp_path):
    assert run_scripts.checked(row, tmp_path)[1] == []
