"""Steps that cannot be compared, compilers that fail or hang: one clear line each."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.steps import guarded
from rooflight.studies.compiling.bench.child import packaged
from rooflight.studies.compiling.process import _ended
from rooflight.studies.compiling.refusals import check_step, reason_of

# Inductor imports what torch itself has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


PROGRAM = """
import torch

def weighted(x, weight):
    return (x * weight).sum()

def plain():
    return lambda: torch.ones(4) + 1
"""
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()

def get_inputs():
    return [torch.ones(4)]

def get_init_inputs():
    return []
"""
BENCH, EXPLAIN = "compile-bench", "explain"
PREDICT = f"{BENCH} --predict-only --device L40S PROBLEM"
MAKES = "takes arguments: define get_inputs() beside it, which returns them"

REFUSED = [
    (f"{BENCH} nonsense", "Workloads of compile-bench: simple-matmul-chain"),
    (f"{BENCH} gpt2 nonsense", "nonsense"),
    (f"{BENCH} attention-block --iterations 5", "5 iterations, 5 of them warm-up"),
    (f"{BENCH} attention-block --warmup 0", "at least 1 of warm-up"),
    (f"{BENCH} attention-block --mode fastest", 'torch.compile has no mode "fastest": take default'),
    (f"{BENCH} attention-block --mode default --mode default", "--mode default is given twice"),
    (f"{BENCH} attention-block --mode aot-inductor --backend eager", "--backend eager: no effect on the mode aot-ind"),
    (f"{BENCH} attention-block --batch 3", "--batch: no effect on the workload attention-block"),
    (f"{BENCH} attention-block --step train", "--step: no effect on the workload attention-block: leave it out"),
    (f"{BENCH} attention-block --threads 0", "--threads 0: at least 1"),
    (f"{BENCH} attention-block --limit 0", "--limit 0: seconds, more than 0"),
    (f"{BENCH} attention-block --quick --iterations 50", "--iterations: --quick sets it: leave one of the two out"),
    (f"{BENCH} attention-block --quick --warmup 2", "--warmup: --quick sets it: leave one of the two out"),
    (f"{BENCH} attention-block --address 10.0.0.1:6379", "--address: for --executor ray"),
    (f"{BENCH} attention-block --executor ray --partition gpu", "--partition: for --executor slurm"),
    (f"{BENCH} attention-block --executor ray --mode fastest", 'no mode "fastest"'),
    (f"{BENCH} attention-block --device A100-SXM4-80GB",
     "--device: only a prediction takes it, and the programs run here: add --predict"),
    (f"{BENCH} attention-block --host 1e-5", "--host: only a prediction takes it"),
    (f"{BENCH} attention-block --inputs batches", "--inputs batches: only a function of your own"),
    (f"{BENCH} FILE:weighted", f"program.py:weighted {MAKES}"),
    (f"{BENCH} FILE:plain --step train", "--step: no effect on FILE:plain: set it inside the function"),
    (f"{BENCH} FILE:plain --batch 3", "--batch: no effect on FILE:plain: set it inside the function"),
    (f"{BENCH} FILE:plain --small", "--small: no effect on FILE:plain: set it inside the function"),
    (f"{PREDICT} --dynamic", "--dynamic: no effect with --predict-only, which runs nothing: leave one"),
    (f"{PREDICT} --limit 3", "--limit: no effect with --predict-only"),
    (f"{PREDICT} --executor ray", "--executor: no effect with --predict-only"),
    (f"{PREDICT} --no-bounds", "--bounds: no effect with --predict-only"),
    (f"{PREDICT} --mode aot-inductor", 'for the mode "aot-inductor": take default'),
    (f"{PREDICT} --mode fast", 'torch.compile has no mode "fast"'),
    (f"{PREDICT} --backend aot_eager", "no gain is predicted for the backend"),
    (f"{PREDICT} --threads 2", "--threads: no effect on a GPU"),
    (f"{PREDICT} --host -1", "at least 0"),
    (f"{PREDICT} --warmup 200", "200 of them warm-up"),
    (f"{BENCH} --predict-only --device H900 PROBLEM", 'unknown device "H900"'),
    (f"{EXPLAIN} nonsense", "Workloads: simple-matmul-chain"),
    (f"{EXPLAIN} attention-block --calls 0", "--calls 0: 1 to 100"),
    (f"{EXPLAIN} attention-block --mode fastest", 'no mode "fastest"'),
    (f"{EXPLAIN} attention-block --mode aot-inductor", 'no mode "aot-inductor"'),
    (f"{EXPLAIN} attention-block --step train", "--step: no effect on the workload attention-block: leave it out"),
    (f"{EXPLAIN} attention-block --batch 3", "--batch: no effect on the workload"),
    (f"{EXPLAIN} attention-block --threads 0", "--threads 0: at least 1"),
    (f"{EXPLAIN} attention-block --limit -1", "--limit -1: seconds"),
    (f"{EXPLAIN} attention-block --inputs batches", "--inputs batches: only a function of your own"),
    (f"{EXPLAIN} FILE:weighted", f"program.py:weighted {MAKES}"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """A file with functions, and one with a problem."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "problem.py").write_text(PROBLEM)
    return {"FILE": str(folder / "program.py"), "PROBLEM": str(folder / "problem.py")}


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_run_is_refused_in_a_line(run, files, words, message) -> None:
    for name, path in files.items():
        words, message = words.replace(name, path), message.replace(name, path)
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    *before, last = err.strip().splitlines()  # a function's own process may have begun
    assert message in last
    assert not before or "weighted" in words


def test_what_is_compiled_already() -> None:
    with pytest.raises(TargetError, match=r"the step is compiled already: pass what torch\.compile was given"):
        check_step(torch.compile(torch.relu), None, "t.py:f")
    inside = nn.Sequential(nn.Linear(2, 2))
    inside[0].compile()
    with pytest.raises(TargetError, match="its module 0 is compiled already"):
        check_step(lambda: None, inside, "t.py:f")
    by_hand = nn.Linear(2, 2)
    by_hand.forward = torch.compile(by_hand.forward)
    for model in (torch.compile(nn.Linear(2, 2)), by_hand):
        with pytest.raises(TargetError, match="its model is compiled already"):
            check_step(lambda: None, model, "t.py:f")
    check_step(lambda: None, nn.Linear(2, 2), "t.py:f")


def reason(run) -> str:
    try:
        run()
    except Exception as error:
        return reason_of(error)
    raise AssertionError("it ran")


def test_no_compiler() -> None:
    with torch._inductor.config.patch({"cpp.cxx": ("/nowhere/g++",)}):
        run = torch.compile(lambda x: (x + 1).sin() * 3)
        told = reason(lambda: run(torch.ones(4)))
    assert told == "no C++ compiler works: install g++ or clang++, or set the environment variable CXX to one"
    torch._dynamo.reset()


def test_a_backend_that_raises_and_errors_of_the_program_itself() -> None:
    def broken(graph, inputs):
        raise RuntimeError("no such target\nsecond line")

    def fails():
        raise KeyError("x")

    run = torch.compile(lambda x: x + 1, backend=broken)
    told = reason(guarded(lambda: run(torch.ones(4))))  # as the steps of files are
    assert told.startswith("the backend broken raised RuntimeError: no such target")
    assert "second" not in told
    torch._dynamo.reset()
    assert "KeyError: 'x'" in reason(fails)
    assert reason(guarded(fails)).startswith("the step failed: KeyError: 'x'")


def test_a_process_that_hangs_ends_with_all_that_it_started(tmp_path) -> None:
    note = tmp_path / "pid"
    script = f"sleep 100 & echo $! > {note}.part && mv {note}.part {note}; wait"
    with tempfile.TemporaryFile() as errors, pytest.raises(RunFailed, match=r"took longer than 2 s \(--limit\)"):
        _ended(["sh", "-c", script], b"", errors, dict(os.environ), 2)
    if note.exists():  # on a busy machine the shell may not have come so far
        deadline = time.monotonic() + 60
        while _runs(int(note.read_text())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _runs(int(note.read_text()))


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return sys.platform == "linux" and status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_packages_have_no_backward() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)

    def step():
        loss = model(x).sum()
        loss.backward()
        return loss

    whole = packaged(step, None, dynamic=None)
    with pytest.raises(RunFailed, match="an AOTInductor package has no backward: run the model under"):
        whole()
    packaged(step, model, dynamic=None)
    with pytest.raises(RunFailed, match="an AOTInductor package has no backward"):
        step()


def test_what_cannot_be_exported() -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum().item() > 0 else x

    model = Reads()
    run = packaged(lambda: model(torch.ones(2)), model, dynamic=None)
    with pytest.raises(RunFailed, match=r"torch\.export: .*data-dependent"):
        run()


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_package_for_real(tmp_path, monkeypatch, dynamic) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    expected = model(x)
    results = []
    for _ in range(2):  # compiled, then from its file
        again = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        again.load_state_dict(model.state_dict())
        with torch.no_grad():
            results.append(packaged(lambda again=again: again(x), again, dynamic=dynamic)())
    for result in results:
        assert torch.allclose(result, expected, atol=1e-6)
    assert len(list((tmp_path / "cache").glob("*.pt2"))) == 1
