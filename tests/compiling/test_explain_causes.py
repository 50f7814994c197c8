"""Which cause an explanation names first, at which line, and with which remedy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from explained import X, explanation
from torch import nn

from rooflight.studies.compiling.explain.breaks import FailedGuard, fix
from rooflight.studies.compiling.explain.explain import Program, explained
from rooflight.studies.compiling.explain.result import ExplainDocument, SourceLine, place_of
from rooflight.studies.compiling.explain.tables import conclusion, report_of
from rooflight.studies.compiling.options import ExplainOptions

Step = Callable[[], Any]


def trained(optimizer: Callable[[Any], Any], change: Callable[[Any, int], None]) -> Step:
    """A step whose optimizer is compiled, with a setting that is another in each call."""
    model, calls = nn.Linear(8, 8), [0]
    updates = optimizer(model.parameters())

    @torch.compile(backend="eager")
    def update() -> None:
        updates.step()

    def step() -> None:
        calls[0] += 1
        change(updates, calls[0])
        model(X).square().mean().backward()
        update()

    return step


def explained_step(step: Step) -> ExplainDocument:
    """Of a step that compiles a part of itself, over four calls."""
    program = Program(name="step", run=step, calls=[()] * 4, compiled=lambda **_: step, backward=False)
    return explained(program, ExplainOptions(backend="eager", dispatcher=False))


def rate(optimizer: Any, call: int) -> None:
    optimizer.param_groups[0]["lr"] = 0.1 / call


def filled(optimizer: Any, call: int) -> None:
    optimizer.param_groups[0]["lr"].fill_(0.1 / call)


def betas(optimizer: Any, call: int) -> None:
    optimizer.param_groups[0]["betas"] = (0.9 - call / 100, 0.999)


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_explain_causes.py:{first + next(n for n, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize(
    ("optimizer", "change", "remedy"),
    [
        (lambda given: torch.optim.Adam(given, lr=0.1), rate, "lr=torch.tensor(0.001)"),
        (lambda given: torch.optim.AdamW(given, lr=torch.tensor(0.1)), betas, "with fused=True"),
    ],
)
def test_a_setting_of_the_optimizer_comes_before_breaks_that_cost_nothing(optimizer, change, remedy) -> None:
    found = explained_step(trained(optimizer, change))
    first = conclusion(found).partition("Mend first: ")[2]
    assert first.startswith(f"{line_of(trained, 'updates.step()')}: "), first
    assert remedy in first
    assert [each.cuts for each in found.graph_breaks] == [False]
    tables = [table.id for table in report_of(found).tables]
    assert tables.index("recompiles") < tables.index("graph_breaks")


def test_with_the_remedy_no_recompile_is_left_and_nothing_is_to_be_mended() -> None:
    found = explained_step(trained(lambda given: torch.optim.Adam(given, lr=torch.tensor(0.1)), filled))
    assert [each for each in found.recompiles if "lr" in each.guards[0].source] == []
    assert [(each.reason, each.rewrite) for each in found.graph_breaks] == [
        ("Call to `torch._dynamo.graph_break()`, in torch itself", "")
    ]
    assert "Mend first" not in conclusion(found)


def prints_first(x, state):
    print("step")
    state["scale"] += 0.1
    return torch.relu(x * state["scale"])


def prints_between(x):
    y = x * 2
    print("y")
    return y + 1


def number(x):
    n = int((x * x).sum().item()) % 7
    return torch.arange(n + 3) + x.sum()


def asserts(x):
    y = x * 2
    assert not torch.isnan(y).any()
    return y + 1


def loops(x):
    while x.abs().max() > 0.1:
        x = x * 0.5
    return x + 1


def tries(x):
    y = x * 2
    try:
        print(y.sum())
    except ValueError:
        y = x
    return y + 1


def stops(x):
    y = x * 2
    breakpoint()
    return y + 1


@pytest.mark.parametrize(
    ("function", "calls", "line", "remedy"),
    [
        (prints_first, [(X, state := {"scale": 1.0})] * 4, "def prints_first", "state['scale']"),
        (prints_between, [(X,)] * 2, "print(", "print after the compiled function"),
        (number, [(X * size,) for size in range(1, 6)], ".item()", "keep the value a tensor"),
        (asserts, [(X,)] * 2, "assert not", "torch._assert_async"),
        (loops, [(X,)] * 2, "while", "torch.while_loop"),
        (tries, [(X,)] * 2, "print(", "out of a try or with block"),
        (stops, [(X,)] * 2, "breakpoint()", "remove the breakpoint"),
    ],
)
def test_the_first_cause_is_the_one_that_costs_most(function, calls, line, remedy, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.breakpointhook", lambda: None)
    first = conclusion(explanation(function, *calls)).partition("Mend first: ")[2]
    assert remedy in first
    assert first.startswith(line_of(function, line) if line != "def prints_first" else "test_explain_causes.py:"), first


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.calls = nn.Dropout(0.1), 0

    def forward(self, x):
        self.calls += 1
        return self.drop(x) * self.calls


def test_a_number_of_a_module_is_named_as_the_program_names_it() -> None:
    found = explanation(Annealed(), *[(X,)] * 3)
    first = conclusion(found).partition("Mend first: ")[2]
    assert "self.calls changes between calls" in first
    assert "allow_unspec_int_on_nn_module" in first


def test_a_sum_with_a_number_names_the_number() -> None:
    guard = FailedGuard(of="0/0", check="(0.1 + s['t']) == 0.2", source="(0.1 + s['t'])", expected="0.2")
    assert fix((guard,)).startswith("s['t'] is a constant of the first compilation")


def test_a_branch_on_a_number_is_no_shape() -> None:
    guard = FailedGuard(of="0/0", check="((1 + calls) % 2) == 0", source="((1 + calls) % 2)", expected="0")
    assert fix((guard,)).startswith("the code branches on calls: one compilation for each way")


def test_torchs_own_lines_are_no_lines_of_the_user() -> None:
    assert place_of(SourceLine(file="/v/lib/python3.11/site-packages/torch/optim/adam.py", line=214)) == ""
    assert place_of(SourceLine(file="/home/me/torch/train.py", line=3)) == "train.py:3"
    found = explanation(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (X,), (X[:2],), dispatcher=False)
    assert {place_of(graph.place) for graph in found.graphs} == {""}
    assert [guard.place for graph in found.graphs for guard in graph.guards if guard.place] == []
    (size,) = (row for table in report_of(found).tables if table.id == "recompiles" for row in table.rows)
    assert size[1] == "inner"
    assert "drop_last=True" in str(size)  # 4 rows, and then 2
