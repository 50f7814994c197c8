"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("src", "tests", "benchmarks", "examples")
PYTHON_FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MOST_LINES = 500


def test_files_stay_short_and_have_names_that_say_something():
    assert [path for path in PYTHON_FILES if len(path.read_text().splitlines()) > MOST_LINES] == []
    assert [path for path in PYTHON_FILES if re.fullmatch(r"(utils?|helpers?|common|misc)|.*_old", path.stem)] == []


def test_names_of_test_files_are_unique():
    """Pytest imports them by their last name: of two that share one, a run of all tests collects neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_nothing_loaded_from_disk_is_executed():
    assert {path: names for path in SOURCES if (names := executing(path))} == {}


def executing(path: Path) -> set[str]:
    """Names in a file that could run what was loaded from disk."""
    text = path.read_text()
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    found = {name for name in imported if re.search(r"pickle|(^|\.)(dill|marshal|shelve|joblib)($|\.)", name)}
    found |= called & {"eval", "exec"}
    return found | {name for name in ("allow_pickle=True", "torch.load(") if name in text}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", {"pickle"}),
        ("from shelve import open", {"shelve"}),
        ("x = eval(text)", {"eval"}),
        ("import _pickle", {"_pickle"}),
        ("from torch.fx._graph_pickler import GraphPickler", {"torch.fx._graph_pickler"}),
        ("import marshalled", set()),
        ("np.load(path, allow_pickle=True)", {"allow_pickle=True"}),
        ("torch.load(path)", {"torch.load("}),
        ("model.eval()", set()),
    ],
)
def test_what_would_execute_is_seen(tmp_path, code, found):
    path = tmp_path / "module.py"
    path.write_text(code)
    assert executing(path) == found


def test_only_the_console_draws_tables_and_only_reports_reach_standard_output():
    drawing = [path for path in SOURCES if "rich.table" in path.read_text()]
    assert [path.name for path in drawing] == ["console.py"]
    outside = [path for path in SOURCES if "reporting" not in path.parts]
    assert [path for path in outside if "render_json" in path.read_text() or "write_report" in path.read_text()] == []


def test_the_front_door_is_small_and_every_name_opens():
    import rooflight

    assert len(rooflight.__all__) <= 26
    for name in rooflight.__all__:
        assert getattr(rooflight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rooflight.nothing  # noqa: B018


@pytest.mark.parametrize(
    "path", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda path: path.name
)
def test_documents_are_finished(path):
    text = path.read_text()
    assert "@@" not in text
    assert "TODO" not in text


def test_the_picture_of_the_house_is_of_this_code():
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "pictures" / "house.py")
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert house.PICTURE.read_text() == house.drawn(), "python docs/pictures/house.py draws it anew"
    place = {room: number for number, floor in enumerate(house.floors()) for room in floor}
    for room, floor in place.items():
        assert all(place[other] > floor for other in house.imports(room) if other in place), room
