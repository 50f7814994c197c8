"""``rooflight score`` as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from scoring_problems import Files
from tracked import calibrate_by_hand


@pytest.fixture
def files(tmp_path, monkeypatch):
    calibrate_by_hand(tmp_path / "cache", monkeypatch)
    return Files(tmp_path)


def test_a_right_solution_in_every_format(files, ok, tmp_path):
    html, markdown, csv = (tmp_path / name for name in ("score.html", "score.md", "tables"))
    words = ("--no-compile", "--trials", "3", "--json", "-", "--html", html, "--markdown", markdown, "--csv", csv)
    noisy = files.solution("print('noise')\nreturn self.layer(x).relu()")
    out = ok("score", files.reference(), noisy, *words)
    document = json.loads(out)  # the noise went to standard error
    assert document["schema"] == "rooflight.score/1"
    assert [program["name"] for program in document["programs"]] == ["eager", "solution"]
    assert document["checked"]["agrees"]
    assert document["trials"] == 3
    assert "Side by side" in markdown.read_text()
    assert "Times by trial" in html.read_text()
    assert (csv / "programs.csv").read_text().startswith("what,time_s,")


def test_the_console_has_bounds_and_programs_side_by_side(files, ok):
    out = ok("score", files.reference(), files.solution(), "--no-compile", "--trials", "2")
    for row in ("program bound", "fused bound", "op bound", "eager", "solution"):
        assert f"\n  {row} " in out
    assert "No compiled reference: --no-compile." in out


def test_a_wrong_solution_ends_with_code_1(files, run):
    code, out, err = run("score", files.reference(), files.solution("return self.layer(x)"), "--json", "-")
    document = json.loads(out)
    assert (code, err, document["share"], document["checked"]["agrees"]) == (1, "", None, False)


def test_ctrl_c_ends_it_in_one_line(files):
    started = files.folder / "started"
    slow = f"open({str(started)!r}, 'w').close()\nimport time\ntime.sleep(300)"
    words = [sys.executable, "-m", "rooflight", "score", str(files.reference()), str(files.solution(slow))]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        deadline = time.monotonic() + 120
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "rooflight: interrupted: nothing was left half-written\n")
