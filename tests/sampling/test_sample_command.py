"""``rooflight sample`` and ``rooflight merge`` as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rooflight.sampling.log import Progress, line_of

PATH = Path(sys.executable).parent
LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]Kernel: gemm_fp32 \| Progress: 4/4=100\.00% \| Speed: \d+\.\d\ds/sample \| "
    r"Remaining: 0d0h0m0s"
)


def rooflight(*arguments: str, check: bool = True, env: dict[str, str] | None = None):
    done = subprocess.run(
        [sys.executable, "-m", "rooflight", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def refused(*arguments: str, code: int = 2) -> str:
    done = rooflight(*arguments, check=False)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sampled")
    done = rooflight("sample", "gemm", "--sweep", "test", "--cpu", "--threads", "1", "--out", str(out))
    assert "gemm fp32: 4 ok (4 new)" in done.stdout
    return out


def test_rows_csv_and_log_are_where_the_page_has_them(sampled):
    (rows,) = (sampled / "sampling_data").glob("*_gemm_fp32_1_1.jsonl")
    header, *lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert header["timing"]["cache"] == "cold"
    assert header["environment"]["torch"]
    assert len(lines) == 4
    assert all(line["status"] == "ok" and len(line["samples_s"]["step"]) >= 7 for line in lines)
    table = rows.with_suffix(".csv").read_text().splitlines()
    assert table[0] == "m,n,k,transpose_a,transpose_b,dur(us)"
    assert len(table) == 5
    (log,) = (sampled / "sampling_log").glob("*_gemm_fp32_1_1.txt")
    assert LINE.fullmatch(log.read_text().splitlines()[-1])


def test_the_same_command_again_adds_nothing(sampled):
    done = rooflight("sample", "test", "gemm", "--cpu", "--threads", "1", "--out", str(sampled))
    assert "gemm fp32: 4 ok (0 new)" in done.stdout


def test_parts_and_merge(tmp_path):
    for part in ("1", "2"):
        rooflight("sample", "copy", "--sweep", "test", "--cpu", "--parts", "2", "--part", part, "--out", str(tmp_path))
    files = sorted(map(str, (tmp_path / "sampling_data").glob("*.csv")))
    assert len(files) == 2
    assert "2 rows of 2 files" in rooflight("merge", *files).stdout


def test_the_page_s_file_runs(tmp_path):
    config = tmp_path / "gelu.yml"
    config.write_text(
        """{"module_name": "target_functions", "kernel_name": "gelu", "function_name": "gelu",
        "columns_name": ['mp', 'b', 'l', 'dim', 'F_dur(us)', 'B_dur(us)'], "targets": [['aten::gelu'], ['Gelu']],
        "first_n_column": 4, "starts": [1, 2, 16, 64], "steps": [2, 2, 16, 64], "ends": [4, 2, 32, 64],
        "operators": ['mul', 'mul', 'add', 'add'], "warmup_shapes": [1, 1, 16, 64], "wait": 1, "warmup": 1,
        "active": 8, "shapes": [1, 1, 16, 64], "run": "get_all"}"""
    )
    arguments = ("--config_path", str(config), "--precision", "fp32", "--device_num", "0", "--cpu")
    assert "gelu fp32: 6 ok (6 new)" in rooflight("sample", *arguments, "--out", str(tmp_path)).stdout
    text = config.read_text()
    for run, left in (("get_profiler", "gelu_fp32_trace.json"), ("run_function", None), ("get_one", "csv")):
        config.write_text(text.replace("get_all", run))
        out = tmp_path / run
        rooflight("sample", *arguments, "--out", str(out))
        found = [path.name for path in out.rglob("*.*") if path.is_file()]
        assert (left is None and not found) or any(name.endswith(str(left)) for name in found)


def test_refusals_are_one_line(tmp_path):
    assert 'unknown operator "flash_attn": did you mean flash_atten' in refused("sample", "flash_attn")
    assert "--part 5 of --parts 4" in refused("sample", "gemm", "--parts", "4", "--part", "5", "--cpu")
    assert "is no time: write 90s, 5m or 2h" in refused("sample", "gemm", "--budget", "soon")
    assert 'unknown dtype "fp17"' in refused("sample", "gemm", "--precision", "fp17", "--cpu")
    assert "--device-num 3: torch sees no GPU here" in refused("sample", "copy", "--device-num", "3", "--cpu")
    assert "--threads 9999: this process may use 1 to" in refused("sample", "copy", "--threads", "9999", "--cpu")
    assert "collectives run under torchrun" in refused("sample", "all_reduce", "--sweep", "test", "--cpu")
    assert "--submit is for --executor slurm" in refused("sample", "gemm", "--submit", "--cpu")
    config = tmp_path / "huge.yml"
    config.write_text(
        "{function_name: copy, columns_name: [elements, dur(us)], starts: [1], steps: [1], ends: [1000000000],"
        " operators: [add]}"
    )
    assert "copy: the sweep has 1,000,000,000 shapes: pass --yes" in refused("sample", "--config", str(config), "--cpu")
    config.write_text(config.read_text().replace("starts: [1]", "starts: [2000000000]"))
    assert "the sweep has 0 shapes" in refused("sample", "--config", str(config), "--cpu")
    assert "leave out OPERATOR and --sweep" in refused("sample", "gemm", "--config", str(config), "--cpu")


def test_list_and_help_have_what_one_needs():
    listed = rooflight("sample", "--list", env={"COLUMNS": "200"}).stdout
    assert "ScaledUpperTriangMaskedSoftmax" in listed
    assert "[b, h / mp, l, l]" in listed
    assert "rooflight sample gemm sdpa --budget 5m" in rooflight("sample", "--help").stdout
    assert "rooflight merge part1.jsonl" in rooflight("merge", "--help").stdout


@pytest.fixture
def heard_ctrl_c():
    """A process that is started hears Ctrl-C, also where the tests were started in the background, which does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_keeps_every_finished_row(tmp_path):
    arguments = [
        sys.executable,
        "-m",
        "rooflight",
        "sample",
        "gemm",
        "--budget",
        "60s",
        "--cpu",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = list((tmp_path / "sampling_data").glob("*.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= 4:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "nothing was left half-written" in errors
    rows = found[0].read_text().splitlines()
    assert len(found[0].with_suffix(".csv").read_text().splitlines()) == len(rows)  # each has one line that is no row


def test_collectives_under_torchrun(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rooflight",
                "sample",
                "all_reduce",
                "p2p",
                "--sweep",
                "test",
                "--cpu",
                "--out",
                str(tmp_path),
            ],
            env={
                **os.environ,
                **{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    told = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert "all_reduce fp32: 2 ok (2 new)" in told[0][0]
    assert told[1][0] == ""
    (table,) = (tmp_path / "sampling_data").glob("*_p2p_fp32_1_1.csv")
    assert table.read_text().splitlines()[0] == "elements,nodes,gpus_per_node,dur(us)"
    assert table.read_text().splitlines()[1].startswith("4096,1,2,")


def test_the_log_has_the_page_s_lines(tmp_path):
    now = [1_705_314_645.0]
    told = []
    log = Progress(tmp_path / "log.txt", "flash_atten_fp16", 1000, tell=told.append, now=lambda: now[0])
    for done in range(1, 101):
        now[0] += 1.23
        log.advance(done)
    log.end(100)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines == told
    # 900 shapes at 1.23 s are 1107 s
    tail = "]Kernel: flash_atten_fp16 | Progress: 100/1000=10.00% | Speed: 1.23s/sample | Remaining: 0d0h18m27s"
    assert lines[-1].endswith(tail)
    assert len(lines) == 100
    assert line_of(0.0, "k", 1, None, 0.5, 100_000.0).endswith(
        "Progress: 1 | Speed: 0.50s/sample | Remaining: 1d3h46m40s"
    )


OWN = """
from rooflight.operators.operator import STEP, Operator, Prepared, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import map_one, tensor
from rooflight.operators.sizes import Size


def work(shape, dtype):
    return Work(forward=(map_one("aten::tanh", tensor(dtype, shape["size"])),))


def prepare(torch, shape, dtype, device):
    x = torch.rand(shape["size"], dtype=getattr(torch, dtype), device=device)
    return Prepared(forward=x.tanh)


register(
    Operator(
        name="my_tanh", summary="tanh of [size]", sizes={"size": Size()},
        work=work, prepare=prepare, check=lambda shape: None, directions=STEP,
    )
)
"""


def test_an_operator_of_one_s_own_is_one_file(tmp_path):
    file = tmp_path / "my_ops.py"
    file.write_text(OWN)
    common = ("--cpu", "--out", str(tmp_path), "--threads", "1")
    assert "my_tanh fp32: 2 ok (2 new)" in rooflight("sample", f"{file}:my_tanh", "--sweep", "test", *common).stdout
    assert "my_tanh fp32: 7 ok (5 new)" in rooflight("sample", str(file), "--sweep", "collect", *common).stdout
    assert "registers my_tanh, not my_sin" in refused("sample", f"{file}:my_sin")
    file.write_text("1 / 0")
    assert "my_ops.py raised ZeroDivisionError: division by zero" in refused("sample", str(file))
    assert "no such file" in refused("sample", "gone.py:op")
