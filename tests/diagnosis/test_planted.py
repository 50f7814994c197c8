"""Programs with one planted cause each: both of their forms give the same results.

``benchmarks/promises.py`` asks the diagnosis about them.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAMS = sorted(Path(__file__).with_name("planted").glob("*.py"))
OWN_PROCESS = re.compile(r"multiprocessing|threading|torch\.compile|sleep")
"""What leaves traces in a process, or takes long."""
LOOSE = {"p27_xray", "p28_sonar"}
"""Half precision knows two or three digits."""


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_says_what_is_right(path):
    truth = ast.literal_eval(next(node.value for node in ast.parse(path.read_text()).body if is_truth(node)))
    assert set(truth["regime"]) <= {"compute", "memory", "communication", "overhead", "idle", "latency"}
    assert truth["regime"]


def is_truth(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and node.targets[0].id == "TRUTH"


@pytest.mark.parametrize("path", [p for p in PROGRAMS if not OWN_PROCESS.search(p.read_text())], ids=lambda p: p.stem)
def test_both_forms_give_the_same(path):
    assert difference(path) < (1e-2 if path.stem in LOOSE else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in PROGRAMS if OWN_PROCESS.search(p.read_text())], ids=lambda p: p.stem)
def test_both_forms_give_the_same_in_a_process_of_their_own(path):
    code = f"import os, test_planted as t; print(t.difference(t.Path({str(path)!r})), flush=True); os._exit(0)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert float(done.stdout.split()[-1]) < 1e-4, done.stderr


def difference(path: Path) -> float:
    """The largest difference of what three steps of both forms return, over the largest number."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    steps = module.make_step(), module.make_step_fixed()
    pairs = [(flat(slow()), flat(fixed())) for _ in range(3) for slow, fixed in [steps]]
    return max(((a - b).abs().max() / a.abs().max().clamp(min=1e-9)).item() for a, b in pairs)


def flat(found) -> torch.Tensor:
    if isinstance(found, torch.Tensor):
        return found.detach().double().flatten()
    found = list(found.values()) if isinstance(found, dict) else found
    return (
        torch.cat([flat(each) for each in found]) if isinstance(found, list | tuple) else torch.tensor([float(found)])
    )
