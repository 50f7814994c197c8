"""Tests on real hardware: without a CUDA device each is skipped, with its reason.

Where ROOFLIGHT_NEED_GPU is set, as benchmarks/gpu/run.sh does, they fail instead: a skip is no pass.
"""

import os

import pytest


def cuda_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        miss = pytest.fail if os.environ.get("ROOFLIGHT_NEED_GPU") else pytest.skip
        miss("torch sees no CUDA device")
    return torch


@pytest.fixture(autouse=True)
def torch():
    return cuda_torch()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No calibration of this machine is read or written."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def measured():
    """A quick calibration of this GPU."""
    cuda_torch()
    from rooflight.hardware.machine.calibration import calibrate

    return calibrate("cuda", quick=True)


@pytest.fixture
def device(measured):
    """Calibrated: on a datasheet L2 has no bandwidth, and small ops that find their data there beat main memory."""
    from rooflight.devices import calibrations

    return calibrations.device_of(measured)
