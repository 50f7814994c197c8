"""What the command prints beside its reports: names do nothing there either, and every encoding will do."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO

import pytest
from sessions import session_of

import rooflight as rl
from rooflight.cli.main import format_warning
from rooflight.cli.progress import spinner
from rooflight.front.device import CalibrationWarning, log_progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_a_name_and_obeys_nothing_in_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with spinner() as progress:
        progress("reading [red]it[/] \x1b]0;title\x07 [/no]")
    assert r"reading [red]it[/] \x1b]0;title\x07 [/no] …" in terminal.getvalue()


def test_errors_and_warnings_show_a_name_and_obey_nothing_in_it(refused):
    said = refused("analyze", "no\x1b]0;title\x07[red]\u202e\x9b")
    assert r"no\x1b]0;title\x07[red]\u202e\x9b" in said
    assert said.rstrip("\n").isprintable()
    assert format_warning("a\x1b[2Jb", CalibrationWarning, "file", 1) == "rooflight: a\\x1b[2Jb\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize(
    "words",
    [
        ("devices",),
        ("devices", "show", "H100-SXM5-80GB"),
        ("devices", "--json", "-"),
        ("devices", "--html", "-"),
        ("devices", "--markdown", "-"),
        ("sample", "--list"),
        ("analyze", "→ µ “no such preset”"),
    ],
)
def test_any_encoding_will_do(words, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "rooflight", *words]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    said = (done.stdout + done.stderr).decode(encoding)
    assert done.returncode == (2 if words[0] == "analyze" else 0), said
    assert "Error" not in said
    if words[0] == "analyze":
        assert "-> " in said


def test_progress_that_is_logged_and_a_device_that_a_file_names_obey_nothing(caplog, tmp_path):
    with caplog.at_level("INFO", "rooflight"):
        log_progress("reading a\x1b[2J")
    assert caplog.messages == ["rooflight: reading a\\x1b[2J"]
    environment = {"device_kind": "cuda", "gpu": "H\x1b]0;title\x07"}
    path = session_of([], environment=environment).save(tmp_path / "a.session")
    with pytest.raises(ValueError, match=r'unknown device "H\\x1b\]0;title\\x07"'):
        rl.analyze(path)
