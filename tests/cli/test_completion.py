"""Completion in shells: the protocol that the generated scripts speak, and bash itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.cli import completion
from rooflight.costs.operators import registry
from rooflight.devices import catalog
from rooflight.sources.workloads.presets import PRESETS


@pytest.fixture
def path(tmp_path):
    """A PATH with ``rooflight`` in it, which need not be installed."""
    script = tmp_path / "bin" / "rooflight"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rooflight "$@"\n')
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


def bash(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)


def spoken(**variables: str) -> str:
    """What the command answers to a script: variables are its protocol."""
    environment = os.environ | {"_ROOFLIGHT_COMPLETE": "complete_bash"} | variables
    return subprocess.run(
        [sys.executable, "-m", "rooflight"], capture_output=True, text=True, env=environment, check=True
    ).stdout


def in_bash(*words: str) -> list[str]:
    return spoken(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1)).splitlines()


def test_verbs_options_presets_and_devices():
    assert {"analyze", "calibrate", "sample", "merge", "lint", "fit", "predict", "devices"} <= set(
        in_bash("rooflight", "")
    )
    assert in_bash("rooflight", "lint", "--j") == ["--json"]
    assert in_bash("rooflight", "analyze", "llama-3.1-4") == ["llama-3.1-405b"]
    assert in_bash("rooflight", "analyze", "gpt2", "--device", "H100-S") == ["H100-SXM5-80GB"]
    assert in_bash("rooflight", "sample", "gemm", "--sweep", "") == ["test", "collect", "smart"]
    assert not any(in_bash("rooflight", "lint", "sampl"))  # files are the shell's


def test_zsh_and_fish():
    words = {"_TYPER_COMPLETE_ARGS": "rooflight devices show a10"}
    zsh = spoken(_ROOFLIGHT_COMPLETE="complete_zsh", **words)
    assert zsh.startswith("_arguments")
    assert '"a10g"' in zsh
    fish = spoken(_ROOFLIGHT_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    assert "a10g" in fish.splitlines()


def test_bash_itself(path):
    """The script that is shown, in the bash that shows it: the function is called as readline calls it."""
    script = """
        source /dev/stdin <<< "$(rooflight --show-completion; true)"
        COMP_WORDS=(rooflight analyze gpt2 --device b200-s); COMP_CWORD=4
        _rooflight_completion rooflight b200-s --device
        echo "${COMPREPLY[@]}"; complete -p rooflight
    """
    done = bash(script, PATH=path)
    assert done.stdout.split("\n")[0] == "b200-sxm", done
    assert "-F _rooflight_completion rooflight" in done.stdout


def test_installing_for_bash(path, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("alias ll=ls\n")
    for _ in range(2):  # again changes nothing
        done = bash("rooflight --install-completion; true", PATH=path, HOME=str(home))
        assert "bash completion installed" in done.stdout, done
    lines = (home / ".bashrc").read_text().splitlines()
    installed = [line for line in lines if line.startswith("source ")]
    assert len(installed) == 1
    assert "alias ll=ls" in lines
    assert Path(installed[0].split("'")[1]).is_file()


def test_each_name_is_offered_for_its_beginning():
    assert [name for name, _ in completion.presets("")] == list(PRESETS)
    assert set(completion.devices("")) == {"cpu", "cuda", *catalog.names()}
    assert [name for name, _ in completion.operators("")] == list(registry.names())
    assert list(completion.devices("no such")) == []
    for name in catalog.names():
        # a shell drops a completion that does not begin with what is written
        assert name.upper() in completion.devices(name[:4].upper()) or not name[:4].isupper()
        assert all(found.startswith(name[:4].title()) for found in completion.devices(name[:4].title()))


def test_every_offered_device_is_found():
    for written in ("h1", "H1", "H100-s"):
        found = list(completion.devices(written))
        assert found
        for name in found:
            assert catalog.datasheet(name).name
