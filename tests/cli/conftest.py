"""``rooflight run`` of scripts and ``profile-decode`` in tests: small, their results in a folder of the test."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from calibrated import calibration_of, roofs_of

from rooflight.devices import calibrations
from rooflight.hardware.devices.spec import MemoryLevel


@pytest.fixture
def decode_words(tmp_path):
    """Words of the verb whose results go to a folder of the test."""

    def words(*given, name="r"):
        where = ("--output-dir", tmp_path / "out", "--run-name", name)
        return ("profile-decode", *given, *where, *(() if "--bounds" in given else ("--no-bounds",)))

    return words


@pytest.fixture
def profile(ok, decode_words):
    """The verb with such words; its output."""
    return lambda *words, **named: ok(*decode_words(*words, **named))


@pytest.fixture
def profile_ends(run, decode_words):
    """The same; its exit code, output and errors."""
    return lambda *words, **named: run(*decode_words(*words, **named))


@pytest.fixture
def without_torch():
    """The command in a Python that has no torch: a function of its words that returns the ended process."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; sys.argv[0] = 'rooflight'\n"
        "from rooflight.__main__ import main; main()"
    )
    command = [sys.executable, "-c", program]
    return lambda *words: subprocess.run([*command, *words], capture_output=True, text=True, check=False)


@pytest.fixture
def calibrated(tmp_path, monkeypatch, one_thread):  # roofs are those of a number of threads
    """Roofs of this machine, so high that nothing beats them."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    l2 = MemoryLevel(name="L2", capacity_bytes=1 << 20, bytes_per_s=1e15)
    memory = (l2, MemoryLevel(name="DRAM", bytes_per_s=1e14))
    calibrations.save(calibration_of(roofs_of(1e16, 1e14, matrix={"bfloat16": 1e16}, memory=memory), "test CPU"))


@dataclass
class Ended:
    """How a script ended: its streams and exit code, and the document of the run."""

    out: str
    err: str
    code: int
    document: dict | None

    @property
    def run(self):
        return self.document["run"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Runs a script's text: with ``rooflight run``, or as Python does."""
    monkeypatch.chdir(tmp_path)

    def start(text, *arguments, options=(), plain=False, stdin=""):
        (tmp_path / "train.py").write_text(text)
        ours = ("-m", "rooflight", "run", "--json", "run.json", "--save", "run.session", *options)
        words = [sys.executable, *(() if plain else ours), "train.py", *arguments]
        done = subprocess.run(words, capture_output=True, text=True, input=stdin, check=False)
        written = tmp_path / "run.json"
        return Ended(done.stdout, done.stderr, done.returncode,
                     json.loads(written.read_text()) if written.exists() else None)  # fmt: skip

    return start
