"""Two ways to show C++ a CUDA device that is not there, and what is said where neither works."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from rooflight.front.device import find_device
from rooflight.sources.capture.run.elsewhere import Program, Wanted, seen_of

SCRIPT = """import torch
model = torch.nn.Conv2d(3, 8, 3).to("cuda")
model(torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)).sum().backward()
print(torch.accelerator.current_accelerator(), torch.accelerator.device_count(), model.weight.grad.device)
print(torch.ones(4).pin_memory().to("cuda", non_blocking=True).device)
"""
WRONG = "own = hooks._methods; hooks._methods = lambda name: own(name)[1:]; "
NO_COMPILER = "import os; os.environ['CXX'] = '/nowhere/g++'; "


def child(tmp_path, before):
    """The child that runs the script, after a line that changes how it is shown a device."""
    (tmp_path / "it.py").write_text(SCRIPT)
    device = find_device("H100-SXM5-80GB")
    wanted = Wanted(program=Program(target="it.py", arguments=(), module=False), devices=(device.name,),
                    seen=seen_of(device), gpus=2, nodes=1, rank=0, saved="it.session", loud=False)  # fmt: skip
    code = f"from rooflight.sources.virtual import child, hooks; {before}\nchild.main()"
    command = [sys.executable, "-c", code, wanted.command()[-1]]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.parametrize("before", ["del hooks.WAYS[1]", WRONG])
def test_each_way_shows_the_device(tmp_path, before):
    if before == WRONG and not shutil.which("c++"):
        pytest.skip("there is no C++ compiler")
    found = child(tmp_path, before)
    assert found.stdout == "cuda 2 cuda:0\ncuda:0\n", found.stderr


def test_where_neither_works_it_says_why(tmp_path):
    found = child(tmp_path, WRONG + NO_COMPILER)
    assert found.returncode == 1
    (said,) = found.stderr.splitlines()
    assert "cannot be shown a GPU that is not there (its headers name" in said
    assert said.endswith("'/nowhere/g++'): use torch 2.11 to 2.14 on Linux")
