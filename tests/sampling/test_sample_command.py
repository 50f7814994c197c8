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

import pytest

from rooflight.costs.operators import registry
from rooflight.hardware.machine import cpu_load as bystander
from rooflight.hardware.machine.cpu_load import CpuTime
from rooflight.sampling.job import ProgressLog, line_of

ROOFLIGHT = (sys.executable, "-m", "rooflight")
LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]Kernel: gemm_fp32 \| Progress: 4/4=100\.00% \| Speed: \d+\.\d\ds/sample \| "
    r"Remaining: 0d0h0m0s"
)


@pytest.fixture
def restored_operators(monkeypatch):
    """What the test registers is forgotten after it."""
    registry.names()  # loads our own, so that they are among what stays
    monkeypatch.setattr(registry, "_operators", dict(registry._operators))


def test_a_cpu_that_was_never_calibrated_is_said_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    _, _, said = run("sample", "relu", "gelu", "--sweep", "test", "--cpu", "--out", tmp_path)
    assert said.count("run rooflight calibrate on this machine before rooflight fit") == 1


def test_rows_csv_and_log_are_where_estimate_train_time_has_them(ok, tmp_path):
    words = ("--cpu", "--threads", "1", "--out", tmp_path)
    assert "gemm fp32: 4 ok (4 new)" in ok("sample", "gemm", "--sweep", "test", *words)
    (rows,) = (tmp_path / "sampling_data").glob("*_gemm_fp32_1_1.jsonl")
    header, *lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert header["timing"]["cache"] == "cold"
    assert header["environment"]["torch"]
    assert len(lines) == 4
    assert all(line["status"] == "ok" and len(line["samples_s"]["step"]) >= 7 for line in lines)
    table = rows.with_suffix(".csv").read_text().splitlines()
    assert table[0] == "m,n,k,transpose_a,transpose_b,dur(us)"
    assert len(table) == 5
    (log,) = (tmp_path / "sampling_log").glob("*_gemm_fp32_1_1.txt")
    assert LINE.fullmatch(log.read_text().splitlines()[-1])

    # the same command again adds nothing
    assert "gemm fp32: 4 ok (0 new)" in ok("sample", "test", "gemm", *words)


def test_parts_and_merge_leave_threads_and_cores_as_before(ok, tmp_path):
    import torch

    before = torch.get_num_threads(), os.sched_getaffinity(0)
    words = ("--cpu", "--threads", "1", "--parts", "2", "--out", tmp_path)
    for part in ("1", "2"):
        ok("sample", "copy", "--sweep", "test", *words, "--part", part)
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before
    files = sorted((tmp_path / "sampling_data").glob("*.csv"))
    assert len(files) == 2
    assert "2 rows of 2 files" in ok("merge", *files)


def test_an_estimate_train_time_file_runs(ok, tmp_path):
    config = tmp_path / "gelu.yml"
    config.write_text(
        """{"module_name": "target_functions", "kernel_name": "gelu", "function_name": "gelu",
        "columns_name": ['mp', 'b', 'l', 'dim', 'F_dur(us)', 'B_dur(us)'], "targets": [['aten::gelu'], ['Gelu']],
        "first_n_column": 4, "starts": [1, 2, 16, 64], "steps": [2, 2, 16, 64], "ends": [4, 2, 32, 64],
        "operators": ['mul', 'mul', 'add', 'add'], "warmup_shapes": [1, 1, 16, 64], "wait": 1, "warmup": 1,
        "active": 8, "shapes": [1, 1, 16, 64], "run": "get_all"}"""
    )
    arguments = ("--config_path", config, "--precision", "fp32", "--device_num", "0", "--cpu", "--threads", "1")
    assert "gelu fp32: 6 ok (6 new)" in ok("sample", *arguments, "--out", tmp_path)
    text = config.read_text()
    files = {"get_profiler": "gelu_fp32_1_1_16_64.pt.trace.json", "run_function": None, "get_one": "csv"}
    for run, left in files.items():
        config.write_text(text.replace("get_all", run))
        out = tmp_path / run
        said = ok("sample", *arguments, "--out", out)
        found = [path for path in out.rglob("*.*") if path.is_file()]
        assert (left is None and not found) or any(path.name.endswith(str(left)) for path in found)
        if run == "get_profiler":
            assert said.startswith(f"gelu fp32: 8 runs of mp=1, b=1, l=16, dim=64 -> {found[0]} (")
        if run == "run_function":
            assert said == "gelu fp32: ran mp=1, b=1, l=16, dim=64 once on cpu; nothing was written\n"


REFUSED = {
    "flash_attn": 'unknown operator "flash_attn": did you mean flash_atten',
    "gemm --parts 4 --part 5 --cpu": "--part 5 of --parts 4",
    "gemm --budget soon": "is no time: write 90s, 5m, 2h or 1h30m",
    "gemm --precision fp17 --cpu": 'unknown dtype "fp17"',
    "copy --device-num 3 --cpu": "--device-num 3: torch sees no GPU here",
    "copy --threads 9999 --cpu": "--threads 9999: this process may use 1 to",
    "all_reduce --sweep test --cpu": "collectives run under torchrun",
}


def test_refusals_are_one_line(refused, tmp_path):
    for words, message in REFUSED.items():
        assert message in refused("sample", *words.split())
    config = tmp_path / "huge.yml"
    config.write_text(
        "{function_name: copy, columns_name: [elements, dur(us)], starts: [1], steps: [1], ends: [1000000000],"
        " operators: [add]}"
    )
    assert "copy: the sweep has 1,000,000,000 shapes: pass --yes" in refused("sample", "--config", str(config), "--cpu")
    config.write_text(config.read_text().replace("starts: [1]", "starts: [2000000000]"))
    assert "the sweep has 0 shapes" in refused("sample", "--config", str(config), "--cpu")
    assert "leave out OPERATOR and --sweep" in refused("sample", "gemm", "--config", str(config), "--cpu")


def test_list_and_help_have_what_one_needs(ok, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    listed = ok("sample", "--list")
    assert "ScaledUpperTriangMaskedSoftmax" in listed
    assert "[b, h / mp, l, l]" in listed
    assert "rooflight sample gemm sdpa --budget 5m" in ok("sample", "--help")
    assert "rooflight merge part1.jsonl" in ok("merge", "--help")


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_keeps_every_finished_row(tmp_path):
    words = ("sample", "gemm", "--budget", "60s", "--cpu", "--warm-cache", "--out", str(tmp_path))
    process = subprocess.Popen([*ROOFLIGHT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = list((tmp_path / "sampling_data").glob("*.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= 4:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "finished rows are kept in" in errors
    rows = found[0].read_text().splitlines()
    assert len(found[0].with_suffix(".csv").read_text().splitlines()) == len(rows)  # each has one line that is no row


@pytest.mark.slow
def test_collectives_under_torchrun(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ("sample", "all_reduce", "p2p", "--sweep", "test", "--cpu", "--warm-cache", "--out", str(tmp_path))
    ranks = []
    for rank in "01":
        env = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": rank}
        env = {**os.environ, **env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen([*ROOFLIGHT, *words], env=env, **pipes))
    told = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert "all_reduce fp32: 2 ok (2 new)" in told[0][0]
    assert told[1][0] == ""
    (table,) = (tmp_path / "sampling_data").glob("*_p2p_fp32_1_1.csv")
    assert table.read_text().splitlines()[0] == "elements,nodes,gpus_per_node,dur(us)"
    assert table.read_text().splitlines()[1].startswith("4096,1,2,")


def test_the_log_has_estimate_train_time_s_lines(tmp_path):
    now = [1_705_314_645.0]
    told = []
    log = ProgressLog(tmp_path / "log.txt", "flash_atten_fp16", 1000, progress=told.append, now=lambda: now[0])
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
    tail = "Progress: 1 | Speed: 0.50s/sample | Remaining: 1d3h46m40s"
    assert line_of(0.0, "k", 1, None, 0.5, 100_000.0).endswith(tail)


USER_OPERATOR = """
from rooflight.costs.operators.operator import STEP, Work
from rooflight.costs.operators.registry import operator
from rooflight.costs.operators.signatures import map_one, tensor
from rooflight.costs.operators.sizes import Size


@operator("tanh of [size]", directions=STEP, size=Size())
class my_tanh:
    def work(self, shape, dtype):
        return Work(forward=(map_one("aten::tanh", tensor(dtype, shape["size"])),))

    def run(self, torch, shape, x):
        return x.tanh()
"""


@pytest.mark.usefixtures("restored_operators")
def test_a_user_s_operator_is_one_file(ok, refused, tmp_path):
    file = tmp_path / "my_ops.py"
    file.write_text(USER_OPERATOR)
    common = ("--cpu", "--out", tmp_path, "--threads", "1")
    assert "my_tanh fp32: 2 ok (2 new)" in ok("sample", f"{file}:my_tanh", "--sweep", "test", *common)
    assert "my_tanh fp32: 7 ok (5 new)" in ok("sample", str(file), "--sweep", "collect", *common)
    assert "registers my_tanh, not my_sin" in refused("sample", f"{file}:my_sin")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    assert "broken.py raised ZeroDivisionError: division by zero" in refused("sample", broken)
    assert "no such file" in refused("sample", "gone.py:op")


SWEEP = ("sample", "gelu", "--precision", "fp32", "--cpu", "--budget", "1s", "--threads", "1", "--time-box", "0.1")


@pytest.mark.parametrize(("share", "said"), [(0.38, "38.0%"), (0.05, "5.0%"), (0.04, None), (0.0, None), (None, None)])
def test_a_busy_machine_is_named(ok, tmp_path, monkeypatch, share, said):
    start = CpuTime(wall_s=0, own_s=0, all_s=0, cores=1)
    end = None if share is None else CpuTime(wall_s=1, own_s=0, all_s=share, cores=1)
    moments = iter((start, end))
    monkeypatch.setattr(bystander, "cpu_time", lambda: next(moments))
    out = ok(*SWEEP, "--out", tmp_path)
    assert out.count("\n") == 1
    assert ("other programs took" in out) == (said is not None)
    if said is not None:
        assert f"; other programs took {said} of the CPU, so these times may be too long: sample again" in out
