"""Options to words and back: a process that runs a part of a command is asked for the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rooflight.cli.main import app
from rooflight.cli.options import Command, arguments_of, verb
from rooflight.records.options import Option

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


@dataclass(frozen=True, kw_only=True)
class Sizes:
    panel: ClassVar = "Sizes"
    width_m: Annotated[float, Option("Width in m.", "M", flags=("--width",))] = 2.0
    kind: Annotated[Literal["flat", "deep"], Option("Which.")] = "flat"
    names: Annotated[tuple[str, ...], Option("Names: repeatable.", "NAME")] = ("a",)
    count: Annotated[int | None, Option("How many.", "N", least=1)] = None
    inner: int = 7


def test_a_class_of_options_is_made_from_words():
    found = []
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=Command)(verb(measure_with(found)))
    runner = CliRunner()
    assert runner.invoke(app, ["x"]).exit_code == 0
    assert runner.invoke(app, ["x", "--width", "3", "--kind", "deep", "--names", "b", "--names", "c"]).exit_code == 0
    assert found == [("x", Sizes()), ("x", Sizes(width_m=3.0, kind="deep", names=("b", "c")))]
    assert runner.invoke(app, ["x", "--count", "0"]).exit_code == 2
    assert runner.invoke(app, ["x", "--inner", "1"]).exit_code == 2  # a field without an Option
    assert "\nSizes:\n" in runner.invoke(app, ["--help"]).output


def measure_with(found):
    def measure(target: str, sizes: Sizes) -> None:
        """Measure."""
        found.append((target, sizes))

    return measure
