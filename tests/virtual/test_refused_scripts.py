"""What cannot run on a GPU that is not there: each says why, with the line of the script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rooflight as rl
from rooflight.front import elsewhere
from rooflight.front.device import find_device
from rooflight.sources.capture.run.elsewhere import seen_of

MODEL = """import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 8, device=DEVICE)).sum().backward()
    optimizer.step()
"""
ON = ("--on", "H100-SXM5-80GB")
MIXED = "Expected all tensors to be on the same device, but found"


def words(script, *options):
    return [sys.executable, "-m", "rooflight", "run", "--save", "a.session", *options, script]


def run_text(tmp_path, text, *options, device="cuda", code=0):
    """What a script prints, and what is said of it."""
    (tmp_path / "it.py").write_text(text.replace("DEVICE", repr(device)))
    command = words("it.py", *ON, "--json", "a.json", *options)
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert run.returncode == code, run.stderr
    return run.stdout, " ".join(run.stderr.split())


def test_what_is_refused_says_the_line(tmp_path):
    script = Path(__file__).with_name("refused_program.py")
    command = words(str(script), *ON, "--json", "a.json")
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stderr
    *lines, imported = run.stdout.splitlines()
    assert lines == [
        "virtual/refused_program.py:12 compiles a CUDA extension, which only a GPU can run: leave it out",
        "virtual/refused_program.py:12 compiles a CUDA extension, which only a GPU can run: leave it out",
        "virtual/refused_program.py:12 sends a tensor of the device to another process, for which it takes a GPU: "
        "send a copy on the host",
        "virtual/refused_program.py:31 asks again and again for a number of the device, which only a GPU has, "
        "and no answer ends its loop: limit it",
        "200",
        "1.0",
        "0 8 False",
        "virtual/refused_program.py:19: Expected all tensors to be on the same device, but found at least two devices, "
        "cuda:0 and cpu!",
        *(f"virtual/refused_program.py:{line}: {MIXED} cpu and cuda:0" for line in (19, 19, 19, 20)),
        "virtual/refused_program.py:12: can't convert cuda:0 device type tensor to numpy: .cpu() first",
        "virtual/refused_program.py:20 asks for cuda:1: say --gpus 2, or more",
        "virtual/refused_program.py:21 asks for cuda:2: say --gpus 3, or more",
        *(f"torch.Size([{size}])" for size in (4, 4, 2, 3, 2)),
        "[1. 1. 1. 1.]",
    ]
    assert "apex" in imported
    rows = {
        (row["what"], row["answer"]): row for row in json.loads((tmp_path / "a.json").read_text())["run"]["assumed"]
    }
    assert rows["apex, which is compiled for CUDA", "not here"]["where"]["line"] == 56
    assert rows["an address of the device", "one that only tells tensors apart"]["times"] == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on", "EPYC-9654"), "unknown device"),
        ((*ON, "--gpus", "0"), "greater than or equal to 1"),
        ((*ON, "--gpus", "4", "--nodes", "2", "--rank", "8"), "--rank 8: there are 8, from 0"),
        (("--gpus", "2"), "no effect without --on"),
    ],
)
def test_devices_and_ranks_that_cannot_be(tmp_path, options, said):
    (tmp_path / "it.py").write_text("")
    run = subprocess.run(words("it.py", *options), check=False, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 2
    assert said in run.stderr


def test_a_device_without_a_gpu():
    cpu = replace(find_device("H100-SXM5-80GB"), kind="cpu", name="a CPU")
    with pytest.raises(ValueError, match="--on a CPU: a script sees no GPU there"):
        seen_of(cpu)


def test_a_script_that_needs_only_the_cpu(tmp_path):
    _, said = run_text(tmp_path, MODEL + "for _ in range(5): step()\n", device="cpu")
    assert "it.py put nothing on the GPU: its steps run on the CPU" in said
    assert not json.loads((tmp_path / "a.json").read_text())["run"]["on"]


@pytest.mark.slow
def test_a_script_that_ends_before_a_step(tmp_path):
    _, said = run_text(tmp_path, MODEL + "print(model)\n")
    assert "No step was found in it.py: it made no call of a module, backward pass or optimizer step." in said


def test_a_script_that_needs_a_library_built_for_cuda(tmp_path):
    _, said = run_text(tmp_path, "import xformers.ops\n", code=1)
    assert "it.py needs xformers, which is compiled for CUDA (it.py:1): it ended with exit code 1 before" in said


@pytest.mark.slow
def test_a_syntax_error_has_the_scripts_own_traceback(tmp_path):
    _, said = run_text(tmp_path, "def f(:\n", code=1)
    assert said.startswith('File "')
    assert "rooflight" not in said.split("SyntaxError")[0].replace(str(tmp_path), "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["loss = model(torch.randn(4, 8, device=DEVICE)).sum()\n", "model(torch.ones(1, 8).cuda()).sum().backward()\n"],
)
def test_a_script_that_dies_in_its_first_step(tmp_path, text):
    _, said = run_text(tmp_path, MODEL + text + "raise RuntimeError('of its own')\n", code=1)
    assert "it.py ended with exit code 1 in its first step: what follows is of a part of it. it.py:9 raised" in said
    assert "rooflight" not in said.split("Speed of light")[0].replace(str(tmp_path), "")


@pytest.mark.slow
def test_a_script_that_reads_at_an_address_of_the_device(tmp_path):
    text = "import ctypes, torch\nx = torch.ones(4, device=DEVICE)\nprint(ctypes.c_float.from_address(x.data_ptr()))\n"
    _, said = run_text(tmp_path, text, code=1)
    assert said.endswith(
        "it.py was killed by signal 11, as where it reads at an address of the device, and left no session: see it.py:3"
    )
    assert not list(tmp_path.glob("*.faults"))


@pytest.mark.parametrize(
    ("number", "said"), [(9, "9, as where memory runs out"), (11, "11, as where it reads at an"), (15, "15, and left")]
)
def test_a_script_that_is_killed(tmp_path, monkeypatch, number, said):
    monkeypatch.setattr(elsewhere, "_wait", lambda _: -number)
    with pytest.raises(RuntimeError, match=f"was killed by signal {said}"):
        rl.run(tmp_path / "it.py", on="H100-SXM5-80GB")


@pytest.mark.slow
def test_a_queue_to_another_process(tmp_path):
    """The process that waits for what cannot be sent is ended too, or this would wait for it."""
    text = (
        "import torch, torch.multiprocessing as mp\n"
        "queue = mp.Queue()\n"
        "mp.Process(target=queue.get).start()\n"
        "queue.put(torch.ones(3, device=DEVICE))\n"
    )
    _, said = run_text(tmp_path, text, code=1)
    assert (
        "No step was found in it.py, which ended with exit code 1: it.py:4 sends a tensor of the device to another "
        "process, for which it takes a GPU: send a copy on the host." in said
    )


@pytest.mark.slow
def test_ctrl_c_answers_for_what_was_recorded(tmp_path):
    (tmp_path / "it.py").write_text(
        (MODEL + "step()\nprint('now', flush=True)\nimport time\ntime.sleep(60)\n").replace("DEVICE", "'cuda'")
    )
    with subprocess.Popen(
        words("it.py", *ON), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "now\n"
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=400)
    assert "A step is one call of SGD.step (it.py:7)" in " ".join(said.split())


@pytest.mark.slow
def test_processes_that_a_script_starts(tmp_path):
    """The one of the rank that is asked for is recorded; its layer has 8 + 2 rows."""
    printed, said = run_text(tmp_path, PROCESSES, "--gpus", "4", "--rank", "2")
    assert "[0, 0, 0, 0]" in printed
    signatures = json.loads((tmp_path / "a.json").read_text())["run"]
    assert signatures["virtual"]["rank"] == 2
    assert "all-reduce 4" in said


PROCESSES = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
def train(rank):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29999", rank=rank, world_size=4)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8 + rank).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    mp.set_start_method("spawn")
    ranks = [mp.Process(target=train, args=(rank,)) for rank in range(4)]
    [each.start() for each in ranks]
    [each.join() for each in ranks]
    print([each.exitcode for each in ranks])
"""


def test_python_asks_as_the_command_does(tmp_path, capfd):
    script = tmp_path / "it.py"
    script.write_text(
        "import sys, torch\nprint(torch.cuda.get_device_name(), torch.cuda.device_count(), *sys.argv[1:])\n"
    )
    report = rl.run(script, ["--layers", "2"], on=["B200-SXM", "H100-SXM5-80GB"], gpus=4)
    assert capfd.readouterr().out == "NVIDIA B200 4 --layers 2\n"
    assert report.conclusion.startswith("No step was found in it.py")
    with pytest.raises(ValueError, match="--rank 4: there are 4, from 0"):
        rl.run(script, on="H100-SXM5-80GB", gpus=4, rank=4)
