"""Functions with a known graph break: the line, torch's reason, and a rewrite that removes it."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import io
import logging
import os
import random
import time
import warnings

import numpy as np
import pytest
import torch
from explained import X, explanation

from rooflight.studies.compiling.explain.breaks import graph_break, graph_breaks, rewrite

LSTM = torch.nn.LSTM(8, 8)
LOG = logging.getLogger("explained")


def branch(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def branch_in_try(x):
    try:
        if x.sum() > 0:
            x = x + 1
    except ValueError:
        x = x - 1
    return x


def branchless(x):
    return torch.where(x.sum() > 0, x + 1, x - 1)


def prints(x):
    y = x + 1
    print(y.shape)
    return y * 2


def silent(x):
    return (x + 1) * 2


def warns(x):
    y = x + 1
    warnings.warn("careful", stacklevel=1)
    return y


def warns_outside(x):
    y = x + 1
    if not torch.compiler.is_compiling():
        warnings.warn("careful", stacklevel=1)
    return y


def logs(x):
    LOG.debug("seen")
    return x + 1


@torch.compiler.disable
def apart(x):
    return x * 3


def breaks(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def backward_inside(x):
    y = x.clone().requires_grad_()
    (y * 2).sum().backward()
    return x + 1


def opens(x):
    with open(os.devnull) as file:  # noqa: PTH123 - the call that breaks
        file.read()
    return x + 1


def plain(x):
    return x + 1


NUMBER, OUTSIDE = "keep the value a tensor", "before or after the compiled"
# function, code of the line that breaks, reason, advice, and the function rewritten by that advice
BREAKS = [
    (branch, "if x.sum() > 0", "Data-dependent branching", "torch.where", branchless),
    (branch_in_try, "if x.sum() > 0", "Data-dependent branching", "torch.where", branchless),
    (lambda x: x * x.max().item(), "x.max().item()", "Tensor.item()", NUMBER, lambda x: x * x.max()),
    (lambda x: x * float(x.sum()), "float(x.sum())", "Tensor.item()", NUMBER, lambda x: x * x.sum()),
    (prints, "print(y.shape)", "Failed to trace builtin operator `print`", "reorderable_logging_functions", silent),
    (lambda x: torch.tensor(x.tolist()) + 1, "x.tolist()", "tolist()", "keep the tensor", plain),
    (lambda x: torch.from_numpy(np.apply_along_axis(np.sort, 0, x.numpy())), "np.apply_along_axis",
     "numpy function unsupported", "write it with torch ops", lambda x: torch.sort(x, dim=0).values),
    (warns, "warnings.warn", "marked as skipped", "is_compiling()", warns_outside),
    (logs, "LOG.debug", "logging.Logger", "ignore_logging_functions.add(logging.Logger.debug)", plain),
    (lambda x: (x * 2, time.time()), "time.time()", "marked as skipped", "read the clock before and after",
     lambda x: x * 2),
    (lambda x: x * random.random(), "random.random()", "marked as skipped", "draw with torch",
     lambda x: x * torch.rand(())),
    (lambda x: x * np.random.rand(), "np.random.rand()", "Data dependent operator", NUMBER,
     lambda x: x * torch.rand(())),
    (lambda x: apart(x + 1) * 2, "apart(x + 1)", "torch.compiler.disable", "remove torch.compiler.disable",
     lambda x: (x + 1) * 3 * 2),
    (breaks, "graph_break()", "graph_break()", "remove the call", silent),
    (lambda x: x[x > 0.5] * 2, "x[x > 0.5]", "Dynamic shape operator", "torch.where",
     lambda x: torch.where(x > 0.5, x * 2, 0.0)),
    (lambda x: x[: int(x.sum())], "int(x.sum())", "Tensor.item()", NUMBER, plain),
    (backward_inside, ".backward()", "Tensor.backward()", "call backward outside", plain),
    (lambda x: copy.deepcopy(x) + 1, "copy.deepcopy(x)", "copy.deepcopy a tensor", "x.clone()",
     lambda x: x.clone() + 1),
    (opens, "open(os.devnull)", "Failed to trace builtin operator `open`", OUTSIDE, plain),
    (lambda x: x + os.getpid() * 0, "os.getpid()", "marked as skipped", OUTSIDE, plain),
    (lambda x: x * len(str(x)), "str(x)", "Failed to trace builtin operator `str`", OUTSIDE, plain),
    (lambda x: LSTM(x)[0], "LSTM(x)", "RNN, GRU, or LSTM", "allow_rnn", None),
    (lambda x: eval("x + 1"), 'eval("x + 1")', "Failed to trace builtin operator `eval`", OUTSIDE, plain),
]  # fmt: skip


def quietly(function, **options):
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return explanation(function, **options)


@pytest.mark.parametrize(("function", "code", "reason", "advice", "rewritten"), BREAKS)
def test_a_break_and_the_rewrite_that_removes_it(function, code, reason, advice, rewritten) -> None:
    found = quietly(function)
    first = found.graph_breaks[0]
    assert first.place is not None
    assert first.place.file == __file__
    assert code in first.place.code
    if function.__name__ == "<lambda>":
        assert first.place.line == function.__code__.co_firstlineno
    assert reason in first.reason
    assert advice in first.rewrite
    if rewritten is not None:
        assert quietly(rewritten).graph_breaks == ()


def test_a_log_is_left_out_and_a_break_in_a_try_runs_the_whole_function_eagerly() -> None:
    with torch._dynamo.config.patch(ignore_logging_functions={logging.Logger.debug}):
        assert explanation(logs).graph_breaks == ()
    found = quietly(branch_in_try)
    assert found.graph_breaks[0].whole_function
    assert [graph.state for graph in found.graphs] == ["failed"]
    assert "Data-dependent" in found.graphs[0].failed
    assert not quietly(branch).graph_breaks[0].whole_function


def test_each_line_is_told_once_with_how_often_it_broke() -> None:
    found = quietly(branch, dynamic=False)
    again = explanation(branch, (X,), (X[:2],), (X[:3],), dynamic=False)
    assert [each.times for each in found.graph_breaks] == [1]
    assert [each.times for each in again.graph_breaks] == [3]  # a compilation for each size


def test_what_torch_explain_misses() -> None:
    """``torch._dynamo.explain`` counts graphs - 1, which is 0 where nothing can be compiled after the break."""
    counted = torch._dynamo.explain(branch_in_try)(X)
    assert counted.graph_break_count <= 0
    torch._dynamo.reset()
    assert len(quietly(branch_in_try).graph_breaks) == 1


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    factor: float = 2.0


def uses_dataclass(x):
    pair = Pair(x)
    return pair.first * pair.factor


def uses_deque(x):
    queue = collections.deque([x], maxlen=2)
    queue.append(x + 1)
    return queue[0] + queue[1]


def catches(x):
    y = x + 1
    try:
        raise ValueError
    except ValueError:
        return y * 2


def consumes(x):
    return sum(generates(x))


def generates(x):
    for factor in range(3):
        yield x * factor


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "function",
    [uses_dataclass, uses_deque, catches, consumes, Layers(), lambda x: sum(list(x)),
     lambda x: torch.from_numpy(np.sin(x.numpy()))],
)  # fmt: skip
def test_one_graph_without_a_break(function) -> None:
    found = explanation(function)
    assert [graph.state for graph in found.graphs] == ["captured"]
    assert found.graph_breaks == ()
    assert found.recompiles == ()
    assert found.not_compiled == ""


def test_the_graph_of_a_function_with_its_ops_and_guards() -> None:
    found = explanation(consumes)
    (graph,) = found.graphs
    assert graph.place is not None
    assert (graph.id, graph.function, graph.origin) == ("0/0", "consumes", "first")
    assert {op.op: op.count for op in graph.ops} == {"mul": 3, "add": 3}
    tensor = [guard for guard in graph.guards if guard.kind == "TENSOR_MATCH"]
    assert [guard.source for guard in tensor] == ["x"]
    assert "size=[4, 8]" in tensor[0].check
    assert tensor[0].place is not None
    assert tensor[0].place.file == __file__
    assert graph.guard_s is not None
    assert 0 < graph.guard_s < 1
    assert sum(graph.stages_s.values()) > 0


def test_the_rest_of_a_function_is_a_graph_of_its_own() -> None:
    first, rest = explanation(breaks).graphs
    assert (first.function, rest.function) == ("breaks", "breaks")
    assert (first.origin, rest.origin) == ("first", "after a break")
    assert rest.place is not None
    assert first.place is not None
    assert rest.place.line == first.place.line + 2


NOT_OF_TORCH = [
    "",
    "\n",
    "Graph break in user code at",
    "Graph Break Reason:",
    "User code traceback:\n  File",
    "x" * 10_000,
]


@pytest.mark.parametrize("text", NOT_OF_TORCH)
def test_a_text_that_torch_never_wrote_has_no_reason_or_its_own(text) -> None:
    found = graph_break(text)
    assert found.reason
    assert found.rewrite
    assert len(graph_breaks([text, text])) == 1
    assert graph_breaks([text, text])[0].times == 2


def test_every_kind_of_break_of_torchs_registry_has_advice() -> None:
    import json
    from pathlib import Path

    registry = Path(torch._dynamo.__file__).parent / "graph_break_registry.json"
    kinds = {entry["Gb_type"] for entries in json.loads(registry.read_text()).values() for entry in entries}
    assert len(kinds) > 200
    assert all(rewrite(kind) for kind in kinds)
