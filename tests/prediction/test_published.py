"""NeuSight's and Vidur's tables: which operator each row is of, and what is refused with which line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from rooflight import devices
from rooflight.costs.operators import registry
from rooflight.prediction.lint.findings import Rule, lint, lint_table
from rooflight.prediction.read import find, published, read, read_file

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
    for column, text in (("Device", "OPName,Latency,B,H\nadd,1,2,3\n"), ("Latency", "OPName,Device,B,H\nadd,T4,2,3\n")):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"line 1: no column {column}"):
            read_file(path)


def test_truncated_files(tmp_path):
    path = write(tmp_path, "B,H", *(row("add", T4, 0.5 + n, n, n) for n in range(1, 500)))
    whole = path.read_bytes()
    cut = [whole[:kept] for kept in (len(whole) - 1, len(whole) // 2, 12, 3)]
    for content in (*cut, b"\x1f\x8b\x08\x00" + b"\xff" * 40, gzip.compress(b"\xff\xfe\x00\x01")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot read .*add\.csv\.gz: ") as error:
            read(tmp_path)
        assert "\n" not in str(error.value)
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
        findings = lint_table(table.subset(np.arange(0, len(table), 8)))
        assert not [finding for finding in findings if finding.rule is Rule.FASTER_THAN_LIGHT], table.label


OPS = (
    *("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj", "add"),
)
SIZES = {
    "n_head": "8",
    "n_kv_head": "2",
    "n_embd": "1024",
    "n_expanded_embd": "4096",
    "vocab_size": "32000",
    "use_gated_mlp": "True",
    "num_tokens": "96",
    "num_tensor_parallel_workers": "2",
}


def text_of(*rows, ops=OPS):
    """Op number n takes n + 1 ms by its median; other statistics are never read."""
    names = [f"time_stats.{op}.{statistic}" for op in ops for statistic in ("min", "median")]
    times = ["none" if number % 2 == 0 else f"{number // 2 + 1}.0" for number in range(len(names))]
    lines = [",".join((*times, *{**SIZES, **row}.values())) for row in rows]
    return "\n".join([",".join((*names, *SIZES)), *lines]) + "\n"


def write_of_vidur(folder, text, place="compute/a100/org/model"):
    path = folder / place / "mlp.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tables_of(folder, *rows, ops=OPS):
    return {table.kernel: table for table in read_file(write_of_vidur(folder, text_of(*rows, ops=ops)))}


def test_a_table_for_each_op(tmp_path):
    tables = tables_of(tmp_path, {}, {"num_tokens": "1", "num_tensor_parallel_workers": "1"})
    assert set(tables) == set(OPS)
    shapes = {
        "emb": ("embedding_rows", [[96, 16_000, 1024], [1, 32_000, 1024]]),
        "input_layernorm": ("rmsnorm", [[96, 1024], [1, 1024]]),
        # heads of 1024 / 8 = 128, of which a rank has (8 + 2 * 2) / 2 = 6
        "attn_pre_proj": ("linear", [[96, 1024, 768, 0], [1, 1024, 1536, 0]]),
        "attn_rope": ("attn_rope", [[96, 4, 1, 128], [1, 8, 2, 128]]),
        "attn_post_proj": ("linear", [[96, 512, 1024, 0], [1, 1024, 1024, 0]]),
        "post_attention_layernorm": ("rmsnorm", [[96, 1024], [1, 1024]]),
        # the gate and what it gates: 2 * 4096 / 2
        "mlp_up_proj": ("linear", [[96, 1024, 4096, 0], [1, 1024, 8192, 0]]),
        "mlp_act": ("mlp_act", [[96, 2048], [1, 4096]]),
        "mlp_down_proj": ("linear", [[96, 2048, 1024, 0], [1, 4096, 1024, 0]]),
        "add": ("add", [[96, 1024, 0], [1, 1024, 0]]),
    }
    for kernel, table in tables.items():
        operator, wanted = shapes[kernel]
        assert (table.operator, table.shapes.tolist()) == (operator, wanted)
        assert table.known == (kernel not in ("attn_rope", "mlp_act"))
        assert table.seconds.tolist() == [[pytest.approx((OPS.index(kernel) + 1) * 1e-3)]] * 2
        assert table.lines.tolist() == [2, 3]
        assert (table.precision, table.label) == ("fp16", f"model {kernel}")
        if table.known:
            assert registry.find(operator).refusal(table.shape(0)) is None
            assert table.directions == registry.find(operator).directions[:1]


def test_a_model_without_gates_and_with_one_norm(tmp_path):
    ops = tuple(op for op in OPS if op != "post_attention_layernorm")
    tables = tables_of(tmp_path, {"use_gated_mlp": "False"}, ops=ops)
    assert (tables["mlp_act"].operator, tables["mlp_act"].shapes.tolist()) == ("gelu_rows", [[96, 2048, 0]])
    assert tables["mlp_up_proj"].shapes.tolist() == [[96, 1024, 2048, 0]]
    # the norm may be of either kind, and there are two additions
    assert not tables["input_layernorm"].known
    assert not tables["add"].known


def test_findings_of_one_op_are_not_those_of_another_in_the_same_line(tmp_path):
    findings = lint(tables_of(tmp_path, {"num_tokens": "1024000"}).values())
    fast = {finding.place for finding in findings if finding.rule is Rule.FASTER_THAN_LIGHT}
    path = tmp_path / "compute/a100/org/model/mlp.csv"
    # 2 * 1024000 * 1024 * 4096 FLOPs at 312 TFLOP/s take 27.5 ms, and took 7; a quarter of the outputs' and half of the
    # inputs' product 3.4 ms, and took 5
    assert (path, "mlp_up_proj", 2, "fwd") in fast
    assert (path, "attn_post_proj", 2, "fwd") not in fast


def test_gpus_of_vidur_are_those_with_the_most_memory_and_the_highest_peaks_of_their_name():
    # Vidur tells a GPU by the name of a folder, and says 80 GB of the A100 and the H100 and nothing of their form. A
    # bound must hold for any part of that name and memory: that of the fastest does.
    for folder, name in published.GPUS.items():
        chosen = devices.get(name)
        candidates = [
            each
            for each in devices.all_devices()
            if each.name.lower().split("-")[0] == folder and each.dram_capacity_bytes == chosen.dram_capacity_bytes
        ]
        assert chosen in candidates
        assert all((each.dram_bytes_per_s or 0) <= (chosen.dram_bytes_per_s or 0) for each in candidates)
        assert all((each.matrix_peak("fp16") or 0) <= (chosen.matrix_peak("fp16") or 0) for each in candidates)
    assert published.GPUS == {"a100": "A100-SXM4-80GB", "h100": "H100-SXM5-80GB", "a40": "A40"}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("1.0", "nan", r"line 2: time_stats\.emb\.median is nan, which is no time"),
        ("2.0", "-2", r"line 2: time_stats\.input_layernorm\.median is -2, which is no time"),
        ("1.0", "", r'line 2: time_stats\.emb\.median is "", which is no number'),
        ("True", "1", 'line 2: use_gated_mlp is "1": it must be True or False'),
        ("num_tokens", "tokens", "line 1: no column num_tokens"),
        ("96,2", "96,0", "line 2: num_tensor_parallel_workers is 0, which is no size"),
        ("96,2", "9.5,2", "line 2: num_tokens is 9.5, which is no size"),
        ("96,2", "96", "line 2: 27 values for 28 columns"),
    ],
)
def test_corrupt_files_in_vidur(tmp_path, old, new, complaint):
    path = write_of_vidur(tmp_path, text_of({}).replace(old, new, 1))
    with pytest.raises(ValueError, match=complaint) as error:
        read_file(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_tell_too_little(tmp_path):
    with pytest.raises(ValueError, match=r"does not name its GPU: .*one of a100, h100, a40"):
        read_file(write_of_vidur(tmp_path, text_of({}), place="somewhere"))
    with pytest.raises(ValueError, match="has columns but no rows"):
        read_file(write_of_vidur(tmp_path, text_of()))
    with pytest.raises(ValueError, match=r"no column time_stats\.OP\.median"):
        read_file(write_of_vidur(tmp_path, "time_stats.other.median,num_tokens\n1,2\n"))


NETWORK = (
    "Unnamed: 0,time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node,max_devices_per_node\n"
)


def network(folder, text, place="network/a100_dgx", name="all_reduce"):
    path = folder / place / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_collectives(tmp_path):
    text = NETWORK + "0,0.043,0,16,2048,all_reduce,8,8\n1,0.05,0,4,10240,all_reduce,4,8\n"
    (table,) = read_file(network(tmp_path, text))
    assert (table.operator, table.device.name, table.precision) == ("all_reduce", "A100-SXM4-80GB", "fp16")
    assert table.parameters == ("elements", "nodes", "gpus_per_node")
    assert table.shapes.tolist() == [[1024, 2, 8], [5120, 1, 4]]  # bytes of float16
    assert table.seconds == pytest.approx(np.array([[43e-6], [50e-6]]))
    text = NETWORK.replace("all_reduce", "send_recv") + "0,0.043,0,2,2048,send_recv,1,4\n"
    (table,) = read_file(network(tmp_path, text, place="network/a100_pairwise_nvlink", name="send_recv"))
    assert (table.operator, table.kernel, table.device.name) == ("p2p", "send_recv", "A100-PCIe-80GB")
    assert table.shapes.tolist() == [[1024, 2, 1]]
    for name in published.NODES.values():
        assert devices.get(name).link_bytes_per_s


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("0,0.04,0,2,2047,all_reduce,1,8", "line 2: size is 2047, which is no whole part"),
        ("0,0.04,0,3,2048,all_reduce,2,8", "line 2: devices_per_node is 2, which is no whole part"),
        ("0,0.04,0,3,2048,all_reduce,0,8", "line 2: devices_per_node is 0, which is no whole part"),
        ("0,nan,0,2,2048,all_reduce,1,8", r"line 2: time_stats\.all_reduce\.median is nan"),
        ("0,0.04,0,2,2048,broadcast,1,8", 'line 2: collective is "broadcast": it can be all_reduce, send_recv'),
        ("0,0.04,0,2,2048,send_recv,1,8", r"line 1: no column time_stats\.send_recv\.median"),
    ],
)
def test_corrupt_collectives(tmp_path, row, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_file(network(tmp_path, NETWORK + row + "\n"))
    with pytest.raises(ValueError, match="does not name its node"):
        read_file(network(tmp_path, NETWORK + "0,0.04,0,2,2048,all_reduce,1,8\n", place="elsewhere"))


DATA_VIDUR = Path(os.environ.get("ROOFLIGHT_DATA", "nowhere")) / "vidur"


@pytest.mark.skipif(not DATA_VIDUR.is_dir(), reason="ROOFLIGHT_DATA does not point at the tables")
def test_the_measured_tables_in_vidur():
    tables = read(DATA_VIDUR / "compute")
    assert sum(map(len, tables)) == 123_696  # 11,970 rows of 10 ops, 444 of phi-2's 9
    for table in tables:
        findings = lint_table(table.subset(np.arange(0, len(table), 4)))
        assert not [finding for finding in findings if finding.rule is Rule.FASTER_THAN_LIGHT], table.label


@pytest.mark.skipif(not DATA_VIDUR.is_dir(), reason="ROOFLIGHT_DATA does not point at the tables")
def test_the_measured_collectives():
    # the two pairs' send_recv are one file, and faster than a pair's bridge of 300 GB/s a direction
    fast = {
        (table.device.name, table.kernel)
        for table in read(DATA_VIDUR / "network")
        if any(finding.rule is Rule.FASTER_THAN_LIGHT for finding in lint_table(table))
    }
    assert fast == {("A100-PCIe-80GB", "send_recv"), ("H100-NVL-94GB", "send_recv")}
