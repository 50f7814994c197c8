"""Options to words and back: a process that runs a part of a command is asked for the same."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.cli.main import app
from rooflight.cli.options import arguments_of

SAMPLE = typer.main.get_command(app).commands["sample"]  # type: ignore[attr-defined]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(lambda text: text[0] != "-")
NUMBERS = st.integers(0, 1 << 40).map(str)
VALUES = {
    "--precision": TEXT,
    "--config": TEXT,
    "--sweep": st.sampled_from(["test", "collect", "smart"]),
    "--budget": TEXT,
    "--on": TEXT,
    "--parts": NUMBERS,
    "--part": NUMBERS,
    "--device_num": NUMBERS,
    "--out": TEXT,
    "--executor": st.sampled_from(["local", "slurm", "ray"]),
    "--address": TEXT,
    "--threads": NUMBERS,
    "--time-box": st.floats(allow_nan=False).map(repr),
    **dict.fromkeys(("--submit", "--warm-cache", "--cpu", "--yes"), st.none()),
    **dict.fromkeys(("--json", "--markdown", "--csv", "--html", "--render"), TEXT),
}
OPTIONS = st.fixed_dictionaries({}, optional=VALUES)


def parsed(words: list[str]) -> typer.Context:
    return SAMPLE.make_context("sample", list(words))


@settings(deadline=None, max_examples=50)
@given(operators=st.lists(TEXT), options=OPTIONS)
def test_a_request_survives_the_way_to_a_command_line_and_back(operators, options):
    words = [word for name, value in options.items() for word in ([name] if value is None else [name, value])]
    context = parsed([*operators, *words])
    assert parsed(arguments_of(context)).params == context.params


@settings(deadline=None, max_examples=50)
@given(options=OPTIONS, parts=st.integers(1, 99))
def test_what_is_changed_is_all_that_differs(options, parts):
    words = [word for name, value in options.items() for word in ([name] if value is None else [name, value])]
    context = parsed(words)
    assert parsed(arguments_of(context, parts=parts, cpu=True)).params == {
        **context.params,
        "parts": parts,
        "cpu": True,
    }


def test_every_option_is_tried():
    known = {name for parameter in SAMPLE.params for name in parameter.opts if name.startswith("--")}
    assert known - set(VALUES) == {"--list", "--write-config", "--config_path", "--device-num"}


def test_defaults_are_left_out():
    assert arguments_of(parsed(["gemm", "sdpa", "--sweep", "collect", "--parts", "1", "--cpu"])) == [
        *("gemm", "sdpa", "--sweep", "collect", "--cpu")
    ]


def test_an_unknown_parameter_is_a_mistake():
    with pytest.raises(KeyError, match="sample has no parameter pieces"):
        arguments_of(parsed(["gemm"]), pieces=3)
