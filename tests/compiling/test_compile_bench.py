"""Real processes that compile, by the command and from Python; and what cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflight.compiling import benchmark_workload
from rooflight.compiling.workloads import WORKLOADS, attention_block

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


def test_a_function_that_takes_arguments_gets_them_in_turn(run, program) -> None:
    words = ("--backend", "eager", "--iterations", "4", "--warmup", "2", "--no-bounds", "--threads", "1")
    code, out, _ = run("compile-bench", f"{program}:weighted", "--inputs", "batches", *words, "--json", "-")
    assert code == 0
    (found,) = json.loads(out)
    assert found["correct"] is True
    (recompiled,) = found["recompiles"]
    assert recompiled.endswith("weighted: size of x, dimension 0 was 5, and 4 when it was compiled")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("{}:weighted",), "program.py:weighted takes arguments: define get_inputs() beside it, which returns them"),
        (("attention-block", "--inputs", "batches"), "--inputs batches: only a function of your own"),
    ],
)
def test_inputs_are_refused_in_the_words_of_explain(run, program, words, told) -> None:
    for verb in ("compile-bench", "explain"):
        code, out, err = run(verb, *(word.format(program) for word in words))
        assert (code, out) == (2, "")
        assert told in err.strip().splitlines()[-1]


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


def test_a_backend_that_is_missing_is_a_result_that_failed(run, program) -> None:
    words = ("--backend", "no_such_backend", "--iterations", "3", "--warmup", "1", "--no-bounds")
    code, out, _ = run("compile-bench", f"{program}:plain", *words, "--json", "-")
    assert code == 0
    (found,) = json.loads(out)
    assert "no_such_backend" in found["failed"]
    assert found["verdict"] is None
    assert found["eager_s"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nonsense",), "Workloads of compile-bench: simple-matmul-chain"),
        (("attention-block", "--iterations", "5"), "5 iterations, 5 of them warm-up"),
        (("attention-block", "--warmup", "0"), "at least 1 of warm-up"),
        (("attention-block", "--mode", "fastest"), 'torch.compile has no mode "fastest": take default'),
        (("attention-block", "--batch", "3"), "--batch: no effect on the workload attention-block"),
        (("attention-block", "--threads", "0"), "--threads 0: at least 1"),
        (("attention-block", "--limit", "0"), "--limit 0: seconds, more than 0"),
        (("gpt2", "nonsense"), "nonsense"),
    ],
)
def test_what_cannot_run_is_told_at_once(run, words, told) -> None:
    code, _, err = run("compile-bench", *words)
    assert code == 2
    assert told in err


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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--device", "A100-SXM4-80GB"),
            "--device: only a prediction takes it, and the programs run here: add --predict",
        ),
        (("--host", "1e-5"), "--host: only a prediction takes it"),
        (("--quick", "--iterations", "50"), "--iterations: --quick sets it: leave one of the two out"),
        (("--quick", "--warmup", "2"), "--warmup: --quick sets it: leave one of the two out"),
        (("--mode", "default", "--mode", "default"), "--mode default is given twice"),
        (("--step", "train"), "--step: no effect on the workload attention-block: leave it out"),
        (("--mode", "aot-inductor", "--backend", "eager"), "--backend eager: no effect on the mode aot-inductor"),
        (("--predict-only", "--dynamic"), "--dynamic: no effect with --predict-only, which runs nothing: leave one"),
        (("--predict-only", "--limit", "3"), "--limit: no effect with --predict-only"),
        (("--predict-only", "--executor", "ray"), "--executor: no effect with --predict-only"),
        (("--predict-only", "--no-bounds"), "--bounds: no effect with --predict-only"),
    ],
)
def test_options_that_make_no_sense_together(run, words, told) -> None:
    code, out, err = run("compile-bench", "attention-block", *words)
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()  # and no plan before it: nothing runs
    assert told in line


def test_options_of_a_model_have_no_effect_on_a_function(run, program) -> None:
    for words in (("--step", "train"), ("--batch", "3"), ("--small",)):
        code, _, err = run("compile-bench", f"{program}:plain", *words)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert f"{words[0]}: no effect on {program}:plain: set it inside the function" in err
