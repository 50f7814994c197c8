"""Profiles of other devices than CUDA's, and those that lack a device's work."""

import pytest
from kineto_traces import kernel, launch, op, span, write

import rooflight as rl
from rooflight.records.account import Cause

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}


@pytest.mark.parametrize(
    ("runtime", "work"),
    [
        ("mtia_runtime", "mtia_ccp_events"),
        ("mtia_runtime", "mtia_workloadd"),
        ("xpu_runtime", "kernel"),
        ("privateuse1_runtime", "kernel"),
        ("privateuse1_driver", "gpu_memcpy"),
        ("hpu_op", "kernel"),
    ],
)
def test_the_work_of_each_kind_of_device_belongs_to_its_op(tmp_path, runtime, work):
    events = [op("aten::mm", 0, 10, **MM), {**launch(2, 5), "cat": runtime}, kernel(3, 9, 5, cat=work)]
    session = rl.read_trace(write(tmp_path / "trace.json", events, deviceProperties=[]))
    assert [(one.signature.name, one.times_s) for one in session.records] == [("aten::mm", pytest.approx((6e-6,)))]
    assert session.environment["device_kind"] == "cuda"
    assert not any("left out" in note for note in session.notes)


def test_launches_without_work_have_no_times_and_no_cause(tmp_path, run):
    events = [event for at in range(3) for event in (op("aten::mm", 20 * at, 20 * at + 10, **MM), launch(20 * at, at))]
    path = write(tmp_path / "trace.json", events)
    analysis = rl.analyze(rl.read_trace(path))
    assert analysis.device.kind == "cuda"
    assert not any(each.measured_s for each in analysis.operations)
    assert analysis.account.seconds(Cause.UNKNOWN) == pytest.approx(50e-6, rel=1e-4)  # all, from 0 to 50 µs
    _, out, _ = run("analyze", path)
    assert "none of that work: what it took is not known" in " ".join(out.split())
    _, _, error = run("analyze", write(path, [launch(0, 1)]))
    assert "1 call launched work on a device, of which the trace has nothing" in error


def test_ranges_of_counters_are_named(tmp_path):
    events = [op("aten::mm", 0, 10, **MM), launch(2, 5), span("ampere_sgemm", 3, 9, cat="cuda_profiler_range")]
    session = rl.read_trace(write(tmp_path / "trace.json", events))
    assert any("1 event left out: a range of CUPTI's counters" in note for note in session.notes)


@pytest.mark.parametrize(
    ("name", "units", "part"),
    [
        ("AMD Radeon Graphics", 104, "MI210"),  # half of an MI250 is one
        ("", 110, "MI250X (per GCD)"),
        ("AMD Instinct MI250X / MI250", 104, "MI210"),
        ("AMD Instinct MI210", 104, "AMD Instinct MI210"),  # known by its name
        ("AMD Radeon Graphics", 99, "AMD Radeon Graphics"),  # of which no part is known
    ],
)
def test_a_part_of_amd_without_a_name_is_told_by_units_and_memory(tmp_path, name, units, part):
    about = {"id": 0, "name": name, "totalGlobalMem": 68702699520, "warpSize": 64, "numSms": units}
    events = [op("aten::mm", 0, 10, **MM), launch(2, 5, name="hipLaunchKernel"), kernel(3, 9, 5)]
    session = rl.read_trace(write(tmp_path / "trace.json", events, deviceProperties=[about]))
    assert session.environment["gpu"] == part
    assert any("which is taken" in note for note in session.notes) == (name != part)
