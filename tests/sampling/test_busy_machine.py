"""Samples taken beside other programs: the line that ends a sweep names their share of the CPU."""

from __future__ import annotations

import pytest

from rooflight.machine import cpu_load as bystander
from rooflight.machine.cpu_load import CpuTime

SWEEP = ("sample", "gelu", "--precision", "fp32", "--cpu", "--budget", "1s", "--threads", "1", "--time-box", "0.1")


@pytest.mark.parametrize(("share", "said"), [(0.38, "38.0%"), (0.05, "5.0%"), (0.04, None), (0.0, None), (None, None)])
def test_a_busy_machine_is_named(ok, tmp_path, monkeypatch, share, said):
    start = CpuTime(wall_s=0, own_s=0, all_s=0, cores=1)
    end = None if share is None else CpuTime(wall_s=1, own_s=0, all_s=share, cores=1)
    moments = iter((start, end))
    monkeypatch.setattr(bystander, "cpu_time", lambda: next(moments))
    out = ok(*SWEEP, "--out", tmp_path)
    assert out.count("\n") == 1
    assert ("other programs took" in out) == (said is not None)
    if said is not None:
        assert f"; other programs took {said} of the CPU meanwhile, so these times may be too long: sample again" in out
