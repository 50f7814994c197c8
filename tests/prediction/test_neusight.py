"""NeuSight's tables: which operator each row is of, and what is refused with which line."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from rooflight import devices
from rooflight.operators import registry
from rooflight.prediction.lint.findings import Rule, lint_table
from rooflight.prediction.read import find, read, read_file

COMMON = "OPName,Latency,Device,Kernel Name,Grid x"
A100, T4 = "NVIDIA A100-PCIE-40GB", "Tesla T4"
ROW = 'add,0.5,Tesla T4,"a<float, 4>(int)",1,127,168\n'


def write(folder, columns, *rows, name="add"):
    path = folder / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(f"{COMMON},{columns}\n{''.join(rows)}".encode()))
    return path


def row(op, device, latency, *sizes):
    return f'{op},{latency},{device},"a<float, 4>(int)",1,{",".join(map(str, sizes))}\n'


def test_a_table_for_each_operator_and_device(tmp_path):
    rows = (
        row("add", A100, 0.25, 127, 168),
        row("addu", T4, 0.5, 3, 4),
        row("add", T4, 2, 5, 6),
        row("add", A100, 0.125, 7, 8),
    )
    path = write(tmp_path, "B,H", *rows)
    add, scalar, there = read_file(path)
    assert (add.operator, add.kernel, add.precision, add.dtype) == ("add", "add", "fp32", "float32")
    assert add.device == devices.get("A100-PCIe-40GB")
    assert add.parameters == ("rows", "width", "scalar")
    assert add.shapes.tolist() == [[127, 168, 0], [7, 8, 0]]
    assert add.seconds.tolist() == [[0.25e-3], [0.125e-3]]
    assert add.lines.tolist() == [2, 5]
    assert add.directions == ("step",)
    assert add.label == f"{tmp_path.name} add"
    assert (scalar.operator, scalar.kernel, scalar.device.name) == ("add", "addu", "T4")
    assert scalar.shapes.tolist() == [[3, 4, 1]]
    assert there.device == scalar.device
    assert there.lines.tolist() == [4]


@pytest.mark.parametrize(
    ("op", "columns", "sizes", "operator", "shape"),
    [
        # torch.nn.Linear(N, K) on [B, M, N]
        ("linear", "B,M,N,K", (2, 3, 5, 7), "linear", {"rows": 6, "inputs": 5, "outputs": 7, "bias": 1}),
        # [B, M, N] x [B, N, K]
        ("bmm", "B,M,N,K", (2, 3, 5, 7), "batched_mm", {"b": 2, "m": 3, "n": 7, "k": 5}),
        (
            "conv",
            "B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding",
            (2, 3, 4, 5, 16, 2, 1),
            "conv2d",
            {"b": 2, "c_in": 3, "height": 16, "width": 16, "c_out": 4, "kernel": 5, "stride": 2, "padding": 1},
        ),
        ("ln", "B,H", (3, 4), "layernorm_rows", {"rows": 3, "width": 4}),
        ("softmax", "B,H", (3, 4), "softmax_rows", {"rows": 3, "width": 4}),
        ("gelu", "B,H", (3, 4), "gelu_rows", {"rows": 3, "width": 4, "tanh": 0}),
        ("relu", "B,H,large", (3, 4, "True"), "relu", {"rows": 3, "width": 4}),
        ("tanh", "B,H", (3, 4), "tanh", {"rows": 3, "width": 4}),
        ("pow", "B,H", (3, 4), "pow", {"rows": 3, "width": 4, "scalar": 0}),
        ("powu", "B,H", (3, 4), "pow", {"rows": 3, "width": 4, "scalar": 1}),
        ("divu", "B,H", (3, 4), "div", {"rows": 3, "width": 4, "scalar": 1}),
        ("mul", "B,H", (3, 4), "mul", {"rows": 3, "width": 4, "scalar": 0}),
    ],
)
def test_every_operator(tmp_path, op, columns, sizes, operator, shape):
    (table,) = read_file(write(tmp_path, columns, row(op, T4, 0.5, *sizes), name=op))
    assert table.operator == operator
    assert {name: table.shape(0)[name] for name in shape} == shape
    assert registry.find(operator).refusal(table.shape(0)) is None
    assert table.directions == registry.find(operator).directions[:1]


def test_plain_and_gzipped_files_of_a_folder(tmp_path):
    write(tmp_path, "B,H", ROW)
    (tmp_path / "mul.csv").write_text(f"{COMMON},B,H\n{ROW.replace('add', 'mul')}")
    (tmp_path / "perop.csv").write_text("Device,add,mul\nT4,1,2\n")
    (tmp_path / "empty.csv").write_text("")
    found, skipped = find(tmp_path)
    assert [path.name for path in found] == ["add.csv.gz", "mul.csv"]
    assert [path.name for path in skipped] == ["empty.csv", "perop.csv"]
    assert [table.operator for table in read(tmp_path)] == ["add", "mul"]


@pytest.mark.parametrize(
    ("columns", "rows", "complaint"),
    [
        ("B,H", "", "has columns but no rows"),
        ("B", ROW.replace(",168", ""), "line 1: no column H, which add needs"),
        ("B,B", ROW, "line 1: a column is there twice"),
        ("B,H", ROW + ROW.replace(",168", ""), "line 3: 6 values for 7 columns"),
        ("B,H", ROW.replace("0.5", "nan"), "line 2: Latency is nan, which is no time"),
        ("B,H", ROW.replace("0.5", "-0.5"), "line 2: Latency is -0.5, which is no time"),
        ("B,H", ROW.replace("0.5", "0"), "line 2: Latency is 0, which is no time"),
        ("B,H", ROW + ROW.replace("0.5", ""), 'line 3: Latency is "", which is no number'),
        ("B,H", ROW.replace("127", "12.7"), "line 2: B is 12.7, which is no size"),
        ("B,H", ROW.replace("127", "-1"), "line 2: B is -1, which is no size"),
        ("B,H", ROW.replace("127", "1e300"), r"line 2: B is 1e\+300, which is no size"),
        ("B,H", ROW.replace("add", "sub"), 'line 2: OPName is "sub": it can be linear, bmm'),
        ("B,H", ROW + ROW.replace("T4", "T9"), 'line 3: unknown device "Tesla T9".*rooflight devices'),
    ],
)
def test_corrupt_files(tmp_path, columns, rows, complaint):
    path = write(tmp_path, columns, rows)
    with pytest.raises(ValueError, match=complaint) as error:
        read_file(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_lack_a_column_of_all(tmp_path):
    path = tmp_path / "add.csv"
    path.write_text("OPName,Latency,B,H\nadd,1,2,3\n")
    with pytest.raises(ValueError, match="line 1: no column Device"):
        read_file(path)
    path.write_text("OPName,Device,B,H\nadd,Tesla T4,2,3\n")
    with pytest.raises(ValueError, match="line 1: no column Latency"):
        read_file(path)


def test_truncated_files(tmp_path):
    path = write(tmp_path, "B,H", *(row("add", T4, 0.5 + n, n, n) for n in range(1, 500)))
    whole = path.read_bytes()
    for kept in (len(whole) - 1, len(whole) // 2, 12, 3):
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=r"cannot read .*add\.csv\.gz: ") as error:
            read(tmp_path)
        assert "\n" not in str(error.value)
    path.write_bytes(b"\x1f\x8b\x08\x00" + b"\xff" * 40)
    with pytest.raises(ValueError, match="cannot read"):
        read_file(path)
    path.write_bytes(gzip.compress(b"\xff\xfe\x00\x01"))
    with pytest.raises(ValueError, match="cannot read"):
        read_file(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="has an unknown format"):
        read_file(path)


DATA = Path(os.environ.get("ROOFLIGHT_DATA", "nowhere")) / "neusight"


@pytest.mark.skipif(not DATA.is_dir(), reason="ROOFLIGHT_DATA does not point at the tables")
def test_the_measured_tables():
    tables = read(DATA / "train")
    rows = {}
    for table in tables:
        rows[table.kernel] = rows.get(table.kernel, 0) + len(table)
    # SOURCE.md
    assert rows["linear"] == 32_224
    assert rows["bmm"] == 87_623
    assert rows["conv"] == 24_662
    assert rows["ln"] == 7000
    assert {rows[name] for name in rows if name not in ("linear", "bmm", "conv", "ln")} == {8750}
    assert {table.device.name for table in tables} == {
        *("A100-PCIe-40GB", "A100-PCIe-80GB", "P100-PCIE-16GB", "P4", "T4", "V100-PCIE-32GB")
    }
    assert {table.directions[0] for table in tables} == {"fwd", "step"}


@pytest.mark.skipif(not DATA.is_dir(), reason="ROOFLIGHT_DATA does not point at the tables")
@pytest.mark.parametrize("part", ["train", "test"])
def test_nothing_measured_is_faster_than_light(part):
    for table in read(DATA / part):
        findings = lint_table(table.kept(np.arange(0, len(table), 8)))
        assert not [finding for finding in findings if finding.rule is Rule.FASTER_THAN_LIGHT], table.label
