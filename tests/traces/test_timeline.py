"""What the device did with a trace's time, by hand arithmetic."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import kernel, launch, op, write

import rooflight as rl
from rooflight.sources.traces.time.idle import Covered

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

# µs       0    10   20   30   40   50   60   70   80   90   100
# host     [mm       ]                                        op without shapes
# compute       [mm       ]    [mm]                 [no shapes]
# nccl                   [              ]
# copy                                       [    ]
EVENTS = [
    op("aten::mm", 0, 20, **MM),
    *[launch(2 + number, number) for number in (1, 2, 3, 4)],
    op("aten::relu", 90, 100),
    launch(91, 5),
    kernel(10, 30, 1),
    kernel(35, 40, 2),
    kernel(25, 55, 3, name=NCCL, stream=20),
    kernel(60, 70, 4, name="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy"),
    kernel(92, 97, 5),
    kernel(-3, 2, 900, name="of an earlier launch"),
]


def test_busy_idle_and_exposed_times(read):
    found = read(*EVENTS).measurement.timeline
    us = {name: pytest.approx(value * 1e-6) for name, value in {
        "wall_s": 103,  # from -3 to 100
        "compute_s": 5 + 20 + 5 + 5,
        "communication_s": 30,
        "exposed_communication_s": 5 + 15,  # 30 to 35 and 40 to 55
        "copy_s": 10,
        "exposed_copy_s": 10,
        "busy_s": 35 + 20 + 10,
        "idle_s": 103 - 65,
        "before_trace_s": 5,
        "no_host_op_s": 0,
        "no_shapes_s": 5,
    }.items()}  # fmt: skip
    assert {name: getattr(found, name) for name in us} == us


def test_the_report_has_the_timeline_kernels_by_name_and_what_has_no_bound(tmp_path, run):
    path = write(tmp_path / "trace.json", EVENTS)
    code, out, _ = run("analyze", path, "--json", "-")
    assert code == 0
    document = json.loads(out)
    assert document["timeline"]["exposed_communication_s"] == pytest.approx(20e-6)
    assert document["unattributed"] == {
        "before_trace_s": pytest.approx(5e-6),
        "no_host_op_s": 0,
        "no_shapes_s": pytest.approx(5e-6),
        "uncosted_s": 0,
        "without_op": [{"name": "of an earlier launch", "count": 1, "seconds": pytest.approx(5e-6)}],
    }
    (row,) = [each for each in document["account"]["rows"] if each["cause"] == "no_op"]
    assert row["seconds"] == pytest.approx(5e-6)
    # 5 before the trace and 5 without shapes, of 35 + 30 + 10 in sum
    assert "13.3% of the device's work in the step has no bound" in document["conclusion"]
    # 20 and 5 µs of mm and 5 of relu have the name k; copies and fills are no kernels
    kernels = document["timeline"]["kernels"]
    found = [tuple(each[key] for key in ("name", "op", "count")) for each in kernels]
    assert sorted(found) == sorted([("k", "aten::mm", 3), (NCCL, "aten::mm", 1), ("of an earlier launch", "", 1)])
    assert [each["seconds"] for each in kernels] == pytest.approx([30e-6, 30e-6, 5e-6])
    _, text, _ = run("analyze", path)
    assert "By kernel, whole trace" in text
    assert "Timeline of the device" in text


def test_a_trace_of_the_device_alone_is_reported(read):
    session = read(launch(0, 1), kernel(5, 15, 1), kernel(20, 30, 2))
    assert session.measurement.timeline.no_host_op_s == pytest.approx(20e-6)
    report = rl.analyze(session).report()
    assert "timeline" in {table.id for table in report.tables}


def test_a_saved_session_keeps_the_timeline_and_one_that_is_none_is_refused(read, tmp_path):
    session = read(*EVENTS)
    assert rl.load(session.save(tmp_path / "it.session")).measurement.timeline == session.measurement.timeline
    broken = replace(session.measurement, timeline=replace(session.measurement.timeline, idle_s=-1.0))
    with pytest.raises(ValueError, match="a time of its timeline is not a number from 0 on"):
        rl.load(session.with_measurement(broken).save(tmp_path / "it.session"))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20))
def test_a_union_counts_each_moment_once(intervals):
    start = np.array([begin for begin, _ in intervals], dtype=np.int64)
    stop = start + np.array([length for _, length in intervals], dtype=np.int64)
    moments = {moment for begin, length in intervals for moment in range(begin, begin + length)}
    assert Covered.by(start, stop).length == len(moments)
