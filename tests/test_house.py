"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("src", "tests", "benchmarks", "examples")
PYTHON_FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MOST_LINES = 500


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_short_and_has_a_name_that_says_something(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES
    assert not re.fullmatch(r"(utils?|helpers?|common|misc)|.*_old", path.stem)


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_loaded_from_disk_is_executed(path):
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec"}
    assert "allow_pickle=True" not in path.read_text()


def test_the_front_door_is_small_and_every_name_opens():
    import rooflight

    assert len(rooflight.__all__) <= 20
    for name in rooflight.__all__:
        assert getattr(rooflight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rooflight.nothing  # noqa: B018


@pytest.mark.parametrize(
    "path", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda path: path.name
)
def test_documents_are_finished_and_their_links_lead_somewhere(path):
    text = path.read_text()
    assert "@@" not in text
    assert "TODO" not in text
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (path.parent / link).exists(), link
