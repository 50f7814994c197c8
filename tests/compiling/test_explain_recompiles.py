"""Functions with a known recompile: which guard failed on which values, and a fix that prevents it."""

from __future__ import annotations

import pytest
import torch
from explained import X, explanation, in_states

from rooflight.studies.compiling.explain.breaks import Symbols, failed_guards, fix
from rooflight.studies.compiling.explain.explain import explained
from rooflight.studies.compiling.explain.tables import report_of
from rooflight.studies.compiling.explain.trace import Entry
from rooflight.studies.compiling.options import ExplainOptions

COUNT = 0


def double(x):
    return x * 2


def times(x, k):
    return x * k


def narrow(x, n):
    return x[:, :n] * 1


def total(xs):
    return sum(xs)


def total_of_dict(values):
    return sum(values.values())


def named(x, how):
    return x * 2 if how == "double" else x * 3


def applied(x, function):
    return function(x)


def grows(x):
    return x * 2 if x.shape[0] > 5 else x + 1


def counts(x):
    global COUNT
    COUNT += 1
    return x + COUNT


def sized(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.ones(size, 8),) for size in sizes]


def marked(*sizes: int) -> list[tuple[torch.Tensor]]:
    calls = sized(*sizes)
    for (x,) in calls:
        torch._dynamo.mark_dynamic(x, 0)
    return calls


# function, calls, (guard on, expected, was) of the first recompile, advice; calls that need none, torch's ``dynamic``
RECOMPILES = [
    (double, sized(4, 5, 6), ("size of x, dimension 0", "4", "5"), "mark_dynamic(x, 0)", marked(4, 5, 6), None),
    (double, sized(4, 5, 6), ("size of x, dimension 0", "4", "5"), "dynamic=True", sized(4, 5, 6), True),
    (double, sized(4, 1), ("size of x, dimension 0", "4", "1"), "sizes 0 and 1 apart", sized(4, 2), True),
    (times, [(X, 3), (X, 4)], ("k", "3", "4"), "torch.tensor(k)", [(X, torch.tensor(3)), (X, torch.tensor(4))], None),
    (times, [(X, 0.5), (X, 0.7)], ("k", "0.5", "0.7"), "torch.tensor(k)",
     [(X, torch.tensor(0.5)), (X, torch.tensor(0.7))], None),
    (narrow, [(X, 3), (X, 4)], ("n", "3", "4"), "dynamic=True", [(X, 3), (X, 4)], True),
    (double, [(X,), (X.double(),)], ("dtype of x", "Float", "Double"), "one dtype", [(X,), (X + 1,)], None),
    (double, [(X,), (X[0],)], ("rank of x", "2", "1"), "same number of dimensions",
     [(X,), (X[:1].expand(4, 8) + 0,)], None),
    (double, [(torch.ones(8, 8),), (torch.ones(8, 8).t(),)], ("stride of x, dimension 0", "8", "1"), "contiguous()",
     [(torch.ones(8, 8),), (torch.ones(8, 8).t().contiguous(),)], None),
    (double, [(X,), (X.clone().requires_grad_(),)], ("requires_grad of x", "0", "1"), "require grad or none",
     [(X,), (X + 1,)], None),
    (double, [(X,), (torch.nn.Parameter(X, requires_grad=False),)], ("", "", ""), "tensors of one class",
     [(X,), (X + 1,)], None),
    (total, [([X] * 2,), ([X] * 3,)], ("len(xs)", "2", "3"), "one stacked tensor",
     [(torch.stack([X, X]),), (torch.stack([X, X]) + 1,)], None),
    (total_of_dict, [({"a": X},), ({"b": X},)], ("list(dict.keys(values))[0]", "'a'", "'b'"), "same keys",
     [({"a": X},), ({"a": X + 1},)], None),
    (named, [(X, "double"), (X, "triple")], ("how", "'double'", "'triple'"), "few different values",
     [(X, "double"), (X + 1, "double")], None),
    (applied, [(X, torch.sin), (X, torch.cos)], ("", "", ""), "pass the same one",
     [(X, torch.sin), (X + 1, torch.sin)], None),
]  # fmt: skip


@pytest.mark.parametrize(("function", "calls", "guard", "advice", "fixed", "dynamic"), RECOMPILES)
def test_a_recompile_and_the_fix_that_prevents_it(function, calls, guard, advice, fixed, dynamic) -> None:
    first = explanation(function, *calls).recompiles[0]
    assert first.id == "0/1"
    assert first.function == function.__name__
    failed = first.guards[0]
    assert failed.of == "0/0"
    assert (failed.source, failed.expected, failed.actual) == guard
    assert advice in first.fix
    assert explanation(function, *fixed, dynamic=dynamic).recompiles == ()


def test_a_branch_on_a_shape_bounds_it() -> None:
    first, second = explanation(grows, *sized(3, 4, 6)).recompiles
    assert "mark_dynamic" in first.fix
    assert (second.guards[0].source, second.guards[0].actual) == ("x.size()[0]", "6")
    assert "<= 5" in second.guards[0].check
    assert "outside" in second.fix


def test_a_global_that_changes() -> None:
    (first, *_) = explanation(counts, (X,), (X,)).recompiles
    assert first.guards[0].source == "G['COUNT']"
    assert int(first.guards[0].actual) == int(first.guards[0].expected) + 1
    assert "a buffer" in first.fix


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.factor = torch.nn.Dropout(0.5), 1
        self.layers = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.dropout(x) * self.factor


def states(function, *changes):
    return explained(in_states(function, changes), ExplainOptions(backend="eager", dispatcher=False)).recompiles


def test_states_of_torch_and_of_a_module() -> None:
    (grad,) = states(double, lambda: None, torch.no_grad)
    assert grad.guards[0].source == "grad_mode"
    assert "in the same state" in grad.fix
    (cast,) = states(double, lambda: None, lambda: torch.autocast("cpu", torch.bfloat16))
    assert cast.guards[0].source.startswith("autocast")
    net = Net()
    (mode,) = states(net, lambda: net.train() and None, lambda: net.eval() and None)
    assert ".training" in mode.guards[0].source
    assert (mode.guards[0].expected, mode.guards[0].actual) == ("True", "False")
    assert "two programs" in mode.fix
    (number,) = states(net, lambda: setattr(net, "factor", 1), lambda: setattr(net, "factor", 2))
    assert (number.guards[0].expected, number.guards[0].actual) == ("1", "2")
    assert "allow_unspec_int_on_nn_module" in number.fix
    (grown,) = states(net, lambda: None, lambda: net.layers.append(torch.nn.Identity()) and None)
    assert "before the first call" in grown.fix


def test_torch_gives_up_at_its_limit() -> None:
    limit = torch._dynamo.config.recompile_limit
    found = explanation(total, *[([X] * number,) for number in range(2, limit + 4)])
    *kept, last = found.recompiles
    assert [each.limit for each in kept] == [False] * (limit - 1)
    assert last.limit
    assert last.function == "total"
    assert len(last.guards) == limit


def entry(text: str) -> Entry:
    return Entry(name="recompile_reasons", id="0/1", attempt=0, fields=None, text=text)


NOT_OF_TORCH = ["", "[", "[]", "0/0", "0/0: ", "[1, 2]", "0/0: tensor 'x' size mismatch", "\n\n", '["0/0: a == "]']


@pytest.mark.parametrize("text", NOT_OF_TORCH)
def test_a_text_that_torch_never_wrote(text) -> None:
    guards = failed_guards(entry(text), Symbols((), ()))
    assert isinstance(fix(guards), str)


def test_the_graphs_of_the_report_are_those_of_its_conclusion() -> None:
    report = report_of(explanation(double, (torch.ones(3),), (torch.ones(5),)))
    assert dict(report.facts)["graphs"] == "1, and 1 more by recompiles"
    assert report.conclusion.startswith("1 graph for 2 calls, 0 graph breaks, 1 recompile.")
    assert dict(report_of(explanation(double, (X,))).facts)["graphs"] == 1


@pytest.mark.parametrize("numbers", [(2, 3, 4, 5), (0.5, 0.7, 0.9, 1.1)])
def test_a_number_is_a_variable_from_its_second_value_on_or_from_the_start(numbers) -> None:
    calls = [(X.clone(), number) for number in numbers]
    (again,) = explanation(times, *calls).recompiles  # of four values the second alone
    assert again.fix.startswith("k is a constant of the first compilation, and a variable once it has had a second")
    assert "dynamic=True" in again.fix
    assert explanation(times, *calls, dynamic=True).recompiles == ()
    assert explanation(times, *[(x, torch.tensor(number)) for x, number in calls]).recompiles == ()
    static = explanation(times, *calls, dynamic=False).recompiles
    assert len(static) >= 2
    assert static[0].fix.startswith("k is compiled as a constant: leave --static")


def repeated(x, k):
    for _ in range(k):
        x = x + 1
    return x


def test_a_number_that_decides_how_the_code_runs_is_a_constant_also_with_dynamic_shapes() -> None:
    for dynamic in (None, True):
        (again,) = explanation(repeated, (X.clone(), 2), (X.clone(), 3), dynamic=dynamic).recompiles
        assert again.guards[0].source == "k"
        assert again.fix.startswith("the code needs the value of k while it is traced")
