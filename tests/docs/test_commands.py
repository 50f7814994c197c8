"""Every command line that the pages show is parsed by the command's own parser, and runs where it needs no file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from rooflight.cli.endings import _UsageError as UsageError
from rooflight.cli.main import app
from rooflight.cli.predict import _shape as shape_of
from rooflight.costs.operators.registry import operators_of
from rooflight.sources.workloads.presets import PRESETS
from rooflight.studies.compiling.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TREE = typer.main.get_command(app)
BY_NAME = ("--install-completion", "--show-completion")  # parsing them writes into the settings of the shell
RUN = {("devices",), ("presets",), ("predict", "gemm"), ("sample", "--list"), ("sample", "--write-config")}


def lines(text: str) -> list[list[str]]:
    """The words of each line of a block that calls the command; a shell's comments, pipes and files are left out."""
    found = re.findall(r"^(?: {4})?(?:\$ )?rooflight (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(re.split(r" \||>", line)[0], comments=True) for line in found]


def mentions(text: str) -> list[list[str]]:
    """The words of commands within sentences and tables."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`[^`]*?\brooflight ([a-z][^`]*)`", prose)
    return [re.split(r" \\?\|", " ".join(line.split()))[0].split() for line in found]


def parsed(words: list[str], command: Any = TREE, parent: Any = None) -> Any:
    """The context of the innermost command, as the real parser makes it. Raises an error of click where it refuses."""
    context = command.make_context(command.name, list(words), parent=parent)
    rest = [*getattr(context, "_protected_args", []), *context.args]
    if hasattr(command, "commands") and rest:
        _, inner, rest = command.resolve_command(context, rest)
        return parsed(rest, inner, context)
    if command.name == "predict" and ".py" not in context.params["operator"]:
        operator, *_ = operators_of(context.params["operator"])
        shape_of(context, operator)
    return context


def refused(words: list[str], *, complete: bool) -> str:
    """Why a command line does not parse, empty where it does; one that is not ``complete`` may lack arguments."""
    if words[0] in BY_NAME:
        return ""
    try:
        parsed(words)
    except (UsageError, ValueError) as error:
        lacks = isinstance(error, UsageError) and error.format_message().startswith("Missing argument")
        return "" if lacks and not complete else f"{' '.join(words)}: {error!r}"
    return ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_real_parser_takes_what_the_page_shows(path):
    text = path.read_text()
    found = [refused(words, complete=True) for words in lines(text)]
    found += [refused(words, complete=False) for words in mentions(text)]
    assert [why for why in found if why] == []


def test_commands_that_need_no_file_run(ok, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {tuple(words) for path in PAGES for words in lines(path.read_text()) if path.parent.name != "extending"}
    quick = sorted(words for words in found if words[:2] in RUN or words[:1] in RUN)
    assert {words[:2] for words in quick} >= {("devices", "show"), ("predict", "gemm"), ("sample", "--write-config")}
    for words in quick:
        if not any(word.endswith(".toml") for word in words):
            ok(*words)


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
        ("rooflight analyze gpt2 --step train --json=- | head", 0),
        ("    rooflight analyze gpt2 --sequence 8  # --what", 1),
        ("rooflight devices show H100 \\\n  --jsn -", 1),
        ("$ rooflight predict gemm --m 8 --n 8 --k 8 > out.txt", 0),
        ("rooflight predict gemm --rows 8", 1),
        ("rooflight analize gpt2", 1),
        ("rooflight score problem.py", 1),
        ("rooflight sample gemm --parts two", 1),
        ("rooflight run train.py --epochs 1", 0),
    ],
)
def test_what_the_parser_refuses_is_seen(text, found):
    assert len([why for words in lines(text) if (why := refused(words, complete=True))]) == found


def test_a_mention_may_lack_arguments():
    assert mentions("`rooflight score` and `torchrun -m rooflight run x.py`") == [["score"], ["run", "x.py"]]
    assert not refused(["score"], complete=False)
    assert refused(["score", "--fast"], complete=False)
