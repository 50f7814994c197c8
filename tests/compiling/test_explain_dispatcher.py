"""The dispatcher's way of ops: key sets, layers, masks, and costs with an injected clock."""

from __future__ import annotations

import itertools

import pytest
import torch
from explained import X, explanation

from rooflight.studies.compiling.explain.dispatcher import Dispatches
from rooflight.studies.compiling.explain.layer_costs import ROUNDS, costs_of, described

W = torch.ones(8, 8)


def seen(function, *args):
    dispatches = Dispatches()
    with dispatches.watching():
        function(*args)
    return {(each.within, each.op): each for each in dispatches.explained(measure=False)}


def keys(dispatched) -> list[str]:
    return [layer.key for layer in dispatched.layers]


def test_an_op_passes_autograd_and_then_its_kernel() -> None:
    add = seen(torch.add, X, X)["", "aten::add.Tensor"]
    assert add.inputs == ("AutocastCPU", "AutogradCPU", "ADInplaceOrView", "CPU")
    assert add.always == ("ADInplaceOrView", "BackendSelect")
    assert (add.never, add.included, add.excluded) == (("AutocastCPU",), (), ())
    assert set(add.passed_over) == {"ADInplaceOrView", "BackendSelect"}
    autograd, kernel = add.layers
    assert (autograd.key, autograd.kind, kernel.key, kernel.kind) == ("AutogradCPU", "autograd", "CPU", "backend")
    assert autograd.masks == ("Autograd", "ADInplaceOrView")
    assert "VariableType" in autograd.registered
    assert "RegisterCPU" in kernel.registered


def test_a_write_in_place_and_a_view_pass_a_layer_more() -> None:
    assert keys(seen(X.clone().add_, 1)["", "aten::add_.Tensor"]) == ["AutogradCPU", "ADInplaceOrView", "CPU"]
    view = seen(X.t)["", "aten::t"]
    assert keys(view) == ["AutogradCPU", "ADInplaceOrView", "CPU"]
    assert view.layers[0].masks == ("Autograd",)


def test_a_factory_has_its_backend_selected_by_its_arguments() -> None:
    for arange in (lambda: torch.arange(3), lambda: torch.arange(3, device="cpu")):
        found = seen(arange)["", "aten::arange"]
        assert keys(found) == ["BackendSelect", "CPU"]
        assert found.inputs == ()
        assert "ADInplaceOrView" in found.excluded  # by the call from Python, which makes no view
    assert keys(seen(lambda: torch.arange(3, device="meta"))["", "aten::arange"]) == ["BackendSelect", "Meta"]


def test_a_composite_op_calls_others_each_of_which_is_dispatched() -> None:
    found = seen(torch.nn.functional.linear, X, W, W[0])
    linear = found["", "aten::linear"]
    assert [layer.kind for layer in linear.layers] == ["composite"]
    assert linear.calls_on == ("aten::t", "aten::addmm")
    assert keys(found["aten::linear", "aten::addmm"]) == ["AutogradCPU", "CPU"]


def test_autocast_is_a_layer_where_it_is_on() -> None:
    def cast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ W

    found = seen(cast, X)
    matmul = found["", "aten::matmul"]
    assert (matmul.layers[0].key, matmul.layers[0].masks) == ("AutocastCPU", ("AutocastCPU",))
    assert "AutocastCPU" not in matmul.never
    assert "aten::_to_copy" in matmul.calls_on
    assert keys(found["aten::matmul", "aten::mm"]) == ["AutogradCPU", "CPU"]  # it is excluded inside


def test_modes_change_what_the_thread_adds() -> None:
    with torch.inference_mode():
        plain = seen(torch.add, X, X)["", "aten::add.Tensor"]
    assert keys(plain) == ["CPU"]
    assert "AutogradCPU" in plain.excluded
    assert "ADInplaceOrView" not in plain.always
    with torch.no_grad():
        add = seen(torch.add, X, X)["", "aten::add.Tensor"]
    assert keys(add) == ["AutogradCPU", "CPU"]  # the layer is passed, and makes no node
    assert not add.grad
    found = seen(torch.vmap(torch.sin), X)["", "aten::sin"]
    assert "FuncTorchDynamicLayerFrontMode" in found.included


def test_backward_ops_are_marked_and_watching_leaves_no_trace() -> None:
    x = X.clone().requires_grad_()
    found = seen(lambda: torch.autograd.grad((x * 2).sum(), x))
    assert {each.backward for each in found.values()} == {False, True}
    assert not found["", "aten::sum"].backward
    before = torch._C._dispatch_tls_local_include_set().raw_repr()

    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        seen(fails, X)
    assert torch._C._dispatch_tls_local_include_set().raw_repr() == before
    assert len(Dispatches()) == 0


def test_equal_calls_are_one_row_and_results_are_those_without_watching() -> None:
    dispatches, results = Dispatches(), []
    with dispatches.watching():
        for _ in range(3):
            results.append(torch.softmax(X @ W, -1))
    assert [each.calls for each in dispatches.explained(measure=False) if each.op == "aten::softmax.int"] == [3]
    assert all(torch.equal(each, torch.softmax(X @ W, -1)) for each in results)


def test_costs_are_the_differences_of_levels() -> None:
    """A clock that is read twice per batch: all layers take 5 s, below autograd 3 s, below views 2 s."""
    layers = seen(X.t)["", "aten::t"].layers
    batch = iter(itertools.cycle([5.0, 3.0, 2.0]))
    state = {"now": 0.0, "reads": 0}

    def clock() -> float:
        state["reads"] += 1
        if state["reads"] <= 2:  # three calls to choose the number of calls in a batch: one
            state["now"] += 1.0
        elif state["reads"] % 2 == 0:
            state["now"] += next(batch)
        return state["now"]

    found = costs_of(torch.ops.aten.t.default, described(((X,), {})), layers, clock=clock)
    assert found.call_s == 5.0
    assert found.layers_s == ((2.0, 0.0), (1.0, 0.0))
    assert state["reads"] == 2 + 2 * 3 * ROUNDS


def test_timing_changes_neither_random_numbers_nor_threads() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    dispatches = Dispatches()
    with dispatches.watching():
        pass
    explanation(torch.nn.Dropout(0.5), (X,), dispatcher=True, backend="eager")
    torch.manual_seed(0)
    with dispatches.watching():
        torch.bernoulli(X.clamp(0, 1))
    after = torch.get_rng_state()
    assert dispatches.explained()
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_an_op_that_does_not_run_on_small_inputs_is_not_timed() -> None:
    view = torch.ops.aten.view.default
    layers = seen(lambda: X.view(2, 16))["", "aten::view"].layers
    assert costs_of(view, described(((X, [2, 16]), {})), layers).call_s is None
    assert costs_of(view, described(((X, [16, 1]), {})), layers).call_s is not None  # 4 x 4, as the small input is
