"""Measured tables of estimate-train-time and the sampler: what is read, in which units, and what is refused."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rooflight import devices
from rooflight.devices import calibrations
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.devices.spec import MemoryLevel, Roofs
from rooflight.prediction.lint.tables import report_of
from rooflight.prediction.read import find, read, read_file
from rooflight.prediction.read.measured import sheet_of
from rooflight.records.samples import Header, Row, Status
from rooflight.sampling.store import Store

A100 = "NVIDIAA100-SXM4-80GB"
LINEAR = "mp,b,l,dim,F_dur(us),B_dur(us)\n"
GATHER = "shape,nodes,GPUsPerNode,dur(us)\n"


def write(folder, name, text):
    path = folder / f"{name}.csv"
    path.write_text(text)
    return path


def one(path):
    (table,) = read_file(path)
    return table


def test_a_file_of_the_page(tmp_path):
    text = LINEAR + "1.0,2.0,1024.0,2048.0,250.5,480.0\n\n2,2,1024,2048,130,1e3\n"
    table = one(write(tmp_path, f"{A100}_linear1_fp16", text))
    assert (table.operator, table.kernel, table.precision, table.dtype) == ("linear1", "linear1", "fp16", "float16")
    assert table.device == devices.get("A100-SXM4-80GB")
    assert table.known
    assert table.directions == ("fwd", "bwd")
    assert table.parameters == ("mp", "b", "l", "dim")
    assert table.shapes.tolist() == [[1, 2, 1024, 2048], [2, 2, 1024, 2048]]
    assert table.seconds == pytest.approx(np.array([[250.5e-6, 480e-6], [130e-6, 1e-3]]))
    assert table.lines.tolist() == [2, 4]  # a blank line is no row
    assert table.shape(1) == {"mp": 2, "b": 2, "l": 1024, "dim": 2048}
    assert table.where(1).endswith("_linear1_fp16.csv, line 4")
    assert len(table) == 2
    kept = table.subset(np.array([False, True]))
    assert kept.lines.tolist() == [4]
    assert kept.device is table.device


def test_columns_come_in_any_order_and_with_defaults_filled_in(tmp_path):
    text = "n,m,k,dur(us)\n1,2,3,4\n"
    table = one(write(tmp_path, f"{A100}_gemm_bf16", text))
    assert table.parameters == ("m", "n", "k", "transpose_a", "transpose_b")
    assert table.shapes.tolist() == [[2, 1, 3, 0, 0]]


@pytest.mark.parametrize(
    ("kernel", "operator"),
    [
        ("allreduce", "all_reduce"),
        ("allgather_large", "all_gather"),
        ("reducescatter_large", "reduce_scatter"),
        ("p2p", "p2p"),
        ("all_to_all", "all_to_all"),
    ],
)
def test_collectives(tmp_path, kernel, operator):
    table = one(write(tmp_path, f"{A100}_{kernel}_fp16_1_4", GATHER + "134217728.0,1.0,4.0,6410.4\n"))
    assert (table.operator, table.kernel) == (operator, kernel)
    assert table.parameters == ("elements", "nodes", "gpus_per_node")
    assert table.shapes.tolist() == [[134217728, 1, 4]]
    assert table.directions == ("step",)
    assert table.seconds[0, 0] == pytest.approx(6410.4e-6)


def test_a_gzipped_file(tmp_path):
    plain = write(tmp_path, f"{A100}_linear1_fp16", LINEAR + "1,2,1024,2048,250,480\n")
    packed = tmp_path / "packed" / f"{A100}_linear1_fp16_1_1.csv.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    there, here = read(tmp_path)
    assert (there.source, here.source) == (plain, packed)
    assert here.shapes.tolist() == there.shapes.tolist()
    assert here.label == "linear1_fp16_1_1"
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"cannot read .*_1_1\.csv\.gz: Compressed file ended"):
        read(packed)
    packed.write_bytes(plain.read_bytes())
    with pytest.raises(ValueError, match=r"cannot read .*Not a gzipped file"):
        read(packed)


def test_names_with_underscores_parts_and_other_devices(tmp_path):
    name = "NVIDIAGH200120GB_parallel_cross_entropy_128_fp16_8_3"
    table = one(write(tmp_path, name, "mp,b,l,F_dur(us),B_dur(us)\n1,8,1536,10,3\n"))
    assert table.operator == "parallel_cross_entropy_128"
    assert table.device.name == "GH200-96GB"
    fp8 = one(write(tmp_path, "NVIDIAH10080GBHBM3_scaled_mm_float8_e4m3fn_1_1", "m,n,k,dur(us)\n1,2,3,4\n"))
    assert (fp8.operator, fp8.dtype) == ("scaled_mm", "float8_e4m3fn")


def test_an_operator_that_nobody_knows_is_read_and_marked(tmp_path):
    text = "num_layers,hidden_size,param_tensors,params,dur\n2.0,512.0,28.0,57817088.0,11166.8\n"
    table = one(write(tmp_path, f"{A100}_optimizer_fp16", text))
    assert not table.known
    assert table.operator == "optimizer"
    assert table.parameters == ("num_layers", "hidden_size", "param_tensors", "params")
    assert table.seconds[0, 0] == pytest.approx(11166.8e-6)


def test_a_folder_without_what_is_no_table(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path, f"{A100}_linear1_fp16", LINEAR + "1,2,1024,2048,250,480\n")
    write(tmp_path / "deep", f"{A100}_gelu_fp16", LINEAR + "1,2,1024,2048,25,48\n")
    write(tmp_path, A100, "GPU,Function,Precision\n")
    write(tmp_path, "llemma_7b_4_2_2_P", "a,b\n1,2\n")
    (tmp_path / "notes.txt").write_text("nothing")
    assert [table.operator for table in read(tmp_path)] == ["linear1", "gelu"]
    assert {path.stem for path in find(tmp_path)[1]} == {A100, "llemma_7b_4_2_2_P"}


def stored(folder, *rows, device=A100, name="gelu", calibration=None, environment=None):
    parameters = ("mp", "b", "l", "dim")
    header = Header(
        kernel=name,
        operator=name,
        precision="fp16",
        device=device,
        columns=tuple((each, each) for each in parameters),
        directions=("fwd", "bwd"),
        calibration=calibration or {},
        environment=environment or {},
    )
    path = folder / f"{device}_{name}_fp16_1_1.jsonl"
    with Store(path, header) as store:
        for row in rows:
            store.append(row)
    return path


def row(dim, *fwd, status=Status.OK):
    samples = {"fwd": fwd, "bwd": tuple(2 * each for each in fwd)} if fwd else {}
    return Row(shape={"mp": 1, "b": 2, "l": 128, "dim": dim}, status=status, samples_s=samples)


def test_the_samplers_own_file_and_not_its_csv_too(tmp_path):
    rows = (row(1024, 3e-6, 1e-6, 2e-6), row(2048, status=Status.OUT_OF_MEMORY), row(4096, 4e-6, 4e-6, 4e-6))
    path = stored(tmp_path, *rows)
    write(tmp_path, path.stem, LINEAR + "1,2,128,1024,3,6\n1,2,128,4096,4,8\n")
    (table,) = read(tmp_path)
    assert table.source == path
    assert table.lines.tolist() == [2, 4]  # after the header; the middle one was not measured
    # of 1, 2 and 3 us the first decile, a fifth of the way from the first to the second
    assert table.seconds == pytest.approx(np.array([[1.2e-6, 2.4e-6], [4e-6, 8e-6]]))


def test_a_merged_sweep_beside_its_parts_is_not_read_twice(tmp_path):
    """``rooflight merge`` writes beside the parts unless told otherwise: its rows would be learned from twice."""
    path = stored(tmp_path, row(1024, 3e-6, 1e-6, 2e-6))
    merged = path.with_name(path.name.replace("_1_1.jsonl", ".csv"))
    merged.write_text(LINEAR + "1,2,128,1024,3,6\n")
    assert find(tmp_path) == ((path,), ())
    assert find(merged) == ((merged,), ())  # by its name it is


def test_a_sweep_of_which_nothing_could_be_measured_stops_no_other(tmp_path):
    failed = stored(tmp_path, row(1024, status=Status.FAILED), name="softmax")
    with pytest.raises(ValueError, match="no row of any sweep was measured"):
        find(tmp_path)
    fine = stored(tmp_path, row(1024, 1e-6))
    assert find(tmp_path) == ((fine,), (failed,))
    with pytest.raises(ValueError, match="has no row that was measured"):
        read(failed)
    said = report_of([tmp_path], list(read(tmp_path)), [], skipped=[failed]).notes
    assert said == ("Not checked: 1 sweep of which no shape could be measured; the reasons are in the rows.",)
    broken = tmp_path / "x.jsonl"
    broken.write_text("{")
    assert broken in find(tmp_path)[0]  # to be complained of


def test_roofs_that_were_measured_travel_with_the_samples(tmp_path):
    facts = {"fingerprint": "elsewhere", "matrix float32 FLOP/s": "1e12", "memory DRAM B/s": "2e10", "launch s": "1e-6"}
    (table,) = read(stored(tmp_path, row(1024, 1e-6), device="Some-CPU", calibration=facts))
    assert table.device.name == "Some-CPU"
    assert table.device.kind == "cpu"
    assert table.device.matrix_peak("float32") == 1e12
    assert table.device.dram_bytes_per_s == 2e10
    assert table.device.launch_latency_s == 1e-6
    wrong = stored(tmp_path, row(1024, 1e-6), device="Other-CPU", calibration={"matrix float32 FLOP/s": "fast"})
    with pytest.raises(ValueError, match=r"Other-CPU.*line 1: calibration"):
        one(wrong)


def test_a_cpu_that_was_sampled_before_it_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    where = {"device_kind": "cpu", "fingerprint": "abc", "torch_threads": "1"}
    path = stored(tmp_path, row(1024, 1e-6), device="Some-CPU", environment=where)
    with pytest.raises(ValueError, match=r"nothing is known of this CPU.*run rooflight calibrate"):
        one(path)
    roofs = Roofs(
        source="calibration",
        matrix_flops_per_s={"float32": 1e12},
        vector_flops_per_s={"float32": 1e11},
        memory=(MemoryLevel(name="DRAM", bytes_per_s=2e10),),
        threads=1,
    )
    made = Calibration(fingerprint="abc", kind="cpu", device_name="Some CPU", measured_at="2026-11-23", roofs=roofs)
    calibrations.save(made)
    assert one(path).device.dram_bytes_per_s == 2e10


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: no columns"),
        (LINEAR, "has columns but no rows"),
        ("mp,b,l,dim,F_dur(us)\n1,2,3,4,5\n", "line 1: no times"),
        ("mp,b,l,F_dur(us),B_dur(us)\n1,2,3,4,5\n", "line 1: no column dim"),
        ("mp,b,l,dim,h,F_dur(us),B_dur(us)\n1,2,3,4,5,6,7\n", "line 1: linear1 has no parameter h"),
        ("mp,b,l,l,F_dur(us),B_dur(us)\n1,2,3,4,5,6\n", "line 1: a column is there twice"),
        ("mp,b,l,dim,dur(us)\n1,2,3,4,5\n", "line 1: linear1 is timed fwd and bwd"),
        (LINEAR + "1,2,3,4,5,6\n1,2,3,4,5\n", "line 3: 5 values for 6 columns"),
        (LINEAR + "1,2,3,4,5,nan\n", r"line 2: B_dur\(us\) is nan"),
        (LINEAR + "1,2,3,4,-5,6\n", r"line 2: F_dur\(us\) is -5"),
        (LINEAR + "1,2,3,4,0,6\n", r"line 2: F_dur\(us\) is 0"),
        (LINEAR + "1,2,3,4,inf,6\n", r"line 2: F_dur\(us\) is inf"),
        (LINEAR + "1,2,3,4,5,6\n1,2,3,4,fast,6\n", r'line 3: F_dur\(us\) is "fast"'),
        (LINEAR + "1,2,3.5,4,5,6\n", "line 2: l is 3.5, which is no size"),
        (LINEAR + "1,-2,3,4,5,6\n", "line 2: b is -2"),
        (LINEAR + "1,2,3,nan,5,6\n", "line 2: dim is nan"),
        (LINEAR + "1,2,3,1e300,5,6\n", r"line 2: dim is 1e\+300"),
        ("GPU,Function,Precision\n1,2,3\n", "settings of models"),
    ],
)
def test_corrupt_files(tmp_path, text, complaint):
    path = write(tmp_path, f"{A100}_linear1_fp16", text)
    with pytest.raises(ValueError, match=complaint) as error:
        one(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_names_that_tell_nothing_and_what_holds_no_tables(tmp_path):
    for name, complaint in (
        ("samples", "has an unknown format"),
        ("NVIDIAH900_gelu_fp16", r'NVIDIAH900_gelu_fp16\.csv: unknown device "NVIDIAH900".*rooflight devices'),
        (f"{A100}_gelu_fp12", 'unknown dtype "fp12"'),
    ):
        with pytest.raises(ValueError, match=complaint):
            read(write(tmp_path, name, LINEAR + "1,2,3,4,5,6\n"))
    path = tmp_path / f"{A100}_linear1_fp16.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "empty").mkdir()
    for where, complaint in ((path, "cannot read"), ("nowhere", "there is no"), ("empty", "holds no samples")):
        with pytest.raises(ValueError, match=complaint):
            read(tmp_path / where)


def test_samplers_files_that_are_broken(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="is no file of samples"):
        one(path)
    for number, (bad, complaint) in enumerate((
        (row(1024, status=Status.FAILED), "no row that was measured"),
        (row(1024, -1.0), "line 2: fwd is -1"),
        (row(10**30, 1.0), r"line 2: dim is 1e\+30, which is no size"),
        (row(1024), "line 2: no samples of fwd"),
    ), start=1):  # fmt: skip
        with pytest.raises(ValueError, match=complaint):
            one(stored(tmp_path, bad, name=f"linear{number}"))


def test_nothing_here_needs_torch():
    code = "import sys, rooflight.prediction.lint.tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False).returncode == 0


def test_a_gzipped_bomb_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("rooflight.prediction.read.measured._ALWAYS_ALLOWED_BYTES", 1 << 20)
    for name, content in (("rows", b"a,b\n" + b"1,2\n" * (1 << 20)), ("line", b"a" * (1 << 22))):
        path = tmp_path / f"{name}.csv.gz"
        path.write_bytes(gzip.compress(content))
        assert path.stat().st_size * 200 < len(content)  # 4 MiB in a few kB
        with pytest.raises(ValueError, match=rf"cannot read .*{name}\.csv\.gz: it unpacks to more than any table"):
            sheet_of(path)


@pytest.mark.parametrize("time", ["5e-324", "1e-300", "1e300"])
def test_times_that_no_clock_counts_are_refused_where_they_are_read(tmp_path, time):
    path = write(tmp_path, f"{A100}_linear1_fp16", LINEAR + f"1,2,3,4,5,{time}\n")
    with pytest.raises(ValueError, match=r"line 2: .* which is no time"):
        one(path)
