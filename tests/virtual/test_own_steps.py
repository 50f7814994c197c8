"""A step of the user's own code that asks for a GPU is recorded on one that is not there, and others as they are."""

from __future__ import annotations

import json

import pytest
import torch

ON = ("--device", "H100-SXM5-80GB", "--json", "a.json")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to ask for")
ASKS = """
import torch
HERE = QUESTION
def make_step():
    model = torch.nn.Linear(64, 32, device="cuda" if HERE else "cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(8, 64, device="cuda" if HERE else "cpu")
    def step():
        if HERE:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).sum()
        else:
            loss = model(x).tanh().sum()
        loss.backward()
        optimizer.step()
        return loss.item() > 0
    return step, model
"""


@pytest.fixture
def analyzed(ok, tmp_path, monkeypatch):
    """What ``analyze`` finds of a file: ops by name, what it says, and its JSON."""
    monkeypatch.chdir(tmp_path)

    def found(text, name="make_step", *options):
        (tmp_path / "it.py").write_text(text)
        said = ok("analyze", f"it.py:{name}" if name else "it.py", *ON, *options)
        report = json.loads((tmp_path / "a.json").read_text())
        return {row["name"]: row for row in report["by_op"]}, " ".join(said.split()), report

    return found


QUESTIONS = [
    "torch.cuda.is_available()", "torch.cuda.device_count() > 0", "torch.accelerator.is_available()",
    "torch.accelerator.current_accelerator() is not None", "bool(torch.zeros(1, device='cuda').numel())",
    "torch.nn.Linear(1, 1).cuda().weight.is_cuda",
]  # fmt: skip


@pytest.mark.parametrize(
    "question", [QUESTIONS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in QUESTIONS[1:])]
)
def test_the_branch_of_the_gpu_is_recorded(analyzed, question):
    ops, notes, report = analyzed(ASKS.replace("QUESTION", question))
    assert "aten::tanh" not in ops
    assert "it.py:make_step asks for a GPU: recorded on a virtual one." in notes
    assert "a number of the device: 1 (it.py:16, " in notes
    assert report["totals"]["matrix_flops"] == 2 * (2 * 8 * 64 * 32)  # forward, and the weight's gradient
    assert report["target"] == "it.py:make_step"


@pytest.mark.slow
def test_a_question_within_the_step_a_library_and_a_bare_except(analyzed):
    """The step is ``function`` itself. What a library asks is no question of the file's."""
    text = (
        "import torch, torch.utils.data\nfrom torch.utils.data import DataLoader\n"
        "def function():\n    x = torch.ones(4, 4)\n    try:\n        x = x.cuda()\n    except:\n        x = x.tanh()\n"
        "    return next(iter(DataLoader([1], pin_memory=False))), x @ x\n"
    )
    ops, notes, _ = analyzed(text, "function")
    assert "asks for a GPU" in notes
    assert "aten::tanh" not in ops
    ops, notes, _ = analyzed(text.replace("x.cuda()", "1 / 0"), "function")
    assert "asks for a GPU" not in notes
    assert "aten::tanh" in ops


def test_errors_of_its_own_are_said(analyzed, refused, run, tmp_path):
    it = ASKS.replace("QUESTION", "torch.cuda.is_available()")
    (tmp_path / "bad.py").write_text(it.replace("    return step, model", "    return 1 / 0"))
    assert "bad.py:make_step raised ZeroDivisionError" in refused("analyze", tmp_path / "bad.py:make_step", *ON[:2])
    (tmp_path / "bad.py").write_text(it.replace("loss.backward()", "loss.backward(1, 2, 3, 4, 5)"))
    code, _, said = run("analyze", tmp_path / "bad.py:make_step", *ON[:2])
    assert code == 1
    assert "the step failed: TypeError" in said
    assert torch.cuda.is_available.__module__ == "torch.cuda"
    assert not hasattr(torch.cuda.is_available, "__wrapped__")


@pytest.mark.slow
def test_a_problem_that_says_cuda(analyzed):
    text = (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = torch.nn.Linear(16, 8)\n    def forward(self, x):\n"
        "        return self.layer(x) + torch.ones(8, device='cuda')\n"
        "def get_inputs():\n    return [torch.randn(4, 16)]\ndef get_init_inputs():\n    return []\n"
    )
    ops, notes, report = analyzed(text, "", "--step", "train")
    assert "asks for a GPU" in notes
    assert ops["aten::addmm"]["calls"] == 1
    assert report["totals"]["matrix_flops"] == 3 * (2 * 4 * 16 * 8)
