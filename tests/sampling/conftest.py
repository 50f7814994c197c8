"""What every test of sampling starts from."""

from __future__ import annotations

import signal

import pytest

from rooflight.hardware.machine import timing as clocks
from rooflight.hardware.machine.hardware import data_caches


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    """Caches that are emptied in no time: a large server's take half a second a sample."""
    small = tuple(cache for cache in data_caches() if cache.instance_bytes < 1 << 20)
    monkeypatch.setattr(clocks, "data_caches", lambda: small)


@pytest.fixture
def heard_ctrl_c():
    """A process that is started hears Ctrl-C, also where the tests were started in the background, which does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
