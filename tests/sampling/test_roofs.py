"""Which nodes of a cluster are slow, what the report says of them, and what is kept."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.devices import calibrations
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.devices.spec import MemoryLevel, Roofs
from rooflight.hardware.machine import calibration as machine
from rooflight.hardware.machine.calibration import roofs_by_name
from rooflight.reporting.json import render_json
from rooflight.reporting.markdown import render_markdown
from rooflight.sampling.nodes.calibrate import ClusterCalibration, collect, save_best
from rooflight.sampling.nodes.roofs import NodeCalibration, compare, differences
from rooflight.sampling.nodes.tables import report_of


def node(name: str, *, matrix: float = 1e15, dram: float = 3e12, latency_s: float = 2e-6, **more) -> NodeCalibration:
    """A GPU of a node with these roofs."""
    environment = {"driver": "550.1", "cores_usable": "64"} | more.pop("environment", {})
    roofs = Roofs(
        source=f"calibration on {name}",
        matrix_flops_per_s={"bfloat16": matrix, "float32": 5e13},
        vector_flops_per_s={"float32": 5e13},
        memory=(MemoryLevel(name="L2"), MemoryLevel(name="HBM", bytes_per_s=dram)),
        launch_latency_s=latency_s,
    )
    calibration = Calibration(
        fingerprint=more.pop("fingerprint", "abc"),
        device_name=more.pop("device", "NVIDIA H100"),
        kind=more.pop("kind", "cpu"),
        roofs=roofs,
        measured_at="2026-01-02T03:04:05+00:00",
        environment=environment,
    )
    return NodeCalibration(node=name, calibration=calibration, **more)


def slow(*nodes: NodeCalibration) -> dict[str, list[str]]:
    return {each.measured.name: [roof.roof for roof in each.slow] for each in compare(nodes) if each.slow}


NINE = [node(f"n{number}") for number in range(9)]


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([*NINE, node("n9", dram=2.8e12)], {"n9": ["memory HBM"]}),  # 2.8 / 3: 6.7 % below
        ([*NINE, node("n9", dram=2.9e12)], {}),  # 3.3 %
        ([*NINE, node("n9", matrix=0.5e15, dram=2.8e12)], {"n9": ["matrix bfloat16", "memory HBM"]}),
        # a launch latency may wander further: 2 / 2.5 µs are four fifths of the launches per second; 2 / 3 two thirds
        ([node("a"), node("b"), node("c", latency_s=2.5e-6)], {}),
        ([node("a"), node("b"), node("c", latency_s=3e-6)], {"c": ["launch latency"]}),
        ([node("a"), node("b", dram=2.7e12)], {"b": ["memory HBM"]}),
        ([node("a", dram=1e12)], {}),
        # devices of other models are not compared
        ([node("a"), node("b"), node("c", device="NVIDIA A100", matrix=3e14)], {}),
    ],
)
def test_a_node_that_is_slower_than_its_like_is_named_with_the_roof(nodes, named):
    assert slow(*nodes) == named
    assert (compare(nodes)[0].worst is None) == (len(nodes) == 1)


def test_precisions_with_one_figure_are_named_once():
    def both(name: str, peak: float) -> NodeCalibration:
        found = node(name)
        roofs = replace(found.calibration.roofs, matrix_flops_per_s={"float32": peak, "float16": peak})
        return replace(found, calibration=replace(found.calibration, roofs=roofs))

    assert slow(both("a", 2e11), both("b", 1e11)) == {"b": ["matrix float32"]}


@given(st.lists(st.floats(1e10, 1e13), min_size=1, max_size=12))
def test_at_least_half_of_the_nodes_are_never_slow(bandwidths):
    nodes = [node(f"n{number}", dram=each) for number, each in enumerate(bandwidths)]
    assert len(slow(*nodes)) <= len(nodes) // 2
    for each in compare(nodes):
        for roof in each.roofs:
            assert roof.below < 1
            assert roof.value == roofs_by_name(each.calibration.roofs)[roof.roof].value


def test_the_report_names_slow_nodes_and_lists_those_that_failed():
    failed = NodeCalibration(node="n10", reason="torch sees no CUDA device: use cpu")
    found = ClusterCalibration(measured=(*NINE, node("n9", dram=2.7e12), failed))
    report = report_of(found, title="Roofs of 10 nodes")
    assert report.conclusion == "Slow: n9 (memory HBM 10.0% below the median of 10)."
    text = render_markdown(report)
    assert "## Not calibrated" in text
    assert "torch sees no CUDA device" in text
    first, *_ = [line for line in text.splitlines() if line.startswith("| n") and "device" not in line]
    assert first.startswith("| n9 ")  # the slowest first
    for cell in ("1.00 PFLOP/s", "50.0 TFLOP/s", "2.70 TB/s", "2.00 µs", "10.0%"):
        assert cell in first
    data = json.loads(render_json(report))
    assert data["schema"] == "rooflight.cluster_calibration/1"
    assert data["failed"] == [{"node": "n10", "reason": "torch sees no CUDA device: use cpu"}]
    roofs = {roof["roof"]: roof for roof in data["nodes"][0]["roofs"]}
    assert roofs["memory HBM"] == {
        "roof": "memory HBM", "value": 2.7e12, "unit": "B/s", "median": 3e12, "below": pytest.approx(0.1),
        "devices": 10, "slow": True,
    }  # fmt: skip


def test_the_report_says_what_it_cannot_know():
    alone = report_of(ClusterCalibration(measured=(node("a"),), interrupted=True), title="Roofs of 1 node")
    assert alone.conclusion == ""
    assert "Interrupted: nodes that had not finished are missing." in alone.notes
    assert "No other node with the same device to compare with: a." in alone.notes
    busy = node("b", dram=2e12, environment={machine.BUSY: "38 %"})
    report = report_of(ClusterCalibration(measured=(node("a"), busy)), title="Roofs of 2 nodes")
    assert "b: other programs took 38 % of the CPU, so its roofs may be low." in report.notes
    even = report_of(ClusterCalibration(measured=(node("a"), node("b"))), title="Roofs of 2 nodes")
    assert even.conclusion.startswith("No node is slow")


def test_equal_nodes_that_are_set_up_differently_are_told():
    nodes = [node("a"), node("b"), node("c", environment={"driver": "535.2"})]
    assert differences(compare(nodes)) == ("Nodes with NVIDIA H100 differ in driver: 550.1: a, b; 535.2: c.",)


def test_each_node_has_a_file_at_once_and_ctrl_c_keeps_those_that_finished(tmp_path):
    def results():
        yield node("n1")
        yield node("../n2", number=3, kind="cuda")
        assert len(list(tmp_path.iterdir())) == 2
        yield NodeCalibration(node="n3", reason="no driver")
        raise KeyboardInterrupt

    found = collect(results(), tmp_path)
    assert found.interrupted
    assert [each.name for each in found.measured] == ["n1", "../n2 GPU 3", "n3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["-n2-gpu3.json", "n1.json"]
    assert json.loads((tmp_path / "n1.json").read_text())["schema"] == "rooflight.calibration/1"


def test_the_best_of_equal_nodes_is_what_later_analyses_use(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    nodes = (node("a", matrix=9e14), node("b", dram=2e12), node("c", fingerprint="other", dram=1e12))
    save_best([*nodes, NodeCalibration(node="d", reason="no driver")])
    kept = calibrations.load("abc").roofs
    assert kept.matrix_flops_per_s["bfloat16"] == 1e15  # b's
    assert kept.memory[-1].bytes_per_s == 3e12  # a's
    assert calibrations.load("other").roofs.memory[-1].bytes_per_s == 1e12
    save_best([node("c", fingerprint="other", dram=5e11)])
    assert calibrations.load("other").roofs.memory[-1].bytes_per_s == 1e12
    save_best([node("c", fingerprint="other", dram=5e11)], force=True)
    assert calibrations.load("other").roofs.memory[-1].bytes_per_s == 5e11


def test_two_calibrations_that_end_at_once_keep_the_best_of_both(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))

    def slow(measured: Calibration) -> Calibration:
        found = machine.best_known(measured)
        time.sleep(0.2)  # until the other one has read too
        return found

    monkeypatch.setattr("rooflight.sampling.nodes.calibrate.best_known", slow)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: save_best([each]), (node("a", matrix=9e14), node("b", dram=2e12))))
    kept = calibrations.load("abc").roofs
    assert (kept.matrix_flops_per_s["bfloat16"], kept.memory[-1].bytes_per_s) == (1e15, 3e12)
