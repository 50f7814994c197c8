"""``rooflight explain`` and ``rooflight.explain``: real processes, reports, and what cannot be explained."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from explained import X, explanation

import rooflight as rl
from rooflight.reporting.html import render_html
from rooflight.reporting.markdown import render_markdown
from rooflight.sources.workloads.errors import TargetError
from rooflight.studies.compiling.explain.explain import ExplainRequest, open_program
from rooflight.studies.compiling.explain.explain import explanation as in_this_process
from rooflight.studies.compiling.explain.result import ExplainDocument
from rooflight.studies.compiling.explain.tables import report_of
from rooflight.studies.compiling.options import Options

PROGRAM = """
import torch

def scaled(x, factor=2):
    print("noise")
    return x * factor

def get_inputs():
    for rows in (4, 5, 6):
        yield torch.ones(rows, 8),

def one_input():
    return torch.ones(4, 8)

def no_inputs():
    yield from ()

def wrong_inputs():
    return "text"

def broken_inputs():
    raise OSError("no data")

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

net = Net()

def make_step():
    x = torch.ones(4)
    return lambda: x + 1

def make_training():
    model = torch.nn.Linear(8, 1)
    def step():
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        return loss
    return step, model

def plain():
    return torch.ones(4) * 3

def numbers():
    yield torch.ones(4)

async def later(x):
    return x

def make_later():
    async def step():
        return torch.ones(2)
    return step

@torch.compile
def compiled(x):
    return x - 1

def broken(x):
    raise ValueError("the data is gone")

def killed(x):
    import os
    os._exit(9)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def found_of(target: str, **how) -> ExplainDocument:
    asked = {"calls": 2, "backend": "eager", "dispatcher": False, **how}
    return in_this_process(ExplainRequest(target=target, **asked))


def test_a_function_with_inputs_in_a_process_of_its_own(run, program) -> None:
    code, out, err = run("explain", f"{program}:scaled", "--backend", "eager", "--threads", 1, "--json", "-")
    assert (code, err) == (0, "")
    found = msgspec.json.decode(out, type=ExplainDocument)
    assert found.target == "program.py:scaled"
    assert found.calls == 3
    assert len(found.recompiles) == 1
    assert found.graph_breaks[0].place is not None
    assert found.graph_breaks[0].place.line == 5
    assert "aten::mul.Tensor" in {each.op for each in found.dispatched}
    assert json.loads(out)["schema"] == "rooflight.explain/1"


@pytest.mark.parametrize(
    ("name", "calls"),
    [("scaled", 3), ("net", 3), ("make_step", 2), ("make_training", 2), ("plain", 2), ("compiled", 3)],
)
def test_what_a_name_of_a_file_may_be(program, name, calls) -> None:
    found = found_of(f"{program}:{name}")
    assert found.not_compiled == ""
    assert found.calls == calls
    assert sum(graph.state == "captured" for graph in found.graphs) >= 1
    assert (name == "compiled") == any("already compiled" in note for note in found.notes)


def test_a_training_step_compiles_its_model(program) -> None:
    found = found_of(f"{program}:make_training", backend="aot_eager")
    (graph,) = found.autograd
    assert graph.backward > 0
    assert found.graph_breaks == ()


@pytest.mark.parametrize(
    ("name", "inputs", "told"),
    [
        ("scaled", "nothing", "has no such function, which returns its arguments"),
        ("scaled", "no_inputs", "no_inputs yields no inputs"),
        ("scaled", "wrong_inputs", "not str"),
        ("scaled", "broken_inputs", "broken_inputs raised OSError: no data"),
        ("make_step", "one_input", "takes no arguments"),
        ("later", None, "an async function"),
        ("make_later", None, "the step is an async function"),
        ("Net", None, "is a class"),
        ("nothing", None, "no function nothing"),
        ("", None, "say which function"),
    ],
)
def test_what_cannot_be_explained_is_told(program, name, inputs, told) -> None:
    with pytest.raises(TargetError, match=told):
        open_program(f"{program}:{name}", Options(), calls=1, inputs=inputs)


def test_what_cannot_be_given_to_a_program_and_what_it_raises(program) -> None:
    with pytest.raises(ValueError, match="the data is gone"):
        found_of(f"{program}:broken")
    with pytest.raises(TargetError, match="--inputs x: only a function"):
        found_of("gpt2", inputs="x")
    program.write_text("def f(x):\n    return x\n")
    with pytest.raises(TargetError, match=r"takes arguments: define get_inputs\(\) beside it"):
        open_program(f"{program}:f", Options(), calls=1)
    with pytest.raises(TargetError, match="no effect"):
        open_program(f"{program}:f", Options(batch=3), calls=1)


def test_a_process_that_dies_or_hangs(run, program, tmp_path) -> None:
    code, _, err = run("explain", f"{program}:killed", "--backend", "eager")
    assert code == 1
    assert "its process ended with code 9" in err
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(60)\ndef f(x):\n    return x\n")
    code, _, err = run("explain", f"{slow}:f", "--limit", 0.1)
    assert code == 1
    assert "took longer than 0.1 s (--limit)" in err


def test_what_a_process_that_dies_left_among_temporary_files_is_removed(run, tmp_path) -> None:
    """A compiler that is interrupted leaves its files, too."""
    dies = tmp_path / "dies.py"
    dies.write_text(
        "import os, pathlib, tempfile\ndef f():\n    number, name = tempfile.mkstemp()\n"
        f"    pathlib.Path({str(tmp_path / 'where')!r}).write_text(name)\n    os.kill(os.getpid(), 9)\n"
    )
    assert run("explain", f"{dies}:f", "--backend", "eager")[0] == 1
    assert not Path((tmp_path / "where").read_text()).exists()


def test_a_poisoned_cache_folder(tmp_path, monkeypatch) -> None:
    for name in ("fxgraph", "aotautograd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "garbage").write_bytes(b"\x80\x05garbage")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = explanation(torch.t, (X,), backend="inductor")
    assert found.not_compiled == ""
    assert found.autograd[0].forward == 1
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", __file__)  # a file in the place of the folder
    found = explanation(torch.t, (X,), backend="inductor")
    assert found.not_compiled == "" or "Error" in found.not_compiled


def test_rooflight_explain_is_a_report_and_leaves_torch_as_it_was(capsys) -> None:
    config, logger = torch._inductor.config, logging.getLogger("torch.__trace")
    torch.compile(torch.sin, backend="eager")(X)  # the first compilation changes the handlers of torch's own logger
    before = (config.post_grad_custom_post_pass, config.fx_graph_cache, logger.level, list(logger.handlers))
    report = rl.explain(torch.nn.functional.silu, X, backend="eager")
    assert (config.post_grad_custom_post_pass, config.fx_graph_cache, logger.level, list(logger.handlers)) == before
    report.show()
    assert "Dispatcher: the layers of each op in eager" in capsys.readouterr().out
    assert "1 graph for 2 calls" in report.conclusion
    for table in report.tables:
        assert table.rows


@pytest.mark.parametrize(("good_calls", "dispatcher"), [(0, True), (0, False), (2, True)])
def test_an_error_of_the_function_passes_unchanged_also_in_its_second_call(good_calls, dispatcher) -> None:
    raised, calls = KeyError("mine"), []

    def fails(x):
        calls.append(None)
        if len(calls) > good_calls:
            raise raised
        return x + 1

    with pytest.raises(KeyError) as caught:
        rl.explain(fails, X, backend="eager", dispatcher=dispatcher)
    assert caught.value is raised


def test_what_cannot_be_watched_is_explained_without_the_dispatcher() -> None:
    def chosen(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    found = rl.explain(chosen, X, backend="eager").data
    assert found.dispatched == ()
    assert any("cannot be watched" in note for note in found.notes)
    assert [graph.state for graph in found.graphs] == ["captured"]


def test_subclasses_and_functions_that_call_backward() -> None:
    def nested(x):
        return torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged) * 2

    layer = torch.nn.Linear(8, 1)

    def trains(x):
        loss = layer(x).sum()
        loss.backward()
        return loss

    dispatched = rl.explain(nested, X, backend="eager").data.dispatched
    assert [each.call_s for each in dispatched if each.op == "aten::mul.Tensor" and not each.within] == [None]
    assert rl.explain(trains, X, backend="eager").data.graph_breaks[0].rewrite.startswith("compile the function")


def test_gradients_are_computed_and_not_written() -> None:
    x = X.clone().requires_grad_()
    report = rl.explain(torch.sin, x, backend="aot_eager")
    assert x.grad is None
    assert report.data.autograd[0].backward > 0
    assert any(each.backward for each in report.data.dispatched)


@pytest.mark.parametrize("wrong", [3, None, "text", X])
def test_what_is_no_function_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="is not callable"):
        rl.explain(wrong)


def test_a_generator_and_a_disabled_function_are_not_compiled() -> None:
    def numbers(x):
        yield x + 1

    found = rl.explain(numbers, X, backend="eager")
    assert "generator function" in found.data.not_compiled
    assert "aten::add.Tensor" in {each.op for each in found.data.dispatched}
    assert found.conclusion.startswith("Not compiled")
    with pytest.raises(ValueError, match="async"):
        rl.explain(_later, X)


async def _later(x):
    return x


def test_a_compiler_that_fails_or_is_missing_and_compiled_code_that_raises_are_the_answer() -> None:
    def breaks(graph, inputs):
        raise ArithmeticError("cannot\nlower")

    def unique(x):
        return torch.sin(x) * 1.2345678

    def differs(x):
        return x + 1 if x in [x] else x  # Python asks for identity first, Dynamo for equality

    torch._dynamo.register_backend(breaks, name="breaks_for_a_test")
    for backend, words in (("breaks_for_a_test", "ArithmeticError: cannot"), ("no_such_backend", "no_such_backend")):
        assert words in explanation(torch.sin, (X,), backend=backend).not_compiled
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}):
        found = explanation(unique, (X,), backend="inductor").not_compiled
    assert "C++ compiler" in found or "no-such-compiler" in found
    found = explanation(differs, (X,)).not_compiled
    assert found.startswith("compiled, it raises RuntimeError: Boolean value of Tensor")


def test_markdown_html_and_a_function_without_a_file() -> None:
    report = report_of(explanation(eval("lambda x: x * 2"), (X,), dispatcher=True))
    assert "Dynamo: graphs, and the time of each stage" in render_markdown(report)
    assert "Dynamo: graphs, and the time of each stage" in render_html(report)


@pytest.mark.parametrize("error", ["", "broken"])
def test_what_compilers_change_of_the_process_is_put_back(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Inductor raises the limit of recursion, setuptools adds a path, and both set variables."""
    monkeypatch.setenv("ROOFLIGHT_TEST", "before")

    def compiler(graph: torch.fx.GraphModule, inputs: object) -> object:
        sys.setrecursionlimit(sys.getrecursionlimit() + 7)
        sys.path.append("/nowhere")
        os.environ.update(ROOFLIGHT_TEST="after", ROOFLIGHT_TEST_NEW="new")
        if error:
            raise ValueError(error)
        return graph.forward

    before = sys.getrecursionlimit(), list(sys.path), dict(os.environ)
    found = explanation(lambda x: x + 1, backend=compiler)
    assert error in found.not_compiled
    assert (sys.getrecursionlimit(), sys.path, dict(os.environ)) == before
