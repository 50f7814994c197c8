"""Scripts for CUDA, unedited, on a machine without: what their step asks of the device, by hand arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rooflight as rl
from rooflight.devices import get
from rooflight.front.elsewhere import record_elsewhere
from rooflight.sources.capture.run.elsewhere import Program

SCRIPTS = Path(__file__).parents[1] / "scripts" / "cuda"
H100 = "H100-SXM5-80GB"


def run_on(tmp_path, script, *args, options=(), on=H100, code=0):
    """A script that runs for a GPU that is not there: the session, the JSON, and both streams."""
    words = [sys.executable, "-m", "rooflight", "run", "--on", on, "--save", "a.session", "--json", "a.json", *options]
    with (tmp_path / "out").open("w+") as out:  # a file, and standard error a pipe
        run = subprocess.run(
            [*words, str(script), *args], check=False, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True,
            timeout=400,
        )  # fmt: skip
    run.stdout = (tmp_path / "out").read_text()
    assert run.returncode == code, run.stderr
    return rl.load(tmp_path / "a.session"), json.loads((tmp_path / "a.json").read_text()), run


def recorded_on(tmp_path, script, *, gpus=1, nodes=1, **how):
    """The session alone: what is asked of the device, without times, which take most of a run of few ops."""
    program = Program(target=str(script), arguments=(), module=False, **{"skip": 2} | how)
    return record_elsewhere(program, [get(H100)], tmp_path / "a.session", gpus=gpus, nodes=nodes)


def calls_of(session, name):
    return [session.signatures[n] for n in session.columns.signature.tolist() if session.signatures[n].name == name]


SMALL = ("layers=2", "heads=4", "width=64", "vocab=256", "context=32", "batch=2", "accumulation=5")


def test_nano_gpt_with_autocast_accumulation_and_a_fused_optimizer(tmp_path):
    session, found, run = run_on(tmp_path, SCRIPTS / "nano_gpt.py", *SMALL)
    assert session.run.step.name == "AdamW.step"
    assert session.run.step.recorded == 3
    assert run.stdout.startswith("iter 0: loss 5.0000")  # a loss that is not there is 1, and the script has five parts
    products = calls_of(session, "aten::mm")
    forward, backward = 5 * (2 * 4 + 1), 2 * 5 * (2 * 4 + 1)
    assert len(products) == forward + backward
    assert {tensor.dtype for op in products for tensor in op.inputs} == {"bfloat16"}
    attention = calls_of(session, "aten::scaled_dot_product_attention")
    assert len(attention) == 5 * 2
    assert len(calls_of(session, "aten::_fused_adamw_")) == 2  # two groups of parameters
    (row,) = found["run"]["on"]
    assert row["device"] == H100
    assert row["gpus"] == 1
    assert row["compiled_s"] is None
    assert row["fits"] is True
    assert row["step_low_s"] <= row["step_s"] <= row["step_high_s"]
    assert row["step_s"] > row["bound_s"] > 0
    assert "compiled" not in run.stderr
    assert "First: " in run.stderr
    assert f"diagnose{tmp_path}/a.session--predict" in "".join(run.stderr.split())
    assert rl.analyze(session).device.name == H100  # as the script saw it


def test_a_compiled_program_is_answered_compiled(tmp_path):
    _, found, run = run_on(tmp_path, SCRIPTS / "nano_gpt.py", *SMALL, "accumulation=2", "compile=True")
    (row,) = found["run"]["on"]
    assert 0 < row["compiled_s"] <= row["step_s"]
    assert 0 < row["memory_bytes"] < row["eager_memory_bytes"]
    assert found["run"]["virtual"]["compiled"] == 1
    assert "compiled (at least" in run.stderr


@pytest.mark.slow
def test_ranks_reduce_their_gradients(tmp_path):
    session = recorded_on(tmp_path, SCRIPTS / "ddp_mlp_mixer.py", gpus=8)
    reduced = sum(tensor.nbytes for op in calls_of(session, "c10d::allreduce_") for tensor in op.inputs)
    optimizer = calls_of(session, "aten::_fused_adamw_")
    weights = sum(tensor.nbytes for op in optimizer for tensor in op.inputs) // 4  # weights, gradients and two moments
    assert reduced == pytest.approx(weights, rel=1e-3)
    assert session.run.virtual.gpus == 8


def test_the_parent_never_imports_the_room(tmp_path):
    (tmp_path / "none.py").write_text("import torch\nprint(torch.cuda.get_device_name())\n")
    code = (
        "import sys; sys.argv[1:] = ['run', '--on', 'H100-SXM5-80GB', 'none.py']\n"
        "from rooflight.cli.main import main\n"
        "try: main()\n"
        "finally: assert not [n for n in sys.modules if n.startswith('rooflight.sources.virtual')]; print('without')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.splitlines()[0] == "NVIDIA H100 80GB HBM3"
    assert "No step was found in none.py" in run.stderr
    assert "without" in run.stdout + run.stderr


@pytest.mark.slow
def test_a_router_is_taken_as_balanced(tmp_path, capfd):
    session = recorded_on(tmp_path, SCRIPTS / "moe_routed.py")
    assert capfd.readouterr().out.startswith("step 0 loss 1.0000")
    rows = {op.inputs[1].shape[0] for op in calls_of(session, "aten::addmm")}
    assert rows == {4096 * 2 // 8}  # of two experts for each token, an eighth is each one's
    assert (
        rl.analyze(session, H100).totals.matrix_flops == 791_012_179_968
    )  # as recorded on an H100, whose router is not even
    assert any(row.answer == "chooses 0.125 of all: balanced" for row in session.run.assumed)


@pytest.mark.slow
def test_a_block_mask_made_of_documents_hides_what_it_hides(tmp_path):
    """1,024 tokens in two documents: of the blocks that are not full each pair is asked for."""
    text = (SCRIPTS / "flex_documents.py").read_text().replace("8192", "1024")
    (tmp_path / "short.py").write_text(text)
    session = recorded_on(tmp_path, tmp_path / "short.py")
    (forward,) = {op for op in session.signatures if op.name == "higher_order::flex_attention"}
    hidden, every, *_ = forward.attribute("hidden")
    place = torch.arange(1024)
    documents = (place % 602 == 0).cumsum(0)  # the third step's
    shown = (documents[:, None] == documents) & (place[:, None] >= place)
    assert every == 1024**2
    assert every - hidden == int(shown.sum())


@pytest.mark.slow
def test_a_step_of_many_slow_backward_passes_is_waited_for(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time, torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(1, 8, device='cuda'))\n"
        "for _ in range(2):\n"
        "    for _ in range(7):\n"
        "        model(torch.randn(4, 8, device='cuda')).sum().backward()\n"
        "        time.sleep(2)\n"
        "    optimizer.step()\n"
    )
    session, _, _ = run_on(tmp_path, tmp_path / "slow.py", options=("--skip", "0"))
    assert session.run.step.name == "SGD.step"
    assert len(calls_of(session, "aten::addmm")) == 7


def test_a_function_is_a_step_and_pinned_memory_is_known(tmp_path):
    script = tmp_path / "it.py"
    for pin in ("False", "True"):
        script.write_text(
            f"import torch\nhost = torch.ones(64, 64, pin_memory={pin})\ndef step(a):\n"
            "    with torch.cuda.nvtx.range('step'):\n        token = torch.cuda.nvtx.range_start('copy')\n"
            "        a = a.cuda() @ a.cuda()\n        torch.cuda.nvtx.range_end(token)\n    return a\nstep(host)\n"
        )
        session = recorded_on(tmp_path, script, skip=0, only="function", named=f"{script}:step")
        assert len(calls_of(session, "aten::mm")) == 1
        assert session.environment["pins_memory"] == ("yes" if pin == "True" else "no")


def test_a_compiled_model_is_trained_without_an_optimizer_of_torchs_in_two_turns(tmp_path):
    (tmp_path / "it.py").write_text("""
import torch
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8)).cuda())
def write(weights):
    with torch.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
            weight.grad = None
for number in range(10_000):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    weights = list(model.parameters())
    write(weights[:2])
    if number % 2:
        write(weights[2:])
""")
    session, found, _ = run_on(tmp_path, "it.py")
    assert len(session)
    assert found["run"]["step"]["kind"] == "backward"
    assert found["run"]["step"]["turns"] == 2
