"""Being here puts this folder on the import path, so that every test can import ``builders``."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from slurm_cluster import slurm_cluster

from rooflight.costs import registry


def pytest_configure(config):
    """No test sees the calibrations of whoever runs it: a device is then its datasheet, unless a test calibrates."""
    config.empty_cache = tempfile.mkdtemp(prefix="rooflight-tests-")
    os.environ["ROOFLIGHT_CACHE"] = config.empty_cache


def pytest_unconfigure(config):
    shutil.rmtree(config.empty_cache, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_session():
    """The cluster of all tests of this process."""
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_session):
    """A SLURM cluster of two idle nodes on this machine; a test that asks for it is skipped where there is no SLURM."""
    slurm_session.wait_until_idle()
    return slurm_session


@pytest.fixture
def restored_formulas(monkeypatch):
    """What the test registers is forgotten after it."""
    registry.registered()  # loads our own, so that they are among what stays
    monkeypatch.setattr(registry, "_formulas", dict(registry._formulas))
