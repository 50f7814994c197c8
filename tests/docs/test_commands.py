"""Every command line and option that the pages show exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from rooflight.cli.main import app
from rooflight.compiling.workloads import WORKLOADS
from rooflight.workloads.presets import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TREE = typer.main.get_command(app)


def unknown_options(text: str) -> list[str]:
    """Options that no such command has. Sizes that follow the name of an operator to predict are not the command's."""
    found = []
    for line in re.findall(r"rooflight ([a-z][^`\n]*)", text.replace("\\\n", " ")):
        words = re.split(r"\s", re.split(r" #|\||>", line)[0])
        command = TREE
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if command is TREE or command.name == "predict":
            continue
        if command.name == "run":  # what follows the script is the script's
            words = words[
                : next((place for place, word in enumerate(words) if word.endswith(".py") or word == "-m"), None)
            ]
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        options = [match[0] for word in words if (match := re.match(r"--[a-z][a-z0-9-]*", word))]
        found += [f"{command.name} {option}" for option in options if option not in known]
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_the_options_that_the_page_shows(path):
    assert unknown_options(path.read_text()) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_exist_and_have_the_options_that_the_page_shows(path):
    for script, rest in re.findall(r"python ((?:benchmarks|docs|examples)/[\w/]+\.py)([^`\n#|]*)", path.read_text()):
        code = (ROOT / script).read_text()
        assert [option for option in re.findall(r"--[a-z][a-z-]*", rest) if option not in code] == [], script


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_targets_that_are_no_files_are_presets_or_workloads(path):
    lines = re.findall(r"rooflight (?:analyze|compile-bench|explain|profile-decode) ([a-z][^`\n#]*)", path.read_text())
    words = [word for line in lines for word in re.split(r" -| +$", line)[0].split()]
    names = {word for word in words if re.fullmatch(r"[a-z][a-z0-9]*-[a-z0-9.-]+", word)}
    assert names <= {*PRESETS, *WORKLOADS}


def helps(command, name="rooflight"):
    """The paragraphs of the help of each command, without its examples."""
    yield name, [part for part in (command.help or "").split("\n\n") if part.strip() and "\b" not in part]
    for word, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {word}")


def test_no_help_has_more_than_four_paragraphs():
    assert {name: len(parts) for name, parts in helps(TREE) if len(parts) > 4} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`rooflight analyze gpt2 --step train --json=-`", []),
        ("rooflight analyze gpt2 --sequence 8  # --what", ["analyze --sequence"]),
        ("rooflight devices show H100 \\\n  --jsn -", ["show --jsn"]),
        ("rooflight predict gemm --m 8", []),
        ("rooflight is --fast", []),
    ],
)
def test_what_no_command_has_is_seen(text, found):
    assert unknown_options(text) == found
