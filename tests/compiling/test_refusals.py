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

from rooflight.compiling.bench.child import packaged
from rooflight.compiling.process import _ended
from rooflight.compiling.refusals import check_step, reason_of
from rooflight.workloads.errors import RunFailed, TargetError
from rooflight.workloads.steps import guarded

# Inductor imports what torch itself has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def test_what_is_compiled_already() -> None:
    with pytest.raises(TargetError, match=r"the step is compiled already: pass what torch\.compile was given"):
        check_step(torch.compile(torch.relu), None, "t.py:f")
    inside = nn.Sequential(nn.Linear(2, 2))
    inside[0].compile()
    with pytest.raises(TargetError, match="its module 0 is compiled already"):
        check_step(lambda: None, inside, "t.py:f")
    with pytest.raises(TargetError, match="its model is compiled already"):
        check_step(lambda: None, torch.compile(nn.Linear(2, 2)), "t.py:f")
    by_hand = nn.Linear(2, 2)
    by_hand.forward = torch.compile(by_hand.forward)
    with pytest.raises(TargetError, match="its model is compiled already"):
        check_step(lambda: None, by_hand, "t.py:f")
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


def test_a_backend_that_raises() -> None:
    def broken(graph, inputs):
        raise RuntimeError("no such target\nsecond line")

    run = torch.compile(lambda x: x + 1, backend=broken)
    told = reason(guarded(lambda: run(torch.ones(4))))  # as the steps of files are
    assert told.startswith("the backend broken raised RuntimeError: no such target")
    assert "second" not in told
    torch._dynamo.reset()


def test_errors_of_the_program_itself_stay() -> None:
    def broken():
        raise KeyError("x")

    assert "KeyError: 'x'" in reason(broken)
    assert reason(guarded(broken)).startswith("the step failed: KeyError: 'x'")


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
