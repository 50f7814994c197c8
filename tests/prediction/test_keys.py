"""Keys: what a kind of work is called in models does not hang on the file that describes an operator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rooflight.devices import get
from rooflight.operators import registry
from rooflight.operators import registry as user_file
from rooflight.operators.registry import operators_of
from rooflight.prediction.model.files import read_manifest
from rooflight.prediction.predictor import SHIPPED, SUFFIX, Predictor, file_name
from rooflight.prediction.work.facts import OTHER_REDUCTIONS_KEY, OTHERS_KEY, WorkKind, facts_of, kind_of
from rooflight.sampling.sweeps import full_grid

A100 = get("A100-SXM4-80GB")
FEWEST_OF_A_TABLE = 100
"""Rows that sessions and traces alone do not have of any kind that no operator makes."""
SHAPES = 7  # of each operator's grid, from its small end to its large one
OPERATOR = """
from dataclasses import replace

from rooflight.operators.registry import find, register

register(replace(find("swiglu"), name="my_op"))
"""


def keys_of(operator) -> set[str]:
    grid = full_grid(operator)
    found = set()
    for number in range(SHAPES):
        shape = operator.shape(grid[(grid.size - 1) * number // (SHAPES - 1)])
        if operator.refusal(shape) is None:
            work = operator.work(shape, "float16")
            facts = [facts_of(ops, A100) for ops in (work.forward, work.backward) if ops]
            found |= {each.key for each in facts if each is not None}
    return found


def test_operators_still_make_every_key_of_the_models_that_come_with_rooflight():
    """Were the ops of an operator called otherwise, its model would lie there unused, and other ops would answer."""
    manifest = read_manifest(SHIPPED)
    assert manifest is not None
    wanted = {entry.key for entry in manifest.models.values() if kind_of(entry.key) is not WorkKind.NETWORK}
    of_sessions = {key for key, model in Predictor().models.items() if model.rows < FEWEST_OF_A_TABLE}
    made = set().union(*(keys_of(operator) for operator in registry.every() if not operator.ranks))
    assert wanted - of_sessions - {OTHERS_KEY, OTHER_REDUCTIONS_KEY} <= made
    assert len(wanted - of_sessions) > 20


def test_a_models_file_is_named_by_its_key_alone():
    manifest = read_manifest(SHIPPED)
    assert manifest is not None
    assert {name: entry.key for name, entry in manifest.models.items()} == {
        f"{file_name(entry.key)}{SUFFIX}": entry.key for entry in manifest.models.values()
    }
    assert file_name("aten::add") == "add-1efe4e35"


@pytest.fixture
def alone(monkeypatch):
    """A registry that forgets what a file registered."""
    registry.find("swiglu")  # loads those that come with Rooflight
    shipped = dict(registry._operators)

    monkeypatch.setattr(sys, "path", list(sys.path))

    def forget(path: Path) -> None:
        monkeypatch.delitem(sys.modules, f"_rooflight_user_{path.resolve()}", raising=False)
        monkeypatch.setattr(registry, "_operators", dict(shipped))
        monkeypatch.setattr(user_file, "_registered", {})

    return forget


def test_a_key_stays_when_the_file_of_the_operator_is_edited_renamed_or_moved(alone, tmp_path: Path):
    found = []
    for place, text in (
        ("one.py", OPERATOR),
        ("one.py", f'"""Edited."""\nimport math  # unused\n{OPERATOR}\n# and a comment'),
        ("deep/er/other.py", OPERATOR),
        ("deep/er/other.py", OPERATOR.replace("my_op", "another_name")),
    ):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        alone(path)
        (operator,) = operators_of(str(path))
        found.append(keys_of(operator))
    assert found[0]
    assert all(each == found[0] for each in found)
