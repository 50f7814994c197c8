"""Real processes that compile, by the command and from Python; and what cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rooflight.compiling import benchmark_workload
from rooflight.studies.compiling.bench.child import Request, checked, timed
from rooflight.studies.compiling.options import Options
from rooflight.studies.compiling.process import _answer
from rooflight.studies.compiling.workloads import WORKLOADS, attention_block

PROGRAM = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.calls = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), 0

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)

def train():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step, model

def plain():
    x = torch.ones(4)
    print("noise")
    return lambda: x + 1

def weighted(x, weight):
    return (x * weight).sum()

def batches():
    weight = torch.full((3,), 2.0, requires_grad=True)
    for rows in (4, 5):
        yield torch.ones(rows, 3), weight

def drifting():
    def scaled(x):
        y = x * (1 if torch.compiler.is_compiling() else 2)
        print(y.sum().item())
        return y + 1
    lengths = []
    def step():
        lengths.append(4 + len(lengths) % 2)
        return scaled(torch.ones(lengths[-1]))
    return step

def broken():
    def step():
        raise ValueError("the data is gone")
    return step

def asynchronous():
    async def step():
        return torch.ones(2)
    return step

def killed():
    import os
    return lambda: os._exit(9)
"""


@pytest.fixture
def program(tmp_path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
def test_a_training_step_with_a_graph_break(run, program, tmp_path, monkeypatch) -> None:
    poison = tmp_path / "cache"
    poison.write_text("a file where Inductor's folder should be")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(poison))  # each program has a folder of its own
    words = ("--backend", "eager", "--iterations", 6, "--warmup", 2, "--threads", 1, "--no-bounds")
    code, out, _ = run("compile-bench", f"{program}:train", *map(str, words), "--json", "-")
    assert code == 0
    (found,) = json.loads(out)
    assert found["correct"] is True
    assert found["graph_breaks"]
    assert found["graphs"] == 2
    assert len(found["samples_eager_s"]) == len(found["samples_compiled_s"]) == 6
    assert found["warmup_compiled_s"] > found["warmup_eager_s"]  # it compiled
    assert found["eager_s"] > 0
    assert found["peak_bytes_eager"] > 1e6
    assert found["fp64_error_eager"] == found["fp64_error_compiled"] < 1e-6  # the backend runs the same ops
    assert (found["fp64_further"], found["fp64_missing"], found["fp64_failed"]) == ("", [], "")


def test_a_result_that_differs_is_wrong(run, program) -> None:
    """The program itself imports no part of the compiler, whose loggers are heard all the same."""
    words = ("--backend", "eager", "--iterations", "3", "--warmup", "1", "--no-bounds", "--threads", "1")
    code, out, _ = run("compile-bench", f"{program}:drifting", *words, "--json", "-")
    assert code == 0
    (found,) = json.loads(out)
    assert found["correct"] is False
    assert "differs" in found["wrong"]
    line = PROGRAM.splitlines().index("        print(y.sum().item())") + 1
    assert found["graph_breaks"] == [
        f"program.py:{line}: Unsupported Tensor.item() call with capture_scalar_outputs=False",
        f"program.py:{line}: Failed to trace builtin operator `print`",
    ]
    size = f"program.py:{line - 2}, scaled: size of x, dimension 0 was 5, and 4 when it was compiled"
    assert size in found["recompiles"]
    assert any(each.endswith("step: len(lengths) was not 0, which it was compiled for") for each in found["recompiles"])


def test_a_function_that_takes_arguments_gets_them_in_turn(program) -> None:
    """In this process, as are the programs of the others in theirs."""
    request = Request(
        target=f"{program}:weighted", options=Options(), inputs="batches", compile_mode="default", backend="eager",
        iterations=4, place="cpu",
    )  # fmt: skip
    torch._dynamo.reset()
    assert checked(request).correct
    torch._dynamo.reset()
    (recompiled,) = timed(request).recompiles
    assert recompiled.endswith("weighted: size of x, dimension 0 was 5, and 4 when it was compiled")


@pytest.mark.parametrize(
    ("function", "code", "told"),
    [
        ("broken", 1, "ValueError: the data is gone (program.py"),
        ("killed", 1, "its process ended with code 9"),
        ("asynchronous", 2, "the step is an async function, and calling it runs nothing"),
    ],
)
def test_an_eager_program_that_breaks(run, program, function, code, told) -> None:
    found, _, err = run("compile-bench", f"{program}:{function}", "--quick", "--no-bounds")
    assert found == code
    plan, error = err.strip().splitlines()
    assert plan.startswith("rooflight: 1 target in 1 mode: 4 programs, one after the other")
    assert told in error


def test_a_backend_that_is_missing_is_an_answer_that_failed(program) -> None:
    request = Request(
        target=f"{program}:plain", options=Options(), compile_mode="default", backend="no_such_backend", iterations=3,
        place="cpu",
    )  # fmt: skip
    assert "no_such_backend" in _answer(timed, request).failed


@pytest.mark.parametrize("fn", [lambda: lambda: None, print, len, attention_block.__call__])
def test_a_function_without_a_file_is_refused(fn) -> None:
    with pytest.raises(ValueError, match=r"mine: .* pass a function at the top level of a file"):
        benchmark_workload("mine", fn)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_repeat(name) -> None:
    made = WORKLOADS[name]("cpu")
    step = made[0] if isinstance(made, tuple) else made
    assert step().isfinite().all()
    assert step().shape == step().shape


@pytest.mark.slow
def test_inductor_for_real() -> None:
    found = benchmark_workload("Simple Matmul", WORKLOADS["simple-matmul-chain"], 20, 3)
    assert found.target == "Simple Matmul"
    assert found.check is not None
    assert found.check.correct
    assert found.cold is not None
    assert found.compile_s is not None
    assert found.compile_warm_s is not None
    assert found.compile_s > found.compile_warm_s
    assert found.cold.kernels >= 4
    assert (found.cold.cache_hits, found.warm.cache_misses) == (0, 0)
    assert found.cold.cache_misses == found.warm.cache_hits == 1
