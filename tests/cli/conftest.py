"""The command, run in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rooflight.cli.main import main


@pytest.fixture
def run(monkeypatch, capsys):
    """A function of the command's words that returns its exit code, standard output and standard error."""

    def rooflight(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rooflight", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return rooflight
