"""Every small preset, forward and train: program bound ≤ fused bound ≤ op bound, and ≤ measured where measured."""

from __future__ import annotations

import json

import pytest

import rooflight as rl
from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.reporting.json import render_json
from rooflight.roofline.tables.report import report_of
from rooflight.workloads.presets import PRESETS
from rooflight.workloads.steps import make_step

# roofs that no CPU with these caches and a few cores beats: the order of the bounds is on trial, not the machine
GENEROUS = DeviceSpec(
    name="any CPU",
    vendor="",
    architecture="",
    kind="cpu",
    datasheet=Roofs(
        source="generous",
        matrix_flops_per_s={"float32": 1e13, "bfloat16": 4e13},
        vector_flops_per_s={"float32": 1e13, "float64": 5e12},
        memory=(
            MemoryLevel(name="cache", capacity_bytes=32 << 20, bytes_per_s=1e13),
            MemoryLevel(name="DRAM", capacity_bytes=64 << 30, bytes_per_s=1e12),
        ),
    ),
)
TOLERANCE = 1 + 1e-9  # sums of the same terms in another order


def check(analysis: rl.Analysis) -> dict:
    data = json.loads(render_json(report_of(analysis)))
    totals, gaps = data["totals"], data["waterfall"]
    assert 0 < totals["program_bound_s"] <= totals["fused_bound_s"] * TOLERANCE
    assert totals["fused_bound_s"] <= totals["op_bound_s"] * TOLERANCE
    assert analysis.program.compulsory_bytes <= analysis.program.fused_bytes <= totals["bytes_moved"]
    assert sum(gap["seconds"] for gap in gaps) == pytest.approx(gaps[-1]["until_s"])
    return data


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("name", PRESETS)
def test_bounds_of_every_small_preset_are_in_order(name, mode):
    step = make_step(
        name, mode=mode, batch=1, seq=None if PRESETS[name].kind == "image-classification" else 16, small=True
    )
    with rl.record(step.model) as recording:
        step.run()
    for device in (GENEROUS, "H100-SXM5-80GB"):
        data = check(rl.analyze(recording.session, device))
        assert data["waterfall"][-1]["until_s"] == data["totals"]["op_bound_s"]
        assert len(data["waterfall"]) == 3


@pytest.mark.parametrize(("name", "mode"), [("gpt2", "train"), ("llama-3.1-8b", "forward")])
def test_nothing_measured_beats_a_bound(name, mode):
    step = make_step(name, mode=mode, batch=1, seq=32, device="cpu", small=True)
    step.run()
    with rl.record(step.model) as recording:
        step.run()
    data = check(rl.analyze(rl.measure(recording.session, step.run, max_seconds=1.0), GENEROUS))
    totals = data["totals"]
    assert totals["op_bound_s"] <= totals["ops_measured_s"]
    assert totals["op_bound_s"] <= totals["measured_s"]
    assert data["waterfall"][-1]["until_s"] == totals["measured_s"]
    assert len(data["waterfall"]) == (5 if totals["ops_measured_s"] <= totals["measured_s"] else 4)
