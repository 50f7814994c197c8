"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("src", "tests", "benchmarks", "examples")
PYTHON_FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PACKAGE = ROOT / "src" / "rooflight"
SOURCES = sorted(PACKAGE.rglob("*.py"))
WINGS = ("hardware", "sources", "studies")
LIMITS = tomllib.loads((ROOT / "tests" / "house.toml").read_text())
"""How large rooms, folders, files and functions may be."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def test_files_stay_short_and_have_names_that_say_something():
    assert [path for path in PYTHON_FILES if len(path.read_text().splitlines()) > LIMITS["file"]] == []
    assert [path for path in PYTHON_FILES if re.fullmatch(r"(utils?|helpers?|common|misc)|.*_old", path.stem)] == []


def test_rooms_keep_to_their_budgets():
    sizes: Counter[str] = Counter()
    for path in SOURCES:
        sizes[room_of(path.relative_to(PACKAGE).parts)] += path.stat().st_size
    assert sizes.keys() == LIMITS["kilobytes"].keys()
    assert {room: size for room, size in sizes.items() if size > 1000 * LIMITS["kilobytes"][room]} == {}
    inside = defaultdict(set)
    for path in SOURCES:
        inside[path.parent].add(path)
        inside[path.parent.parent].add(path.parent)
    del inside[PACKAGE.parent]
    inside[PACKAGE].add(PACKAGE / "py.typed")
    assert len(inside.pop(PACKAGE)) <= LIMITS["first_folder"]
    assert {str(folder): len(found) for folder, found in inside.items() if len(found) > LIMITS["entries"]} == {}


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a file; inside a wing, the wing's. Files of the house itself are ``rooflight``."""
    if len(parts) == 1:
        return "rooflight"
    return f"{parts[0]}/{parts[1]}" if parts[0] in WINGS and len(parts) > 2 else parts[0]


def test_functions_fit_a_screen():
    """Few have over 40 lines, and none more than the limit."""
    lengths = {
        f"{path.relative_to(PACKAGE)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > LIMITS["function"]} == {}
    assert sum(length > 40 for length in lengths.values()) <= LIMITS["share_of_functions_over_40"] * len(lengths)


def test_no_file_imports_itself_by_way_of_others():
    """Imports for type checkers and inside functions count."""
    imports = {module_name(path): imported(path) for path in SOURCES}
    assert circles(imports) == []


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules of the package that a file names in any import, as they are called from outside."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Files that import each other. A package is left out: its ``__init__`` names what its files define."""
    modules = {name for name in imports if not any(other.startswith(f"{name}.") for other in imports)}
    below = {name: imports[name] & modules - {name} for name in modules}
    while leaves := [name for name in below if not below[name]]:
        for leaf in leaves:
            del below[leaf]
        for found in below.values():
            found.difference_update(leaves)
    above: dict[str, set[str]] = {name: {other for other in below if name in below[other]} for name in below}
    while roots := [name for name in above if not above[name]]:
        for root in roots:
            del above[root]
        for found in above.values():
            found.difference_update(roots)
    return [sorted(above)] if above else []


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}, [["b", "c"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, [["a", "b", "c"]]),
        ({"p": {"p.a"}, "p.a": {"p"}}, []),
    ],
)
def test_circles_are_seen(imports, found):
    assert circles(imports) == found


def test_names_of_test_files_are_unique():
    """Pytest imports them by their last name: of two that share one, a run of all tests collects neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py")]), ids=lambda path: path.name
)
def test_what_scripts_import_of_the_package_is_there(path):
    """Nothing else runs them in the tests."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rooflight":
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            inside = f"{module.__name__}."  # which the package may show under another name
            submodules = {name.rpartition(".")[2] for name in map(module_name, SOURCES) if name.startswith(inside)}
            assert set(missing) <= submodules, (node.module, missing)


def test_nothing_loaded_from_disk_is_executed():
    """But for the reader of snapshots, which refuses pickles that name anything but plain types."""
    found = {path.name: names for path in SOURCES if (names := executing(path))}
    assert found == {"snapshot.py": {"pickle"}}


def executing(path: Path) -> set[str]:
    """Names in a file that could run what was loaded from disk."""
    text = path.read_text()
    imported = {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes(path) if isinstance(node, ast.ImportFrom)}
    called = {node.func.id for node in nodes(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
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

    assert len(rooflight.__all__) <= 28
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
    place = {room: number for number, room in enumerate(house.floors())}
    assert len(place) == 12
    for room, floor in place.items():
        assert all(place[other] > floor for other in house.imports(room) if other in place), room
