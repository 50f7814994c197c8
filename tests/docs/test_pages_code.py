"""The code of the five pages that the project grew from (``pages_code.txt``) runs as it stands, but for the names
that ``docs/reference/pages.md`` maps.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from measured_tables import A100_FILE, write_table
from tracked import CPU, Model, calibrate_by_hand, loss_of, tokens

from rooflight.compiling import HotPathDetector, hot_report
from rooflight.hardware.machine import timing as clocks
from rooflight.inference import release_active_profiler
from rooflight.sampling import estimate_train_time
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.compiling.bench import benchmark
from rooflight.studies.compiling.bench.child import Request
from rooflight.studies.compiling.bench.result import Check, Trial
from rooflight.studies.compiling.workloads import WORKLOADS
from rooflight.tracking import add_sol_arguments, initialize_sol, shutdown_sol

HERE = Path(__file__).parent
SEEDS = Path(os.environ.get("ROOFLIGHT_DATA", HERE.parents[2] / "shared" / "data")).parent / "seeds"
REFERENCE = HERE.parents[1] / "docs" / "reference"
DOCUMENT = (REFERENCE / "pages.md").read_text()
CODE = dict(re.findall(r"^## ([\d.]+)\n\n```\w*\n(.*?)^```$", (HERE / "pages_code.txt").read_text(), re.M | re.S))
NAMES = re.findall(r"^\| `(.+?)` \| `(.*?)` \|$", DOCUMENT.partition("## Names")[2].partition("\n## ")[0], re.M)


def ours(text: str) -> str:
    """Code of a page with the names that pages.md gives for its names."""
    for theirs, name in NAMES:
        text = text.replace(theirs, name)
    return text


def python(block: str, **names: Any) -> dict[str, Any]:
    """The names after a block of Python has run among these."""
    names["__name__"] = "a_program"
    exec(compile(ours(CODE[block]), f"page {block}", "exec"), names)
    return names


def settings(block: str, **changed: Any) -> str:
    """A block of YAML, some keys of it changed."""
    return json.dumps({**yaml.safe_load(CODE[block]), **changed}) if changed else CODE[block]


class Command(NamedTuple):
    program: str
    folder: Path
    devices: str
    words: list[str]


@pytest.fixture
def shell(tmp_path):
    """What a block runs when bash runs it: a function of its name and the folder it runs in."""
    programs, log = tmp_path / "programs", tmp_path / "commands"
    programs.mkdir()
    for name in ("rooflight", "python"):
        script = programs / name
        script.write_text(
            f'#!/bin/bash\nline=$(printf "%s\\x1f" {name} "$PWD" "$CUDA_VISIBLE_DEVICES" "$@")\necho "$line" >> {log}\n'
        )
        script.chmod(0o755)

    def run(block: str, folder: Path) -> list[Command]:
        log.write_text("")
        variables = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(["bash", "-e", "-c", ours(CODE[block])], cwd=folder, env=variables, check=True)
        ran = [line.split("\x1f")[:-1] for line in log.read_text().splitlines()]
        return [Command(words[0], Path(words[1]), words[2], words[3:]) for words in ran]

    return run


def test_the_code_is_the_pages_and_every_block_has_a_row():
    rows = [row["block"] for row in csv.DictReader((REFERENCE / "pages_blocks.csv").read_text().splitlines())]
    tests = Path(__file__).read_text()
    assert all(f'"{block}"' in tests for block in CODE)
    assert set(CODE) <= set(rows)
    if not SEEDS.is_dir():
        pytest.skip("the pages are not here")
    fenced = re.compile(r"^( *)```\w*\n(.*?)^ *```$", re.M | re.S)
    for page in sorted(SEEDS.glob("*.txt")):
        for number, found in enumerate(fenced.finditer(page.read_text()), start=1):
            block = f"{page.name[:3]}.{number}"
            assert block in rows
            assert CODE.get(block, textwrap.dedent(found[2])) == textwrap.dedent(found[2])


# -- 000: the estimator ------------------------------------------------------------------------------------------------


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    """The pages name no device: they take this machine, which must not be measured for half a minute."""
    calibrate_by_hand(tmp_path / "cache", monkeypatch)
    yield
    shutdown_sol()


def test_standalone_usage(calibrated, capsys):
    names = python("000.2", model=Model(), input_tokens=tokens(), loss_fn=loss_of, targets=tokens())
    assert names["loss"].requires_grad
    report, summary = capsys.readouterr().out.split("Speed of light")[1:]
    assert CPU.name in report
    for title in ("By phase", "By layer type", "By function", "Top", "Linear", "LayerNorm", "Embedding", "layer_norm"):
        assert title in report
    for row in ("linear", "layer_norm", "cross_entropy", "layers.0.up"):
        assert row in summary


def test_flags_of_megatron_rl(calibrated):
    args = add_sol_arguments(argparse.ArgumentParser()).parse_args(shlex.split(CODE["000.3"], comments=True))
    assert args.rl_sol_report_interval == 100
    assert initialize_sol(Model(), args) is not None


# -- 001: sampling -----------------------------------------------------------------------------------------------------

SMALL = {
    "starts": [1, 1, 2, 4, 8],
    "ends": [1, 1, 2, 8, 16],
    "steps": [2, 2, 8, 4, 8],
    "warmup_shapes": [1, 1, 2, 4, 8],
}


@pytest.fixture
def sampling(tmp_path, monkeypatch):
    """The folder that the page runs its commands in, with its configuration, of four small shapes; a function of a
    command that runs it here.
    """
    monkeypatch.setattr(clocks, "data_caches", tuple)  # a large server's caches take half a second to empty
    folder = tmp_path / "src" / "estimate_train_time" / "kernel_sampling"
    folder.mkdir(parents=True)
    for place in ("data/configs/kernel_sampling/test", "data/configs/kernel_sampling/collect"):
        put(folder.parent / place / "flash_atten.yml", settings("001.5", **SMALL))
    put(folder / "configs" / "collect" / "flash_atten.yml", settings("001.5", **SMALL))
    return folder


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_configuration_is_the_sweep_that_the_page_says(tmp_path):
    config = estimate_train_time.load(put(tmp_path / "flash_atten.yml", CODE["001.5"]))
    assert config.grid.size == 5 * 2 * 9 * 9 * 13  # mp 1..16, b 4, 8, h 16..80, l 1024..5120, dim 2048..8192
    assert [config.grid[number]["dim"] for number in (0, 1, 12)] == [2048, 2560, 8192]
    assert (config.wait, config.warmup, config.active, config.run) == (2, 2, 10, "get_all")


@pytest.mark.parametrize(("block", "files"), [("001.6", 1), ("001.7", 1), ("001.8", 2), ("001.9", 4)])
def test_a_command_of_sampling(block, files, shell, sampling, tmp_path, ok, monkeypatch):
    root = sampling if block == "001.8" else tmp_path
    commands = shell(block, root)
    assert len(commands) == files
    assert sorted(command.devices for command in commands) == ([""] if files == 1 else [*map(str, range(files))])
    for command in sorted(commands):
        monkeypatch.chdir(command.folder)
        assert "flash_atten fp16: " in ok(*command.words)
    monkeypatch.chdir(tmp_path)
    tables = sorted((sampling / "sampling_data").glob("*.csv"))
    assert [re.sub(r"^.*?_", "", path.name) for path in tables] == [
        f"flash_atten_fp16_{4 if files > 1 else 1}_{part}.csv" for part in range(1, files + 1)
    ]
    assert {*rows_of(tables[0])[0]} == {"mp", "b", "h", "l", "dim", "F_dur(us)", "B_dur(us)"}
    (log, *_) = sorted((sampling / "sampling_log").glob("*.txt"))
    line = log.read_text().splitlines()[-1]
    said = (
        r"\[[\d-]+ [\d:]+\]Kernel: flash_atten_fp16 \| Progress: \d/\d=[\d.]+% \| Speed: [\d.]+s/sample \| Remaining: "
    )
    assert re.fullmatch(said + r"0d0h0m\ds", line)


def test_parts_are_merged_as_pandas_merges_them(tmp_path, monkeypatch, ok):
    pytest.importorskip("pandas")
    heads = "mp,b,h,l,dim,F_dur(us),B_dur(us)\n"
    for part, rows in enumerate(
        ("1,8,16,1024,2048,90,180\n1,4,16,1024,2048,45.2,89.3\n", "1,4,16,1024,2048,45.2,89.3\n")
    ):
        put(tmp_path / "sampling_data" / f"{A100_FILE}_flash_atten_fp16_2_{part + 1}.csv", heads + rows)
    monkeypatch.chdir(tmp_path)
    python("001.14")
    merged = tmp_path / f"{A100_FILE}_flash_atten_fp16.csv"
    ok("merge", *(tmp_path / "sampling_data").glob("*_flash_atten_*.csv"), "--out", tmp_path / "ours.csv")
    theirs, mine = (
        [list(map(float, row.values())) for row in rows_of(path)] for path in (merged, tmp_path / "ours.csv")
    )
    assert theirs == mine == [[1, 4, 16, 1024, 2048, 45.2, 89.3], [1, 8, 16, 1024, 2048, 90, 180]]


def test_the_predictor_learns_from_the_folder_and_answers(tmp_path, monkeypatch):
    shapes = [(1, b, h, l, dim) for b in (1, 4) for h in (16, 32) for l in (1024, 2048, 4096) for dim in (2048, 4096)]
    write_table(tmp_path / "path" / "to" / "data", "flash_atten", shapes)
    monkeypatch.chdir(tmp_path)
    result = python("001.15")["result"]
    assert result == pytest.approx(2 * 4 * 4 * 2048**2 * 4096 / 312e12 * 1e6, rel=0.02)  # twice the bound, in µs


OPERATION = """
import numpy as np
import torch
from torch.profiler import record_function

class my_operation_(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        with record_function("my_op_kernel_name"):
            return x * 2

    @staticmethod
    def backward(context, gradient):
        with record_function("my_op_backward"):
            return gradient * 2

my_operation = my_operation_.apply
"""


def test_a_custom_operator_from_its_function_to_its_table(shell, sampling, tmp_path, ok, monkeypatch):
    put(sampling / "target_functions.py", OPERATION + ours(CODE["001.16"]))
    encoder, predictor = (python(block, np=np)["my_custom_op"] for block in ("001.17", "001.18"))
    assert predictor(encoder([2, 4, 16, 1024, 2048])).tolist() == [4 * 1024, 2048]
    assert estimate_train_time.load(put(sampling / "whole.yml", CODE["001.19"])).grid.size == 5 * 2 * 9 * 13
    small = {
        "starts": [1, 4, 4, 8],
        "ends": [1, 8, 4, 8],
        "warmup_shapes": [1, 4, 4, 8],
        "module_name": "target_functions",
    }
    config = sampling.parent / "data" / "configs" / "kernel_sampling" / "collect" / "my_custom_op.yml"
    put(config, settings("001.19", **small))
    put(config.parent / "target_functions.py", (sampling / "target_functions.py").read_text())
    put(config.parent / "layer_input_to_predictor_input.py", "import numpy as np\n\n" + ours(CODE["001.18"]))
    (command,) = shell("001.20", tmp_path)
    monkeypatch.chdir(command.folder)
    assert "my_custom_op fp16: 2 ok (2 new)" in ok(*command.words)
    monkeypatch.chdir(tmp_path)
    (table,) = (sampling / "sampling_data").glob("*_my_custom_op_fp16_1_1.csv")
    assert all(float(row["F_dur(us)"]) > 0 and float(row["B_dur(us)"]) > 0 for row in rows_of(table))


@pytest.mark.parametrize("block", ["001.21", "001.22", "001.23"])
def test_what_the_page_says_of_troubles_is_accepted(block, tmp_path):
    changed = yaml.safe_load(CODE[block].replace(",  #", "  #"))
    ours = {"module_name": "rooflight.operators", "function_name": "linear1"}
    config = estimate_train_time.load(put(tmp_path / "sweep.yml", settings("001.19", **ours, **changed)))
    assert config.grid.size == (4 * 1 * 3 * 5 if block == "001.21" else 5 * 2 * 9 * 13)
    assert config.run == ("get_profiler" if block == "001.23" else "get_all")


# -- 002: compiling ----------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch):
    """What compile-bench asks to run, each answered at once."""
    asked: list[Request] = []

    def answered(program, request, *_, **__):
        asked.append(request)
        trial = Trial(samples_s=(1e-3,) * request.iterations)
        return Check(result=Difference(elements=1)) if program.__name__ == "checked" else trial

    monkeypatch.setattr(benchmark, "answered", answered)
    return asked


@pytest.mark.parametrize("block", ["002.1", "002.6"])
def test_commands_of_the_benchmark(block, shell, programs, tmp_path, ok, calibrated, capsys):
    (tmp_path / "benchmarks").mkdir()
    commands = shell(block, tmp_path)
    assert [command.program for command in commands] == ["rooflight"] + ["rooflight", "python"] * (block == "002.6")
    for command in commands:
        if command.program == "python":
            capsys.readouterr()
            exec(command.words[1], {})
            assert "Simple Matmul" in capsys.readouterr().out.partition("What compiling costs and brings")[2]
        else:
            ok(*command.words, "--no-bounds")
    iterations = [(each.target, each.iterations) for each in programs if each.compile_mode is None]
    whole = [(name, 100) for name in WORKLOADS]
    quick, one = [(name, 20) for name in WORKLOADS], [("simple-matmul-chain", 50)]
    assert iterations == (whole if block == "002.1" else [*whole, *quick, *one])


def test_detection_is_turned_on_in_one_line():
    steps = []
    names = python("002.3", train_step=lambda: steps.append(1))
    try:
        assert len(steps) == 100
        assert "Shorter loops stay eager" in hot_report().conclusion
    finally:
        names["enable_hot_path_detection"]().disable()


def test_a_detector_answers_after_ten_iterations(monkeypatch):
    answers = []
    end = HotPathDetector.end_iteration
    monkeypatch.setattr(HotPathDetector, "end_iteration", lambda self: answers.append(end(self)) or answers[-1])
    python("002.4")
    assert answers == [False] * 9 + [True] * 91


def test_a_dispatcher_has_a_detector_for_each_client():
    dispatcher = python("002.5")["Dispatcher"]()
    told = dispatcher.enabled = []
    type(dispatcher).enable_compilation_for_client = lambda self, client: self.enabled.append(client)
    for number in range(40):
        for client, kinds in (("loops", 2), ("wanders", 1000)):
            kind = number % kinds
            dispatcher.handle_operation(client, SimpleNamespace(op_type=f"op{kind}", input_shape=(64, 64)))
    assert set(told) == {"loops"}
    assert len(dispatcher.detectors) == 2


# -- 003: decode steps -------------------------------------------------------------------------------------------------


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "profiler_out" / "demo"
    release_active_profiler()


class Engine:
    def __init__(self) -> None:
        self.model = torch.nn.Module()

    def decode(self) -> None:
        """Nothing."""


def test_the_execution_flow(in_a_folder):
    flow = python("003.2")
    python("003.3", **flow)
    engine = Engine()
    exec(ours(CODE["003.4"]).replace("# ", ""), {**flow, "model": engine.model, "engine": engine})
    flow |= {"batch_size": 4, "num_steps": 3, "kv_len": [10, 20, 30, 40], "n_accepted": 5}
    for _ in range(3):
        for block in ("003.5", "003.6", "003.7"):
            python(block, **flow)
    flow["prof"].detach()
    for block in ("003.8", "003.9"):
        python(block, **flow)
    summary = json.loads((in_a_folder / "summary.json").read_text())
    assert (summary["stats"]["steps"], summary["stats"]["tokens_total"]) == (6, 30)  # the first run warms up
    assert set(summary["buckets_model_avg_ms"]) >= {"attn.compute", "attn.rope"}
    assert json.loads((in_a_folder / "config.json").read_text())["profiler_cfg"]["num_total_runs"] == 3


def test_the_imports():
    names = python("003.10")
    assert {"Profiler", "ProfilerConfig", "get_active_profiler", "cpu_bucket_timer"} <= set(names)


def test_the_minimal_example(in_a_folder, capsys):
    """Of its two runs it makes one, which is the warm-up run."""
    python("003.11")
    assert {"config.json", "summary.json", "report.md"} <= {path.name for path in in_a_folder.iterdir()}
    summary = json.loads((in_a_folder / "summary.json").read_text())
    assert summary["stats"]["steps"] == 0
    assert summary["stats"]["mean_ms"] is summary["unattributed_model_ms"] is None
    assert summary["runs"] == []
    said = "No step was measured: the only run was a warm-up run (warmup_runs=1)"
    assert said in (in_a_folder / "report.md").read_text().replace("\\", "")
    assert said in capsys.readouterr().out
