"""``rooflight profile-decode`` in tests: small, on one thread, its results in a folder of the test."""

from __future__ import annotations

import pytest
import torch

from rooflight.devices import calibrations
from rooflight.devices.calibrations import Calibration
from rooflight.devices.spec import MemoryLevel, Roofs
from rooflight.machine.environment import fingerprint


@pytest.fixture
def one_thread():
    """Models of a few thousand numbers: threads would spend the time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
def calibrated(tmp_path, monkeypatch, one_thread):  # roofs are those of a number of threads
    """Roofs of this machine, so high that nothing beats them."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    roofs = Roofs(
        source="a test", matrix_flops_per_s={"float32": 1e15}, vector_flops_per_s={"float32": 1e15},
        memory=(MemoryLevel(name="DRAM", bytes_per_s=1e14),)
    )  # fmt: skip
    calibrations.save(
        Calibration(fingerprint=fingerprint("cpu"), device_name="this CPU", kind="cpu", roofs=roofs,
                    measured_at="2026-01-01")
    )  # fmt: skip
