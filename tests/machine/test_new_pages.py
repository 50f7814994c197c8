"""Pages that the system gives a thread."""

from __future__ import annotations

import mmap
import sys

import pytest

from rooflight.hardware.machine import memory
from rooflight.hardware.machine.memory import fetched_s, of_the_system


@pytest.mark.skipif(sys.platform != "linux", reason="counters of a thread are Linux's")
def test_pages_that_are_touched_for_the_first_time_are_counted():
    with mmap.mmap(-1, 1 << 24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        found = []
        for _ in range(2):
            _, before = of_the_system()
            for page in range(0, len(block), mmap.PAGESIZE):
                block[page] = 1
            found.append(of_the_system()[1] - before)
    assert found[0] >= (1 << 24) // mmap.PAGESIZE
    assert found[1] < found[0] / 4


def test_where_nothing_is_counted_nothing_is_said(monkeypatch):
    monkeypatch.setattr(memory, "resource", object())
    assert of_the_system() == (0.0, 0)


def test_what_the_system_does_beside_is_not_for_pages():
    assert fetched_s(1.0, 0) == 0
    assert fetched_s(1.0, 1000) == pytest.approx(5e-3)
    assert fetched_s(1e-4, 1000) == 1e-4
