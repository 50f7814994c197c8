"""Why the device was idle, by hand arithmetic."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import kernel, launch, op, span, write

import rooflight as rl
from rooflight.records.timeline import Idle, IdleCause

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}


def call(name, start, stop, correlation=0, thread=1):
    """A call of the runtime from ``start`` to ``stop``."""
    return {**launch(start, correlation, thread=thread, name=name), "dur": stop - start}


def us(found: Idle):
    return {cause.value: round(seconds * 1e6, 3) for cause, seconds in found.parts if seconds}


# The first kernel runs from 10 to 20, the second from 100 to 110. The host launches the second by a call from 90 to 91.
FIRST = [op("aten::mm", 0, 8, **MM), launch(2, 1), kernel(10, 20, 1)]
SECOND = [op("aten::mm", 88, 110, **MM), launch(90, 2), kernel(100, 110, 2)]
HEAD = {"host_late": 3, "launch": 7}  # launched at 3, began at 10
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
FRAME = "torch/utils/data/dataloader.py(701): __next__"
TO_DEVICE, TO_HOST = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"


def plus(more):
    return {key: HEAD.get(key, 0) + more.get(key, 0) for key in HEAD.keys() | more.keys()}


BETWEEN = {  # what happens between the two, and the idle time by cause
    "nothing": ([], {"host_late": 91 - 20, "launch": 100 - 91}),
    "a wait lasts until the next launch": (
        [op("aten::item", 12, 26), call("cudaStreamSynchronize", 13, 25)],
        {"sync": 71, "launch": 9},
    ),
    "a wait that seems to end before the work": ([call("cudaDeviceSynchronize", 9, 17)], {"sync": 71, "launch": 9}),
    # idle from 20 on; the host waits from 40 to 45 for nothing
    "a wait that was over before": ([call("cudaDeviceSynchronize", 40, 45)], {"host_late": 66, "sync": 5, "launch": 9}),
    # after the wait: 20 to 30 and 80 to 91
    "a data loader": (
        [call("cudaStreamSynchronize", 13, 25), span(LOADER, 30, 80)],
        {"sync": 21, "data_loader": 50, "launch": 9},
    ),
    "a frame of the data loader": (
        [span(FRAME, 30, 80, cat="python_function")],
        {"host_late": 21, "data_loader": 50, "launch": 9},
    ),
    # the call copies to a buffer from 40 to 70, the device from 65 to 75; torch waits for it until 76:
    # 20 to 40 late, 40 to 65 in the copy; 75 to 91 after the wait for it
    "a copy from pageable memory": (
        [
            op("aten::to", 38, 80, dims=[[4]], types=["float"]),
            call("cudaMemcpyAsync", 40, 70, 3),
            call("cudaStreamSynchronize", 71, 76),
            kernel(65, 75, 3, name=TO_DEVICE, cat="gpu_memcpy"),
        ],
        {"host_late": 20, "pageable_copy": 25 + 16, "launch": 9},
    ),
    "the driver and the profiler": (
        [
            call("cudaMalloc", 30, 50),
            call("cudaFuncGetAttributes", 52, 53),  # too short to matter
            span("Buffer Flush", 60, 64, cat="overhead"),
            span("Lazy Function Loading", 64, 66, cat="overhead"),
            span("Command Buffer Full", 66, 70, cat="overhead"),
        ],
        {"host_late": 71 - 26, "driver": 22, "profiler": 4, "launch": 9},
    ),
    "a barrier of the host": ([span("gloo:barrier", 30, 70)], {"host_late": 31, "rank": 40, "launch": 9}),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN.keys())
def test_every_idle_moment_has_the_cause_that_the_host_shows(read, between):
    events, causes = between
    found = read(*FIRST, *events, *SECOND).measurement.timeline
    assert us(found.idle) == plus(causes)
    assert sum(seconds for _, seconds in found.idle.parts) == pytest.approx(found.idle_s)
    assert found.phases == ()


def test_python_that_follows_a_wait_is_not_the_wait(read):
    waits = [op("aten::item", 12, 26), call("cudaStreamSynchronize", 13, 25)]
    for late, causes in (
        (300, {"sync": 271, "launch": 9}),
        (900, {"sync": 26 - 20, "host_late": 891 - 26, "launch": 9}),
    ):
        again = [op("aten::mm", late - 12, late + 10, **MM), launch(late - 10, 2), kernel(late, late + 10, 2)]
        assert us(read(*FIRST, *waits, *again).measurement.timeline.idle) == plus(causes)


def test_causes_have_how_often_how_long_and_where(read):
    host, queued = read(*FIRST, *SECOND).measurement.timeline.idle_details
    assert (host.cause, host.count, host.longest_s) == (IdleCause.HOST, 2, pytest.approx(71e-6))
    assert queued.median_s == pytest.approx(8e-6)  # of 7 and 9
    events, _ = BETWEEN["a wait lasts until the next launch"]
    details = read(*FIRST, *events, *SECOND).measurement.timeline.idle_details
    (detail,) = [each for each in details if each.cause is IdleCause.SYNC]
    assert (detail.mostly_in, detail.mostly_in_s) == ("aten::item", pytest.approx(71e-6))


def test_a_launch_that_takes_long_loads_its_kernel_and_one_that_is_unknown_has_no_cause(read):
    slow = [op("aten::mm", 88, 700, **MM), call("cudaLaunchKernel", 90, 600, 2), kernel(605, 610, 2)]
    # 20 to 90 late, 90 to 600 in the launch, 600 to 605 queued; the trace ends at 700
    causes = {"host_late": 70 + 90, "driver": 510, "launch": 5}
    assert us(read(*FIRST, *slow).measurement.timeline.idle) == plus(causes)
    assert us(read(*FIRST, kernel(100, 110, 77)).measurement.timeline.idle) == plus({"unknown": 80})


def test_steps_and_phases_have_their_parts(read):
    steps = [span("ProfilerStep#1", 0, 50), span("ProfilerStep#2", 50, 120)]
    found = read(*steps, span("first", 0, 9), span("second", 85, 112), *FIRST, *SECOND).measurement.timeline
    one, two = found.steps
    assert us(one.idle) == plus({"host_late": 30})
    assert us(two.idle) == {"host_late": 41 + 10, "launch": 9}
    second, first = found.phases
    assert (second.name, second.count, second.host_s) == ("second", 1, pytest.approx(27e-6))
    assert us(second.idle) == {"host_late": 71, "launch": 9}
    assert (first.busy_s, us(first.idle)) == (pytest.approx(10e-6), HEAD)


@pytest.mark.parametrize("hooks", [0, 3])
def test_backward_is_in_the_phase_around_it_whatever_collectives_annotate(read, hooks):
    backward = [
        span("## backward ##", 20, 60),
        op("MmBackward0", 25, 35, thread=2, Sequence_number=7, Fwd_thread_id=1),
        op("aten::mm", 26, 34, thread=2, **MM),
        launch(27, 2, thread=2),
        kernel(30, 40, 2),
        *(span("nccl:all_reduce", 31 + place, 32 + place, thread=2) for place in range(hooks)),
    ]
    assert [one.phase for one in read(*FIRST, *backward).records] == ["", "## backward ##"]


def test_short_kernels_queue_and_delay(read):
    # three launches at 0 to 1, 1 to 2 and 2 to 3; kernels of 4, 5 and 6 µs from 10, 14 and 19 on
    events = [op("aten::mm", 0, 4, **MM), *[launch(number, number) for number in (0, 1, 2)]]
    kernels = [kernel(10, 14, 0), kernel(14, 19, 1), kernel(19, 25, 2)]
    found = read(*events, *kernels).measurement.timeline.launches
    assert (found.kernels, found.short_kernels, found.short_s) == (3, 1, pytest.approx(4e-6))
    assert found.delay_median_s == pytest.approx(13e-6)  # 10, 13 and 17
    # from 1 to 19: one is queued 1 µs, two 1 µs, three 7 µs, then two 4 µs and one 5 µs
    assert (found.queue_median, found.queue_p90, found.queue_max, found.queue_empty) == (2, 3, 3, 0)
    assert found.host_per_launch_s == pytest.approx(4e-6 / 3)
    (mm,) = found.ops
    assert (mm.calls, mm.launched, mm.device_s) == (1, 3, pytest.approx(15e-6))


def test_waits_are_not_host_time(read):
    waiting = [
        op("aten::_to_copy", 0, 50, dims=[[4]], types=["float"]),
        op("aten::copy_", 1, 49, dims=[[4], [4]], types=["float", "float"]),
        call("cudaMemcpyAsync", 2, 3, 1),
        call("cudaStreamSynchronize", 5, 45),
        kernel(30, 40, 1, name="Memcpy DtoH (Device -> Pinned)", cat="gpu_memcpy"),
    ]
    (copy,) = read(*waiting).measurement.timeline.launches.ops
    assert copy.host_s == pytest.approx(10e-6)


def test_a_copy_to_pageable_memory_is_a_wait(read):
    item = [
        op("aten::_local_scalar_dense", 11, 32, dims=[[]], types=["float"]),
        call("cudaMemcpyAsync", 12, 31, 3),
        kernel(22, 30, 3, name=TO_HOST, cat="gpu_memcpy"),
    ]
    found = read(*FIRST, *item, *SECOND).measurement.timeline
    # the call began before the idle 20 to 22 did, and had the copy queued at 22, when it began; 30 to 91 after the wait
    assert us(found.idle) == plus({"sync": 2 + 61, "launch": 9})
    (copy,) = [each for each in found.launches.ops if each.name == "aten::_local_scalar_dense"]
    assert copy.host_s == pytest.approx(2e-6)


def test_a_trace_without_shapes_says_so(read):
    report = rl.analyze(read(op("aten::mm", 0, 8), launch(2, 1), kernel(10, 20, 1))).report()
    assert "The reason for mm: the trace has no shapes of it: record it with record_shapes" in report.conclusion
    facts = dict(report.facts)
    assert facts["coverage"] == "0% of the device's work by time, 0% of calls, of unknown bytes"
    assert "efficiency" not in facts
    (group,) = report.data.by_op
    assert group.efficiency is None
    assert report.data.unattributed.uncosted_s == 0


def test_the_report_says_why_and_what_helps(tmp_path, run):
    path = write(tmp_path / "trace.json", [*FIRST, span(LOADER, 22, 88), *SECOND])
    code, out, _ = run("analyze", path, "--json", "-")
    assert code == 0
    document = json.loads(out)
    assert document["timeline"]["idle"]["data_loader_s"] == pytest.approx(66e-6)
    assert document["timeline"]["idle_details"][0]["cause"] == "data_loader"
    assert "was idle for 81.8% of a step, 60.0% (66.0 µs) of it: data loader." in document["conclusion"]
    assert document["conclusion"].startswith(
        "First: the step waits for data. What helps: num_workers=N in the DataLoader"
    )
    assert "remedy" not in str(document["account"]) + str(document["timeline"])
    ids = {table.id for table in rl.analyze(rl.read_trace(path)).report().tables}
    assert {"idle", "host_time"} <= ids


def test_a_program_is_not_told_to_use_what_it_uses(read):
    report = rl.analyze(read(*FIRST, call("cudaGraphLaunch", 90, 91, 2), kernel(100, 110, 2))).report()
    text = " ".join(str(cell) for table in report.tables for row in table.rows for cell in row)
    assert "CUDA graphs" not in text + report.conclusion
    compiled = read(*FIRST, span("## Call CompiledFxGraph fal4xpiah2v6 ##", 0, 110), *SECOND)
    assert compiled.measurement.timeline.launches.compiled
    assert rl.analyze(compiled).report().data.findings[0].id == "cuda-graphs"


CALLS = ["cudaLaunchKernel", "cudaDeviceSynchronize", "cudaMalloc", "cudaMemcpyAsync", "cudaEventRecord"]
WORKS = [("kernel", "k"), ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"), ("gpu_memset", "Memset (Device)")]


@given(st.data())
def test_causes_sum_to_the_idle_time(tmp_path_factory, data):
    moment, length = st.integers(0, 400), st.integers(0, 150)
    events = []
    for number in range(data.draw(st.integers(1, 6))):
        start = data.draw(moment)
        category, name = data.draw(st.sampled_from(WORKS))
        events.append(kernel(start, start + data.draw(length), number, name=name, cat=category))
    for _ in range(data.draw(st.integers(0, 8))):
        start = data.draw(moment)
        name = data.draw(st.sampled_from(CALLS))
        thread = data.draw(st.integers(1, 2))
        events.append(call(name, start, start + data.draw(length), data.draw(st.integers(0, 7)), thread))
    names = ["enumerate(DataLoader)#x", "gloo:barrier", "phase", "ProfilerStep#1", "Buffer Flush"]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=5)):
        start = data.draw(moment)
        category = "overhead" if name == "Buffer Flush" else "user_annotation"
        events.append(span(name, start, start + data.draw(length), cat=category))
    path = write(tmp_path_factory.mktemp("traces") / "trace.json", events)
    found = rl.read_trace(path).measurement.timeline
    for each in (found, *found.steps):
        assert sum(seconds for _, seconds in each.idle.parts) == pytest.approx(each.idle_s, abs=1e-12)
        assert each.busy_s + each.idle_s == pytest.approx(each.wall_s)
        assert each.compute_s + each.exposed_communication_s + each.exposed_copy_s == pytest.approx(each.busy_s)
        assert all(getattr(each.idle, field.name) >= 0 for field in fields(Idle))
    assert sum(detail.seconds for detail in found.idle_details) == pytest.approx(found.idle_s)
    assert sum(phase.idle_s for phase in found.phases) <= found.idle_s + 1e-12


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("## Call CompiledFxGraph fal4xpiah2v6 ##", "as kernels"),
        ("Torch-Compiled Region: 0/0", "as kernels"),
        ("triton_poi_fused_add_0", "as kernels"),
        ("fused_moe_triton_kernel", None),
    ],
)
def test_a_trace_tells_whether_compiled_code_ran(read, name, expected):
    session = read(*FIRST, span(name, 0, 110), *SECOND)
    assert session.environment.get("compiled") == expected
    assert not session.compiled  # its ops are the compiled ones: no time is below their bound
    facts = dict(rl.analyze(session, "H100-SXM5-80GB").report().facts)
    assert ("compiled" in facts) == (expected is not None)
    assert "fused bound" not in facts
