"""``rooflight profile-decode`` in tests: small, on one thread, its results in a folder of the test."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rooflight.devices import calibrations
from rooflight.devices.calibrations import Calibration
from rooflight.devices.spec import MemoryLevel, Roofs
from rooflight.machine.environment import fingerprint


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
        "from rooflight.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program]
    return lambda *words: subprocess.run([*command, *words], capture_output=True, text=True, check=False)


@pytest.fixture
def calibrated(tmp_path, monkeypatch, one_thread):  # roofs are those of a number of threads
    """Roofs of this machine, so high that nothing beats them."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    levels = ("L2", 1e15, 1 << 20), ("DRAM", 1e14, None)
    roofs = Roofs(
        source="made up for tests",
        matrix_flops_per_s={"float32": 1e16, "bfloat16": 1e16},
        vector_flops_per_s={"float32": 1e16},
        memory=tuple(MemoryLevel(name=name, bytes_per_s=rate, capacity_bytes=size) for name, rate, size in levels),
    )
    facts = {"fingerprint": fingerprint("cpu"), "device_name": "test CPU", "kind": "cpu", "measured_at": "2026-01-01"}
    calibrations.save(Calibration(**facts, roofs=roofs))
