"""Tests on real hardware: without a CUDA device each is skipped, with its reason."""

import pytest


@pytest.fixture(autouse=True)
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return torch


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No calibration of this machine is read or written."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
