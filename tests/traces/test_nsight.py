"""Reports of Nsight Systems, exported to SQLite."""

import json
import sqlite3
from contextlib import closing

import pytest
from nsight_database import PROCESS, THREAD, NsightReport

import rooflight as rl
from rooflight.sources.traces.file.kernel_dtypes import float_type

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
MM = "aten::mm, seq = 3, op_id = 12, sizes = [[4096, 512], [512, 4096]], input_op_ids = [(-1,-1), (11,0)]"


def product(report, at, correlation, took=20.0, name=GEMM, text=MM, **process):
    report.range(text, at, at + 10)
    report.launch(at + 2, correlation)
    report.kernel(at + 5, at + 5 + took, correlation, name, **process)


def test_ops_of_emit_nvtx_have_shapes_times_and_bounds(tmp_path):
    report = NsightReport()
    product(report, 0, 1)
    session = rl.read_trace(report.write(tmp_path / "a.sqlite"))
    (record,) = session.records
    assert record.signature.name == "aten::mm"
    assert record.signature.input_shapes == ((4096, 512), (512, 4096))
    assert {tensor.dtype for tensor in record.signature.inputs} == {"bfloat16"}
    assert record.times_s == pytest.approx((20e-6,))
    analysis = rl.analyze(session)
    assert analysis.device.name == "H100-SXM5-80GB"
    assert analysis.totals.matrix_flops == 2 * 4096 * 512 * 4096
    assert any("narrowest float type" in note for note in session.notes)


def test_settings_and_further_shapes_follow_as_in_old_traces(tmp_path):
    report = NsightReport()
    addmm = "aten::addmm, seq = 1, sizes = [[1024], [64, 512], [512, 1024], [], []]"
    product(report, 0, 1, text=addmm, name="ampere_sgemm_32x128_tn")
    gelu = "aten::gelu, seq = 2, sizes = [[64, 1024], []]"
    product(
        report, 100, 2, text=gelu, name="vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(c10::Half)>"
    )
    first, second = rl.read_trace(report.write(tmp_path / "a.sqlite")).records
    assert [tensor.dtype for tensor in first.signature.inputs] == ["float32"] * 3
    assert first.signature.outputs[0].shape == (64, 1024)
    assert [tensor.dtype for tensor in second.signature.inputs] == ["float16"]


@pytest.mark.parametrize(
    ("kernels", "kind"),
    [
        ([GEMM], "c10::BFloat16"),
        (["nvjet_sm100_tst_64x32_64x16_2x1_2cta_v_bz_TNT"], "c10::BFloat16"),
        (["nvjet_hsh_128x64_64x3_2x1_v_bz_TNN"], "c10::Half"),
        (["ampere_fp16_s16816gemm_fp16_128x128"], "c10::Half"),
        (["cutlass_80_tensorop_s1688gemm_64x64"], "float"),
        (["volta_sgemm_128x64_nn"], "float"),
        (["at::native::unrolled_elementwise_kernel<float, c10::BFloat16>"], "c10::BFloat16"),
        (["copy_kernel<double>", "scale<float>"], "float"),
        (["void gather<long>"], ""),
        ([], ""),
    ],
)
def test_the_narrowest_type_in_names_of_kernels_is_taken(kernels, kind):
    assert float_type(iter(kernels)) == kind


def test_what_no_kernel_tells_is_named(tmp_path):
    report = NsightReport()
    product(report, 0, 1, name="my_kernel")
    product(report, 100, 2, text="aten::mm, seq = 4")
    session = rl.read_trace(report.write(tmp_path / "a.sqlite"))
    reasons = sorted(op.reason for op in rl.analyze(session).coverage.uncosted)
    assert reasons[0].startswith("its dtypes are not noted")
    assert "record_shapes=True" in reasons[1]


def test_the_timeline_has_copies_graphs_and_idle_time(tmp_path, run):
    report = NsightReport()
    product(report, 0, 1)  # 5 to 25 µs
    report.launch(30, 2, name="cudaMemcpyAsync_v3020")
    report.copy(35, 45, 2)
    report.launch(50, 3, name="cudaGraphLaunch_v10000")
    place = {"deviceId": 0, "streamId": 7, "correlationId": 3, "globalPid": PROCESS}
    report.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 60, 90, graphId=4, graphExecId=5, **place)
    path = report.write(tmp_path / "a.sqlite")
    code, out, error = run("analyze", path, "--json", "-")
    assert code == 0, error
    found = json.loads(out)
    timeline = found["timeline"]
    assert timeline["wall_s"] == pytest.approx(90e-6)
    assert timeline["compute_s"] == pytest.approx(50e-6)
    assert timeline["copy_s"] == pytest.approx(10e-6)
    assert timeline["idle_s"] == pytest.approx(30e-6)
    assert found["unattributed"]["no_host_op_s"] == pytest.approx(40e-6)
    names = {each.name for each in rl.read_trace(path).measurement.timeline.without_op}
    assert names == {"CUDA graph 4", "Memcpy HtoD (Pageable -> Device)"}


def test_ranges_are_phases_and_backward_follows_sequence_numbers(tmp_path):
    report = NsightReport()
    report.range("train", 0, 1000, named=True)
    product(report, 10, 1)
    backward = "MmBackward0, seq = 3, op_id = 20, sizes = [[4096, 4096]]"
    report.range(f"autograd::engine::evaluate_function: {backward}", 100, 200)
    product(report, 120, 2, text="aten::mm, op_id = 21, sizes = [[512, 4096], [4096, 4096]]")
    first, second = rl.read_trace(report.write(tmp_path / "a.sqlite")).records
    assert [first.phase, second.phase] == ["train", "train"]
    assert [first.direction.label, second.direction.label] == ["forward", "backward"]


def test_processes_that_number_their_launches_alike_are_kept_apart(tmp_path):
    report, other = NsightReport(), 78 << 24
    product(report, 0, 1)
    report.range("aten::neg, sizes = [[1024]]", 0, 10, thread=other | 9)
    report.launch(2, 1, thread=other | 9)
    report.kernel(5, 6, 1, "neg<float>", device=1, pid=other)
    records = rl.read_trace(report.write(tmp_path / "a.sqlite")).records
    assert {each.signature.name: each.times_s[0] for each in records} == {
        "aten::mm": pytest.approx(20e-6),
        "aten::neg": pytest.approx(1e-6),
    }


def test_without_ranges_the_kernels_are_listed(tmp_path):
    report = NsightReport()
    report.kernel(5, 9, 1, "k")
    path = report.write(tmp_path / "a.sqlite", without=("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"))
    session = rl.read_trace(path)
    assert not len(session)
    assert [each.name for each in session.measurement.timeline.without_op] == ["k"]
    assert rl.analyze(session).report().tables


def test_odd_rows_are_left_out_with_a_note(tmp_path):
    report = NsightReport()
    product(report, 0, 1)
    report.range("open for ever", 5, None)
    report.kernel(9, 5, 3, "backwards")
    report.rows.append(("NVTX_EVENTS", {"start": 5, "end": 9, "eventType": 34, "text": "a mark", "globalTid": THREAD}))
    session = rl.read_trace(report.write(tmp_path / "a.sqlite"))
    assert len(session) == 1
    notes = " ".join(session.notes)
    assert "no end" in notes
    assert "a duration below 0" in notes


@pytest.mark.parametrize("hostile", ["text", b"\xff\xfe", 2**62, -5, 1.5, None])
def test_values_that_are_none_of_nsights_do_no_harm(tmp_path, hostile):
    path = NsightReport().write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, demangledName)"
        )
        rows = [[1000, 2000, 0, 7, 1, 1] for _ in range(6)]
        for place, row in enumerate(rows):
            row[place] = hostile
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    session = rl.read_trace(path)
    assert rl.analyze(session, "H100-SXM5-80GB").report().title


def refused(path, run):
    code, _, error = run("analyze", path)
    assert code == 2
    assert path.name in error
    return error


def test_what_is_no_report_is_refused_in_one_line(tmp_path, run):
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE a (b)")
        database.commit()
    assert "nsys export" in refused(other, run)
    whole = NsightReport().write(tmp_path / "a.sqlite").read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "SQLite" in refused(cut, run)
    own = tmp_path / "report.nsys-rep"
    own.write_bytes(b"NSYS")
    assert "nsys export --type sqlite report.nsys-rep" in refused(own, run)
    empty = NsightReport().write(tmp_path / "empty.sqlite")
    assert "nothing ran" in refused(empty, run)


@pytest.mark.parametrize("column", ["StringIds DROP COLUMN value", "NVTX_EVENTS DROP COLUMN start"])
def test_a_refusal_names_the_file(tmp_path, run, column):
    path = NsightReport().write(tmp_path / "bent.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"ALTER TABLE {column}")
        database.commit()
    assert column.split()[-1] in refused(path, run)


def test_so_does_one_whose_text_is_not_utf8(tmp_path, run):
    path = NsightReport().write(tmp_path / "bent.sqlite")
    bent = (
        path.read_bytes()
        .replace(b"CREATE TABLE NVTX", b"CREATE TABLX NVTX")
        .replace(b"NVTX_EVENTSN", b"N\x82TX_EVENTSN")
    )
    path.write_bytes(bent)
    refused(path, run)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    [f"aten::mm, seq = {10**30}", f"aten::mm, sizes = {DEEP}", "aten::mm, sizes = [[true, 2], [2, true]]"],
    ids=["huge", "deep", "bool"],
)
def test_a_bent_name_of_an_op_does_no_harm(tmp_path, ok, text):
    report = NsightReport()
    product(report, 0, 1)
    product(report, 100, 2, text=text)
    assert len(json.loads(ok("analyze", report.write(tmp_path / "a.sqlite"), "--json", "-"))["ops"])


@pytest.mark.parametrize("sizes", ["", ", sizes = [[8, 8, 4, 4], [8]]", ", sizes = [[], [4, 4, 4]]"])
@pytest.mark.parametrize("name", ["aten::convolution", "aten::convolution_backward", "vllm::moe", "aten::bmm"])
def test_a_report_needs_no_shapes(tmp_path, ok, name, sizes):
    report = NsightReport()
    product(report, 0, 1, text=f"{name}, seq = 1{sizes}", name="ampere_sgemm_32x128_tn")
    assert ok("analyze", report.write(tmp_path / "a.sqlite"))


def test_times_that_no_clock_has_are_left_out_and_long_names_are_cut(tmp_path):
    report = NsightReport()
    product(report, 0, 1, name="k" * 100_000)
    for start, stop in ((-(2**63), 5), (5, 2**63 - 1), (-(2**62), 2**62)):
        report.kernel(0, 0, 2, "k")
        report.rows[-1][1].update(start=start, end=stop)
    session = rl.read_trace(report.write(tmp_path / "a.sqlite"))
    assert any("3 events left out: a time that no clock has" in note for note in session.notes)
    (kernel,) = session.measurement.timeline.kernels
    assert len(kernel.name) < 20_000


def test_the_file_is_not_changed(tmp_path):
    report = NsightReport()
    product(report, 0, 1)
    path = report.write(tmp_path / "a.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    rl.read_trace(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.sqlite"]
