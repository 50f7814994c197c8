"""Programs with one planted cause each, or none: both of their forms give the same results.

``benchmarks/promises.py`` asks the diagnosis about them.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accounts import violations
from calibrated import calibration_of, roofs_of

import rooflight as rl
from rooflight.hardware.devices.calibrations import device_of
from rooflight.sources.workloads.targets import open_target

LOOSE = {"p27_xray", "p28_sonar", "p65_lookup"}
"""Half precision knows two or three digits."""


def truth(path: Path):
    assignments = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign))
    return next(ast.literal_eval(each.value) for each in assignments if each.targets[0].id == "TRUTH")


PROGRAMS = sorted(Path(__file__).with_name("planted").glob("*.py"))
PLANTED = [path for path in PROGRAMS if truth(path)["remedy"]]
"""The others have one form."""


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_says_what_is_right(path):
    regimes = truth(path)["regime"]
    assert regimes
    assert set(regimes) <= {"compute", "memory", "communication", "overhead", "idle", "latency", "kernels"}


@pytest.mark.slow
@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_both_forms_give_the_same(path):
    assert float(ended(path, "difference")) < (1e-2 if path.stem in LOOSE else 1e-4)


AUTHORED = sorted(Path(__file__).with_name("authored").glob("*.py"))


@pytest.mark.parametrize("path", AUTHORED, ids=lambda path: path.stem)
def test_an_authors_truth_is_of_lines_that_there_are(path):
    right, text = truth(path), path.read_text()
    assert right.get("healthy") or all(line in text for line in right["lines"])
    for pattern in (*right.get("says", ()), *right.get("remedy", ())):
        re.compile(pattern)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in AUTHORED if path.stem[0] in "ab"], ids=lambda path: path.stem)
def test_an_authors_two_forms_give_the_same(path):
    assert float(ended(path, "difference")) < 2e-2


FAULTS = sorted((Path(os.environ.get("ROOFLIGHT_DATA", "/nowhere")) / "faults" / "diagnosis").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PROGRAMS, *FAULTS], ids=lambda path: path.stem)
def test_the_account_of_each_adds_up(path):
    assert ended(path, "violated") == "[]"


def violated(path: Path) -> list[str]:
    """Rules of an account that the measured program breaks, with roofs that none of them beats."""
    step = open_target(f"{path}:make_step").run
    here = device_of(calibration_of(roofs_of(1e12, 1e11), "test CPU"))
    return violations(rl.analyze(rl.measure(step, max_runs=10, max_seconds=2), here))


def ended(path: Path, function: str) -> str:
    """What a function of this module says of a program, in a process of its own."""
    code = f"import test_planted as t; print(t.{function}(t.Path({str(path)!r})))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    tests = Path(__file__).parents[1]
    found = {**os.environ, "PYTHONPATH": str(tests)}
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, env=found)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def loaded(path: Path):
    """The program as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def difference(path: Path) -> float:
    """The largest difference of what three steps of both forms return, over the largest number."""
    module = loaded(path)
    steps = module.make_step(), module.make_step_fixed()
    pairs = [[flat(step()) for step in steps] for _ in range(3)]
    return max(((a - b).abs().max() / a.abs().max().clamp(min=1e-9)).item() for a, b in pairs)


def flat(found) -> torch.Tensor:
    """All numbers of tensors in lists and dictionaries."""
    if isinstance(found, torch.Tensor):
        return found.detach().double().flatten()
    found = list(found.values()) if isinstance(found, dict) else found
    return (
        torch.cat([flat(each) for each in found]) if isinstance(found, list | tuple) else torch.tensor([float(found)])
    )
