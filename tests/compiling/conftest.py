"""Each test of hot loops has a fresh Dynamo, a report of its own, and a gain that is expected."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def hot_loops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    import torch

    from rooflight.studies.compiling.hot import detection as hot_calls
    from rooflight.studies.compiling.hot import gain as hot_gain
    from rooflight.studies.compiling.hot.state import ExpectedGain

    torch._dynamo.reset()
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(hot_calls, "seen", deque(maxlen=100))
    expected = ExpectedGain(speedup=2.0, compile_s=5.0, source="test")
    monkeypatch.setattr(hot_gain, "expected_gain", lambda *_, **__: expected)
    yield
    torch._dynamo.reset()
