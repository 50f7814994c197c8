"""``rooflight predict`` of operators in a user's file."""

from __future__ import annotations

import pytest

from rooflight.operators import registry

OPERATORS = """
from dataclasses import replace

from rooflight.operators.registry import find, register

register(replace(find("tanh"), name="{first}"))
register(replace(find("tanh"), name="{second}"))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    registry.find("tanh")  # loaded, so that only what the file registers is undone
    monkeypatch.setattr(registry, "_operators", dict(registry._operators))
    path = tmp_path / "mine.py"
    path.write_text(OPERATORS.format(first="my_tanh", second="my_other"))
    return path


SHAPE = ("--rows", "64", "--width", "64", "--dtype", "fp16", "--device", "A100-SXM4-80GB")


def test_an_operator_of_a_file_is_predicted(ok, mine):
    assert "Predicted: my_tanh rows=64 width=64" in ok("predict", f"{mine}:my_tanh", *SHAPE)


def test_one_of_several_must_be_named(refused, mine):
    err = refused("predict", str(mine), *SHAPE)
    assert f"{mine} registers several operators: name one, as in {mine}:my_other" in err
