"""The pages of docs/extending, executed: a reader who copies every block gets what the page says.

A block whose first line is a comment with a file's name is that file; a ``console`` block has commands after ``$ `` and
what they print. In what is printed, ``…`` stands for anything on a line, and on a line of its own for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from warm_python import WarmPython

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "extending").glob("*.md"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w.-]+\.[a-z]+)\n")

# What pip would do offline: an editable install makes the folder importable and its entry points known.
PIP = """
import sys, tomllib
from pathlib import Path
assert sys.argv[1:] == ["install", "-q", "-e", "."], sys.argv
project = tomllib.loads(Path("pyproject.toml").read_text())
assert all(Path(f"{name}.py").is_file() for name in project["tool"]["setuptools"]["py-modules"])
project = project["project"]
installed = Path(f"{project['name']}-{project['version']}.dist-info")
installed.mkdir()
metadata = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}", ""]
(installed / "METADATA").write_text("\\n".join(metadata))
entries = [line for group, names in project["entry-points"].items()
           for line in (f"[{group}]", *(f"{name} = {place}" for name, place in names.items()))]
(installed / "entry_points.txt").write_text("\\n".join(entries))
"""


class Block(NamedTuple):
    language: str
    text: str


class Command(NamedTuple):
    line: str
    printed: str


def blocks_of(page: str) -> list[Block]:
    return [Block(*found) for found in FENCED.findall(page)]


def commands_of(block: str) -> list[Command]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert parts[0] == "", "a console block begins with a command"
    return [Command(line, printed) for line, _, printed in (part.partition("\n") for part in parts[1:])]


def agrees(printed: str, promised: str) -> bool:
    """Whether a command printed what a page promises, but for blanks at the ends of lines and empty lines."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    wanted = [line.rstrip() for line in promised.splitlines() if line.strip()]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in wanted
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Most of a command's time would be the import of these."""
    process = WarmPython(
        "torch._dynamo", "transformers.models.gpt2.modeling_gpt2", "pytest", folder=tmp_path_factory.mktemp("printed")
    )
    yield process
    process.end()


@pytest.fixture
def shell(tmp_path, warm):
    """Runs the commands of a page in a folder of its own; ``export`` and the folder's files last to the end of it."""
    pip, folder = tmp_path / "pip.py", tmp_path / "work"
    folder.mkdir()
    pip.write_text(PIP)
    programs = {"rooflight": ["-m", "rooflight"], "python": [], "pip": [str(pip)]}
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{folder}",
        "ROOFLIGHT_CACHE": str(tmp_path / "cache"),
        "PYTEST_ADDOPTS": "-p no:cacheprovider -W ignore::pytest.PytestAssertRewriteWarning",
        "COLUMNS": "140",
    }

    def run(line: str) -> str:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            variables[name] = value.replace("$PWD", str(folder))
            return ""
        program, *words = shlex.split(line)
        if program in programs:
            code, out, err = warm.run([*programs[program], *words], folder, variables)
        else:
            done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=False)
            code, out, err = done.returncode, done.stdout, done.stderr
        assert code == 0, f"$ {line}\n{out}{err}"
        return out

    run.folder = folder
    return run


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_steps_of_a_page_do_what_it_says(page, shell):
    commands = 0
    for block in blocks_of(page.read_text()):
        if block.language == "console":
            for command in commands_of(block.text):
                printed = shell(command.line)
                assert agrees(printed, command.printed), f"$ {command.line}\n{printed}\n--- promised\n{command.printed}"
                commands += 1
            continue
        named = FILE_NAME.match(block.text)
        assert named, f"{page.name}: a block of {block.language} without the name of its file:\n{block.text}"
        text = block.text[named.end() :] if block.language == "text" else block.text
        (shell.folder / named[1]).write_text(text)
    assert commands >= 2


def test_there_is_a_page_for_each_kind_of_extension():
    assert {page.stem for page in PAGES} >= {"formula", "device", "operator", "source", "renderer"}


@pytest.mark.parametrize(
    ("printed", "promised", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a  \n\nb\n", "a\nb\n", True),
        ("a\nx\ny\nb\n", "a\n…\nb\n", True),
        ("a 1.5 s\n", "a … s\n", True),
        ("a\nb\n", "a\n", False),
        ("x\na\n", "a\n", False),
        ("a 2\n", "a 3\n", False),
        ("", "", True),
    ],
)
def test_what_is_promised_is_compared_line_by_line(printed, promised, same):
    assert agrees(printed, promised) is same
