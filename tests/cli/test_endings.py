"""How runs of the command end: exit codes, one line on standard error, pipes that close, disks that are full."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rooflight as rl
from rooflight.cli import endings
from rooflight.cli.endings import Interrupted, ended, interrupted, tell

COMMAND = [sys.executable, "-m", "rooflight"]


def failing(error: BaseException):
    def run():
        raise error

    return run


def shell(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script of bash with ``rooflight`` in it."""
    command = f'rooflight() {{ "{sys.executable}" -m rooflight "$@"; }}\n{script}'
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=os.environ | variables, check=False
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("two\n  lines"), 2, "two lines"),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), 2, "a.csv: No such file or directory"),
        (PermissionError(13, "Permission denied", Path("a.csv")), 2, "a.csv: Permission denied"),
        (NotADirectoryError(20, "Not a directory", "a/b"), 2, "a/b: Not a directory"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (OSError(28, "No space left on device", "out.json"), 1, "out.json: No space left on device"),
        (RuntimeError("no node answered"), 1, "no node answered"),
        (MemoryError(), 1, "out of memory"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, 'torch is not installed: pip install "roof'),
        (KeyboardInterrupt(), 130, "interrupted: nothing was left half-written"),
        (Interrupted("3 rows are kept"), 130, "interrupted: 3 rows are kept"),
        (SystemExit("text"), 1, "text"),
    ],
)
def test_every_error_is_one_line_and_an_exit_code(error, code, line, capfd):
    assert ended(failing(error), debug=False) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"rooflight: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [KeyError("k"), ZeroDivisionError(), ModuleNotFoundError("x", name="x")])
def test_an_error_of_ours_says_how_to_report_it(error, capfd):
    assert ended(failing(error), debug=False) == 1
    err = capfd.readouterr().err
    assert "report" in err
    assert "--debug" in err
    assert "Traceback" not in err
    assert ended(failing(error), debug=True) == 1
    assert "Traceback" in capfd.readouterr().err


def test_exit_codes_of_a_run_are_passed_on(capfd):
    assert ended(lambda: None, debug=False) == 0
    assert ended(lambda: 1, debug=False) == 1  # lint, with findings
    assert ended(failing(SystemExit(0)), debug=False) == 0
    assert ended(failing(SystemExit()), debug=False) == 0
    assert capfd.readouterr().err == ""
    assert ended(lambda: 130, debug=False) == 130  # typer's code for Ctrl-C
    assert "interrupted" in capfd.readouterr().err


def test_what_is_kept_is_said_once(capfd):
    def run():
        with interrupted("12 rows are kept"):
            raise KeyboardInterrupt

    assert ended(run, debug=False) == 130
    assert capfd.readouterr().err == "rooflight: interrupted: 12 rows are kept\n"


def test_a_full_standard_error_changes_no_exit_code():
    done = shell("rooflight lint nowhere.csv 2>/dev/full; echo $?; rooflight lint nowhere.csv 2>&-; echo $?")
    assert done.stdout == "2\n2\n"


@pytest.mark.parametrize("command", ["rooflight devices", "rooflight devices --json -", "rooflight --help"])
def test_a_closed_pipe_ends_quietly_as_by_sigpipe(command):
    # `true` has closed the pipe long before; 141 = 128 + SIGPIPE, what `yes | true` gives as well
    done = shell(f"{command} | true; echo ${{PIPESTATUS[0]}}; yes | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == "141\n141\n"
    assert done.stderr == ""


def test_another_broken_pipe_is_an_error(monkeypatch, capfd):
    monkeypatch.setattr(endings, "_reader_left", lambda: False)
    assert ended(failing(BrokenPipeError(32, "Broken pipe", "fifo")), debug=False) == 1
    assert "fifo: Broken pipe" in capfd.readouterr().err


def test_a_full_disk_is_told():
    for command in ("devices", "devices --csv -", "devices --json -", "--version"):
        done = shell(f"rooflight {command} > /dev/full; echo $? >&2")
        where = "(standard output: )?" if command == "--version" else "standard output: "
        assert re.fullmatch(rf"rooflight: {where}No space left on device\n1\n", done.stderr)


def test_closed_outputs():
    assert shell("rooflight devices >&-; echo $? >&2").stderr == "0\n"
    assert shell("rooflight devices --json - >&-; echo $? >&2").stderr.endswith("is closed\n2\n")


def test_names_that_are_not_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    done = subprocess.run([*COMMAND, "lint", name], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"there is no" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_versions(ok):
    out = ok("--version")
    assert out.startswith(f"rooflight {rl.__version__} (")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in out
    assert ", torch 2." in out


def test_no_words_print_the_help_on_standard_output(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out == run("--help")[1]


def test_tell_survives_a_closed_standard_error(monkeypatch):
    class Closed:
        def write(self, _text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Closed())
    tell("unheard")


def test_ctrl_c_on_a_terminal_ends_in_one_line(tmp_path):
    """A real terminal, whose Ctrl-C reaches the whole group: `sample` says that its rows are kept."""
    ours, theirs = pty.openpty()
    words = ["sample", "relu", "--cpu", "--budget", "60s", "--out", str(tmp_path)]
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=theirs, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("sampling_data/*.jsonl")) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        # Python ends by the signal itself where it arrives in code that C runs; a shell shows 130 for both
        assert process.wait(120) in (130, -signal.SIGINT)
        shown = os.read(ours, 1 << 20).decode()
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
    assert "Traceback" not in shown
    assert "interrupted: " in shown
