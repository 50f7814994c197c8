"""The Python of the pages runs: the blocks of a page one after the other, among the names of ``given.py``. What takes
too long here is compiled, and what it takes from Rooflight is there. Pages of docs/extending run as a whole.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from calibrated import calibration_of
from given import GIVEN, common
from tracked import CPU, ROOFS, calibrate_by_hand

import rooflight as rl
from rooflight.hardware.machine import calibration
from rooflight.hardware.machine.environment import threads_here
from rooflight.inference import release_active_profiler
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.compiling.bench import benchmark
from rooflight.studies.compiling.bench.result import Check, Trial

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "extending"),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WARNED = "ignore:.*torch.jit.script_method:DeprecationWarning"  # by Inductor
INLINE = re.compile(r"`[^`\n]*\brl\.(\w+)[^`\n]*`")

NOT_RUN = {"rl.hot(Gate()": "compiles for 18 s; tests/compiling/test_hot.py compiles hot loops"}
"""A line's begin, and why a block with it is only compiled."""

AFTERWARDS = {
    "hot_paths": "enable_hot_path_detection().disable()",
    "inference": "model, run = make_engine(); run(2, 4, 3)",
    "sampling": "my_custom_op((2, 1, 4, 8), 'bf16', 'cpu')",
    "score": "assert issubclass(ModelNew, nn.Module); assert found.timings['solution']",
    "workloads": "step, model = make_step(); step(); assert get_inputs() and get_init_inputs()",
}
"""By page: how a reader uses what its blocks define."""


def missing(tree: ast.Module) -> set[str]:
    """Names that a block takes from Rooflight, and that are not there."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rooflight":
            module = importlib.import_module(node.module)
            found |= {f"{node.module}.{each.name}" for each in node.names if not hasattr(module, each.name)}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rl":
            found |= set() if hasattr(rl, node.attr) else {f"rl.{node.attr}"}
    return found


@pytest.fixture
def here(tmp_path, monkeypatch, restored_formulas):
    """A folder, a machine that counts as calibrated, and programs of compile-bench that are answered at once."""
    calibrate_by_hand(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--rl-enable-sol-tracking", "--rl-sol-report-interval", "2"])

    def calibrated(_kind, _progress=None, *, threads=None, **_):
        return calibration_of(replace(ROOFS, threads=threads or threads_here()), CPU.name)

    def answered(program, request, *_, **__):
        if program.__name__ == "checked":
            return Check(result=Difference(elements=1))
        return Trial(samples_s=(1e-3,) * request.iterations)

    monkeypatch.setattr(calibration, "calibrate", calibrated)
    monkeypatch.setattr(benchmark, "answered", answered)
    yield
    release_active_profiler()
    torch._dynamo.reset()


@pytest.mark.filterwarnings(WARNED)
@pytest.mark.parametrize(
    "path", [path for path in PAGES if "```python" in path.read_text()], ids=lambda path: path.stem
)
def test_the_python_of_a_page_runs(path, here, ok, one_thread):
    names = {"__name__": "a_program"} | common()
    names |= GIVEN.get(path.stem, dict)()
    if path.stem == "reports":
        ok("analyze", "gpt2", "--small", "--device", "H100-SXM5-80GB", "--csv", "gpt2_tables", "--json", "gpt2.json")
    blocks = [text.replace(" = ...", " = mine") for text in BLOCK.findall(path.read_text())]
    if path.stem == "compile_bench":
        Path("train.py").write_text("def make_step():\n    return lambda: None\n")
    for text in [*blocks, AFTERWARDS.get(path.stem, "")]:
        code = compile(text, f"{path.name}:\n{text}", "exec")
        if not any(mark in text for mark in NOT_RUN):
            exec(code, names)


def test_marks_are_of_blocks():
    texts = "".join(text for path in PAGES for text in BLOCK.findall(path.read_text()))
    assert [mark for mark in NOT_RUN if mark not in texts] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_takes_from_rooflight_is_there(path):
    text = path.read_text()
    assert [names for block in BLOCK.findall(text) if (names := missing(ast.parse(block)))] == []
    assert [name for name in INLINE.findall(text) if not hasattr(rl, name)] == []


def test_a_missing_name_is_seen():
    block = "import rooflight as rl\nfrom rooflight.inference import Profiler, Nobody\nrl.analize(rl.load('a'))"
    assert missing(ast.parse(block)) == {"rooflight.inference.Nobody", "rl.analize"}
