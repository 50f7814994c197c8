"""Remedies tried on a step: whatever else is in the process, and with optimizers that have no fused form."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from rooflight.front.applied import applied
from rooflight.roofline.findings import Finding, Regime
from rooflight.sources.workloads.remedied import WHILE_MADE, changed, modules_alive

STEP = """
import torch
from torch import nn


def make_step():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    optimizer = torch.optim.{kind}(model.parameters(), lr=0.01)
    x = torch.randn(4, 8)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""


def finding(name: str) -> Finding:
    return Finding(id=name, title=name, regime=Regime.OVERHEAD, seconds_lost=0.0, share=0.0, evidence="", short="",
                   remedy="", predicted_gain_s=1e-3, predicted_gain_low_s=0.0, predicted_gain_high_s=1e-2,
                   after_others_s=0.0, verify="")  # fmt: skip


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop"])
def test_an_optimizer_is_tried_in_the_form_that_it_has(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(STEP.replace("{kind}", kind))
    (found,) = applied(f"{file}:make_step", None, [finding("fused-optimizer")], 1, lambda _: None)
    assert found.results == "the same"
    assert found.measured_gain_s is not None


def test_torch_is_as_before() -> None:
    before = torch.optim.AdamW.__init__, torch.optim.RMSprop.__init__
    with WHILE_MADE["fused-optimizer"]():
        assert torch.optim.RMSprop([nn.Parameter(torch.ones(1))]).defaults["foreach"] is True
        assert torch.optim.Adam([nn.Parameter(torch.ones(1))]).defaults["fused"] is True
    assert (torch.optim.AdamW.__init__, torch.optim.RMSprop.__init__) == before


def test_dead_weak_references_and_other_models_are_left_alone() -> None:
    other = nn.Conv2d(3, 4, 3)
    gone = nn.Linear(2, 2)
    proxy = weakref.proxy(gone)
    del gone
    with pytest.raises(ReferenceError):
        isinstance(proxy, nn.Module)
    known = modules_alive()
    mine = nn.Conv2d(3, 4, 3)
    step = lambda: mine(torch.ones(1, 3, 8, 8))  # noqa: E731
    assert changed("channels-last", step, known) is step
    assert mine.weight.is_contiguous(memory_format=torch.channels_last)
    assert not other.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiling_is_tried_on_the_models_and_not_on_what_the_program_does_beside() -> None:
    known = modules_alive()
    model = nn.Sequential(nn.Linear(2, 2))
    step = lambda: model(torch.ones(1, 2))  # noqa: E731
    assert changed("compile", step, known) is step
    assert model._compiled_call_impl is not None
    assert model[0]._compiled_call_impl is None
    plain = lambda: torch.ones(1)  # noqa: E731
    assert changed("compile", plain, modules_alive()) is not plain


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_compiled_without_a_model_leaves_the_optimizer_out_as_the_prediction_does(monkeypatch) -> None:
    known = modules_alive()
    weight = torch.ones(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    traced: list[str] = []

    def step() -> torch.Tensor:
        loss = (weight.sin() * weight).sum()
        loss.backward()
        optimizer.step()
        return weight.detach()

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        traced.extend(node.name for node in graph.graph.nodes if node.op.startswith("call"))
        return graph

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run: compile_(run, backend=backend))
    before = weight.detach().clone()
    changed("compile", step, known)()
    assert "sin" in traced
    assert [name for name in traced if "add" in name] == []  # what an update would be
    assert not torch.equal(weight.detach(), before)
