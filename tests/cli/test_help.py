"""Help: whole at 80 columns, with an example for each verb, fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import typer

from rooflight.cli.main import app

GROUP = typer.main.get_command(app)
VERBS = {(name,): command for name, command in GROUP.commands.items()}  # type: ignore[attr-defined]
VERBS |= {
    (*path, name): sub
    for path, command in list(VERBS.items())
    for name, sub in getattr(command, "commands", {}).items()
}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
def test_no_summary_is_cut(ok):
    out = ok("--help")
    assert "..." not in out.replace("[ARGS]...", "")
    assert max(map(len, out.splitlines())) <= 80
    for verb in GROUP.commands:  # type: ignore[attr-defined]
        assert re.search(rf"^  {verb} +[A-Z].*\.$", out, re.MULTILINE), verb


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_of_a_verb_is_whole_and_has_an_example(ok, path):
    out = ok(*path, "--help")
    assert max(map(len, out.splitlines())) <= 80
    examples = [line.strip() for line in out.splitlines() if line.startswith("    ") and " rooflight " in line]
    assert any(line.startswith(f"rooflight {' '.join(path)}") for line in examples)
    assert not re.search(r"^  --.*<(str|int|float|path)>", out, re.MULTILINE)  # a type says less than FILE or TIME


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_option_is_described(path):
    for parameter in VERBS[path].params:
        assert parameter.help, parameter.name  # type: ignore[attr-defined]
        assert parameter.help[-1] in ".])", parameter.name  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_examples_parse(run, path):
    """Each example of the help has options that there are; nothing is run."""
    text = VERBS[path].help or ""
    for line in re.findall(r"^\s*(?:torchrun [^\n]*? -m )?rooflight (\S[^\n]*)$", text, re.MULTILINE):
        name, *words = line.split()
        if name == "devices" and words[:1] == ["show"]:
            name, words = "show", words[1:]
            command = GROUP.commands["devices"].commands["show"]  # type: ignore[attr-defined]
        else:
            command = GROUP.commands[name]  # type: ignore[attr-defined]
        command.make_context(name, words, resilient_parsing=False)


def test_help_imports_nothing_heavy():
    code = "import sys; from rooflight.cli.main import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    loaded = set(done.stdout.split())
    assert not {"torch", "numpy", "rich", "transformers", "msgspec"} & loaded
    assert sum(name.startswith("rooflight") for name in loaded) < 60


def test_options_are_in_panels_and_help_is_in_the_last(ok):
    text = ok("analyze", "--help")
    panels = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert panels == ["Arguments", "Step", "Device", "Prediction", "Traces", "Output"]
    assert "--help" in text[text.index("\nOutput:") :]
