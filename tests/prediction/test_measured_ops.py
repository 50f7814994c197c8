"""Ops of traces and sessions as measured data: what `fit` and `lint` read of them."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from kineto_traces import kernel, launch, op, span, write
from measured_tables import write_table

import rooflight as rl
from rooflight import devices
from rooflight.front.measured import find_measured, read_measured
from rooflight.prediction.fit.rows import shown_by_ops
from rooflight.prediction.lint.findings import from_cache, lint_ops
from rooflight.prediction.read.measured import measured_ops

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def product(at, m, took, *, kernels=1, n=1024, name="hgemm", kind="c10::BFloat16"):
    """[m, 512] @ [512, n] by so many kernels of ``took`` µs in all, from ``at`` µs on."""
    events = [op("aten::mm", at, at + 10, dims=[[m, 512], [512, n]], types=[kind] * 2)]
    for number in range(kernels):
        start = at + 12 + number * took / kernels
        events.append(launch(at + 1 + number, int(at * 10) + number))
        events.append(kernel(start, start + took / kernels, int(at * 10) + number, name=name))
    return events


def collective(at, took):
    """An all-reduce of a megabyte."""
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1 << 18, "Out msg nelems": 1 << 18}
    group = {"Group size": 8, "Process Group Name": "0", "Process Group Ranks": str(list(range(8)))}
    found = op("record_param_comms", at, at + 10)
    found["args"] |= args | group
    return [found, launch(at + 1, at * 10), kernel(at + 12, at + 12 + took, at * 10, name="ncclDevKernel_AllReduce")]


def trace(path, *events, gpu=H100):
    return write(path, [event for each in events for event in each], gpu=gpu)


def rows_of(path, device=None):
    (found,) = read_measured([path], device)
    return found


def test_a_row_is_a_distinct_call_with_the_times_of_all_its_kernels(tmp_path):
    path = trace(tmp_path / "a.json", product(0, 256, 30), product(100, 256, 40, kernels=4), product(200, 128, 9))
    found = rows_of(path)
    assert [row.op.inputs[0].shape for row in found.rows] == [(256, 512), (128, 512)]
    assert found.rows[0].samples_s == pytest.approx([30e-6, 40e-6])
    assert found.seconds == pytest.approx([35e-6, 9e-6])  # the median of 30 and 40
    assert {tensor.dtype for row in found.rows for tensor in row.op.inputs} == {"bfloat16"}
    assert found.device.name == "H100-SXM5-80GB"


def test_ops_of_all_steps_are_rows_also_of_those_that_are_unlike(tmp_path):
    marks = [span(f"ProfilerStep#{number}", 1000 * number, 1000 * number + 900) for number in range(3)]
    steps = [product(0, 256, 30), product(1000, 256, 40), product(2000, 128, 9)]
    found = rows_of(trace(tmp_path / "a.json", marks, *steps))
    assert [len(row.samples_s) for row in found.rows] == [2, 1]
    assert len(rl.read_trace(tmp_path / "a.json")) == 1  # two of three steps are alike, and are samples of one


def test_traces_of_one_device_are_pooled_and_those_of_two_are_kept_apart(tmp_path):
    one = trace(tmp_path / "one.json", product(0, 4096, 30), product(100, 4096, 50))
    two = trace(tmp_path / "two.json", product(0, 4096, 70))
    other = trace(tmp_path / "other.json", product(0, 4096, 90), gpu=A100)
    shown = {each.device.name: each for each in shown_by_ops(read_measured([one, two, other])).shown}
    assert set(shown) == {"H100-SXM5-80GB", "A100-SXM4-80GB"}
    # one row each: the median of 30, 50 and 70 µs, and 90 µs, over the bound
    for name, microseconds in (("H100-SXM5-80GB", 50), ("A100-SXM4-80GB", 90)):
        (row,) = shown[name].facts
        assert shown[name].slowdown == pytest.approx([np.log(microseconds * 1e-6 / row[0])])


def test_an_op_of_two_kinds_of_gpu_in_one_trace_belongs_to_none(tmp_path):
    properties = [{"id": 0, "name": H100}, {"id": 1, "name": A100}]
    second = [op("aten::mm", 200, 210, dims=[[64, 512], [512, 64]], types=["float"] * 2), launch(201, 9)]
    on_other = kernel(212, 220, 9)
    on_other["args"]["device"] = 1
    path = write(tmp_path / "a.json", [*product(0, 256, 30), *second, on_other], deviceProperties=properties)
    with pytest.raises(ValueError, match=r"a.json: .*device"):
        rows_of(path)


def test_a_product_by_a_tf32_kernel_is_held_to_the_tf32_peak(tmp_path):
    flops = 2 * 4096 * 512 * 4096
    shape = {"n": 4096, "kind": "float"}
    fast = flops / 156e12 * 1e6 * 1.2  # faster than float32's 19.5 TFLOP/s allow
    path = trace(tmp_path / "a.json", product(0, 4096, fast, name="s1688gemm", **shape), gpu=A100)
    assert not lint_ops(rows_of(path))
    (shown,) = shown_by_ops([rows_of(path)]).shown
    assert shown.slowdown == pytest.approx([np.log(1.2)], rel=1e-4)
    path = trace(tmp_path / "b.json", product(0, 4096, fast, name="ampere_sgemm", **shape), gpu=A100)
    (finding,) = lint_ops(rows_of(path))
    # 156 / 19.5 / 1.2 = 6.67, and no clock is higher than the A100's quoted one
    assert finding.factor == pytest.approx(156 / 19.5 / 1.2, rel=0.12)
    assert "aten::mm 4096x512 float32 512x4096 float32" in finding.evidence


def test_the_fastest_call_is_checked_and_flagged_rows_teach_nothing(tmp_path):
    # 2 * 8192 * 512 * 8192 / 989.4e12 = 69 µs
    slow, fast = product(0, 8192, 100, n=8192), product(1000, 8192, 20, n=8192)
    found = rows_of(trace(tmp_path / "a.json", slow, fast, product(2000, 64, 5)))
    (finding,) = lint_ops(found)
    assert (finding.row, finding.line) == (0, None)
    assert "20.0 µs (fastest of 2 calls)" in finding.evidence
    (shown,) = shown_by_ops([found], [finding]).shown
    assert len(shown.facts) == 1


def test_data_that_a_cache_may_have_served_are_no_finding(tmp_path):
    add = op("aten::add", 0, 10, dims=[[1 << 20], [1 << 20], []], types=["float", "float", "Scalar"])
    add["args"]["Concrete Inputs"] = ["", "", "1"]
    # 12.6 MB at 3.35 TB/s are 3.8 µs; the L2 of 50 MB may have had them
    found = rows_of(trace(tmp_path / "a.json", [add, launch(1, 5), kernel(12, 14, 5)]))
    assert not lint_ops(found)
    assert from_cache(found) == 1
    (shown,) = shown_by_ops([found]).shown
    assert shown.slowdown == pytest.approx(np.log(2 / 3.756), abs=1e-3)  # 12.58 MB / 3.35 TB/s = 3.756 µs


def test_collectives_are_read_and_teach_nothing(tmp_path):
    found = rows_of(trace(tmp_path / "a.json", product(0, 256, 30), collective(100, 500)))
    assert [row.op.name for row in found.rows] == ["aten::mm", "c10d::allreduce_"]
    taught = shown_by_ops([found])
    assert [each.key for each in taught.shown] == ["gemm"]
    assert taught.collectives == 1
    # 1 MiB over 8 ranks cannot be reduced in a nanosecond
    quick = rows_of(trace(tmp_path / "b.json", collective(100, 0.001)))
    assert ["c10d::allreduce_" in finding.evidence for finding in lint_ops(quick)] == [True]


def test_a_saved_session_is_read_as_the_trace_it_was_made_of(tmp_path):
    path = trace(tmp_path / "a.json", product(0, 256, 30), product(100, 128, 9))
    rl.read_trace(path).save(tmp_path / "a.session")
    (one,), (two,) = read_measured([path]), read_measured([tmp_path / "a.session"])
    assert [row.op for row in one.rows] == [row.op for row in two.rows]
    assert np.array_equal(one.seconds, two.seconds)


def test_a_session_without_times_is_refused(tmp_path):
    session = rl.read_trace(trace(tmp_path / "a.json", product(0, 256, 30)))
    unmeasured = tmp_path / "a.session"
    replace(session, measurement=None).save(unmeasured)
    with pytest.raises(ValueError, match=r"a.session has no times of ops"):
        read_measured([unmeasured])
    assert not len(measured_ops(session, devices.get("H100-SXM5-80GB"), unmeasured).rows[0].op.attributes)


def test_a_trace_without_ops_is_refused_in_one_line(tmp_path, run):
    path = write(tmp_path / "a.json", [kernel(0, 5, 1)], gpu=H100)
    code, _, error = run("lint", path)
    assert code == 2
    assert "a.json has no op with a time" in error


def test_files_are_found_by_what_they_are(tmp_path):
    kept = trace(tmp_path / "rank0.json", product(0, 256, 30))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    found = find_measured([tmp_path, kept])
    assert found.sessions == (kept,)
    assert found.tables == ()
    kept.unlink()
    with pytest.raises(ValueError, match="holds no samples"):
        find_measured([tmp_path])


def test_lint_names_the_op_that_is_too_fast(tmp_path, run):
    path = trace(tmp_path / "a.json", product(0, 8192, 20, n=8192), product(1000, 64, 5))
    code, text, _ = run("lint", path, "--json", "-")
    found = json.loads(text)
    assert code == 1
    assert ["aten::mm 8192x512" in each["evidence"] for each in found["findings"]] == [True]
    assert found["tables"][0] | {"flagged": 1, "rows": 2, "device": "H100-SXM5-80GB"} == found["tables"][0]


def test_lint_asks_for_the_device_of_a_part_that_is_not_known(tmp_path, run):
    path = trace(tmp_path / "a.json", product(0, 64, 5), gpu="NVIDIA H300")
    code, _, error = run("lint", path)
    assert code == 2
    assert "a.json" in error
    assert "--device" in error
    assert rows_of(path, "H100-SXM5-80GB").device.name == "H100-SXM5-80GB"
    assert run("lint", path, "--device", "H100-SXM5-80GB")[0] == 0


def test_fit_learns_from_a_trace_and_pools_its_copy(tmp_path, run):
    sizes = [(m, n) for m in (64, 128, 256, 512) for n in (512, 1024, 2048, 4096)]
    products = [product(1000 * at, m, 5 + m * n / 1e5, n=n) for at, (m, n) in enumerate(sizes)]
    path = trace(tmp_path / "a.json", *products)
    code, text, _ = run("fit", path, path, "--out", tmp_path / "models", "--json", "-")
    found = json.loads(text)
    assert code == 0
    assert [(each["key"], each["device"], each["rows"]) for each in found["models"]] == [("gemm", "H100-SXM5-80GB", 16)]
    predictor = rl.Predictor.load(tmp_path / "models")
    (learned,) = predictor.predict_many([[rl.read_trace(path).signatures[5]]], "H100-SXM5-80GB")
    assert learned.time_s == pytest.approx((5 + sizes[5][0] * sizes[5][1] / 1e5) * 1e-6, rel=0.5)
    shutil.copy(path, tmp_path / "copy.json")
    code, text, _ = run("fit", tmp_path, "--out", tmp_path / "models", "--json", "-")
    # the copy's calls are calls of the same rows
    assert json.loads(text)["models"][0]["rows"] == 16


def test_tables_and_traces_of_one_device_make_one_model(tmp_path, run):
    write_table(tmp_path, slowdown=2.0)  # 64 products on an A100
    products = [product(1000 * m, m, 50 + m) for m in (256, 512, 1024)]
    path = trace(tmp_path / "a.json", *products, gpu=A100)
    code, out, error = run("fit", tmp_path, path, "--out", tmp_path / "models", "--json", "-")
    assert code == 0, error
    (model,) = json.loads(out)["models"]
    assert (model["key"], model["device"], model["rows"]) == ("gemm", "A100-SXM4-80GB", 67)
    code, out, _ = run("lint", tmp_path, "--json", "-")
    rows = {each["file"].rsplit(".", 1)[-1]: each["rows"] for each in json.loads(out)["tables"]}
    assert rows == {"csv": 64, "json": 3}


def test_kinds_with_few_rows_teach_what_ops_have_in_common(tmp_path, run):
    def pointwise(at, name, size):
        event = op(name, at, at + 10, dims=[[size]], types=["float"])
        return [event, launch(at + 1, at), kernel(at + 12, at + 12 + 2 + size / 1e5, at)]

    names = ["aten::exp", "aten::neg", "aten::sin", "aten::tanh"]
    events = [
        pointwise(100 * (5 * at + step), name, 1 << (18 + step)) for at, name in enumerate(names) for step in range(5)
    ]
    path = trace(tmp_path / "a.json", *events)
    code, text, _ = run("fit", path, "--out", tmp_path / "models", "--json", "-")
    found = json.loads(text)
    assert code == 0
    # 4 kinds of 5 rows each are too few for models of their own, 20 in all are enough for one of other ops
    assert [(each["key"], each["rows"]) for each in found["models"]] == [("other ops", 20)]
    assert len(found["too_few"]) == 4
