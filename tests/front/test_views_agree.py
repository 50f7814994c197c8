"""One accounting level: layers, functions, phases, modules and ops are views of the same records.

Every small preset, forward and train, without hardware: and program bound ≤ fused bound ≤ op bound, ≤ measured where
measured.
"""

from __future__ import annotations

import json
from collections import Counter
from operator import attrgetter

import pytest
from some_presets import presets

import rooflight as rl
from rooflight import FunctionalPatcher, LayerSOLHooks
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.reporting.json import render_json
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.tables.report import report_of
from rooflight.sources.workloads.presets import PRESETS
from rooflight.sources.workloads.steps import make_step

DEVICE = "H100-SXM5-80GB"
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
KEYS = ("layer", "function", "phase", "module", "op", "direction")
TOLERANCE = 1 + 1e-9  # sums of the same terms in another order

counts = attrgetter("calls", "matrix_flops", "vector_flops", "bytes_moved", "bytes_sent")


def sums_by(analysis: Analysis, key: str) -> tuple[int, ...]:
    return tuple(map(sum, zip(*map(counts, analysis.by(key)), strict=True)))


def rows(analysis: Analysis, key: str) -> dict[str, tuple[int, ...]]:
    return {group.name: counts(group) for group in analysis.by(key)}


def check_order(analysis: Analysis) -> dict:
    """Program bound ≤ fused bound ≤ op bound, and gaps that add up to the last; what the document says."""
    data = json.loads(render_json(report_of(analysis)))
    totals, account = data["totals"], data["account"]
    assert 0 < totals["program_bound_s"] <= totals["fused_bound_s"] * TOLERANCE
    assert totals["fused_bound_s"] <= totals["op_bound_s"] * TOLERANCE
    assert analysis.program.compulsory_bytes <= analysis.program.fused_bytes <= totals["bytes_moved"]
    assert sum(row["seconds"] for row in account["rows"]) == pytest.approx(account["wall_s"])
    return data


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("name", presets(PRESETS))
def test_all_views_of_a_preset_agree_to_the_last_unit(name, mode):
    step = make_step(
        name, step=mode, batch=1, seq=None if PRESETS[name].kind == "image-classification" else 16, small=True
    )
    step.run()
    with rl.record(step.model, functions=True) as recording:
        step.run()
    with rl.record(step.model) as plain:
        step.run()
    hooks = LayerSOLHooks(step.model, DEVICE).attach()
    step.run()
    hooks.detach()
    patcher = FunctionalPatcher(DEVICE).patch()
    patcher.register_model(step.model)
    step.run()
    patcher.unpatch()
    analyses = {
        "record": rl.analyze(recording.session, DEVICE),
        "record without functions": rl.analyze(plain.session, DEVICE),
        "hooks": hooks.analysis,
        "patcher": patcher.analyze(),
    }

    first = analyses["record"]
    assert first.totals.calls == int(recording.session.counted.sum()) > 0
    for analysis in analyses.values():
        assert counts(analysis.totals) == counts(first.totals)
        for key in KEYS:
            assert sums_by(analysis, key) == counts(analysis.totals), key
        assert analysis.totals.op_bound_s == pytest.approx(first.totals.op_bound_s, rel=1e-12)
        assert analysis.coverage == first.coverage
    for key in KEYS:
        assert rows(analyses["hooks"], key) == rows(first, key) == rows(analyses["patcher"], key), key
    for key in ("layer", "phase", "module", "op", "direction"):
        assert rows(analyses["record without functions"], key) == rows(first, key), key

    for analysis in (first, rl.analyze(recording.session, GENEROUS)):
        data = check_order(analysis)
        assert data["account"]["wall_s"] == data["totals"]["op_bound_s"]
        assert {row["cause"] for row in data["account"]["rows"]} <= {"light", "fusion"}
    if mode == "train":
        flops = {group.name: group.matrix_flops for group in first.by("direction")}
        assert flops["forward"] + flops["backward"] + flops["optimizer"] == first.totals.matrix_flops
        # every matrix product has two gradients, but for the first layer, whose input needs none; attention, two
        # products, computes its scores again: five
        assert flops["forward"] <= flops["backward"] <= 2.5 * flops["forward"]
    assert {group.name for group in first.by("phase")} == {group.name for group in first.by("direction")}


@pytest.mark.parametrize("name", ["gpt2", "resnet-50"])
def test_a_module_is_the_sum_of_what_its_layers_and_functions_did(name):
    """Two keys at once: a module belongs to one class, and an op to one function."""
    step = make_step(name, step="train", batch=1, small=True)
    with rl.record(step.model, functions=True) as recording:
        step.run()
    analysis = rl.analyze(recording.session, DEVICE)
    layer_of = {module.path: module.class_name for module in recording.session.modules}
    by_class: Counter[str] = Counter()
    for group in analysis.by("module"):
        by_class[layer_of.get(group.name) or group.name] += group.matrix_flops
    assert {name: flops for name, flops in by_class.items() if flops} == {
        group.name: group.matrix_flops for group in analysis.by("layer") if group.matrix_flops
    }


@pytest.mark.parametrize(("name", "mode"), [("gpt2", "train"), ("llama-3.1-8b", "forward")])
def test_nothing_measured_beats_a_bound(name, mode):
    step = make_step(name, step=mode, batch=1, seq=32, device="cpu", small=True)
    step.run()
    with rl.record(step.model) as recording:
        step.run()
    data = check_order(rl.analyze(rl.measure(recording.session, step.run, max_seconds=1.0), GENEROUS))
    totals = data["totals"]
    assert totals["op_bound_s"] <= totals["ops_measured_s"]
    assert totals["op_bound_s"] <= totals["measured_s"]
    assert data["account"]["wall_s"] == pytest.approx(totals["measured_s"])
