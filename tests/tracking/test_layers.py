"""``LayerSOLHooks`` and ``sol_profile``: what they count, what they refuse, and that nothing of them stays."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from tracked import CPU, Model, hooks_of, loss_of, tokens

import rooflight as rl
from rooflight import LayerSOLHooks, sol_profile
from rooflight.sources.capture.record import dispatch
from rooflight.studies.tracking.report import scalars_of


def train(model: nn.Module, batch: int = 2) -> None:
    model.zero_grad()
    loss_of(model(tokens(batch)), tokens(batch)).backward()


def linear_flops(rows: int) -> int:
    """Of a forward pass of ``Model``: in each of 2 layers 8 -> 16 and 16 -> 8, then 8 -> 10."""
    return 2 * rows * (2 * (8 * 16 + 16 * 8) + 8 * 10)


def test_a_forward_pass_has_the_flops_of_its_matrices():
    model = Model()
    with sol_profile(model, CPU) as hooks, torch.no_grad():
        model(tokens())
    # 8 rows: 2 * 8 * (2 * 256 + 80) = 9472
    assert hooks.analysis.totals.matrix_flops == linear_flops(8) == 9472
    assert hooks_of(model) == 0


def test_a_training_pass_has_three_times_those_of_forward():
    model = Model()
    with sol_profile(model, CPU) as hooks:
        train(model)
    assert hooks.analysis.totals.matrix_flops == 3 * linear_flops(8)
    report = hooks.report()
    assert "Model" in report.title
    assert [table.id for table in report.tables][:3] == ["account", "by_phase", "by_layer"]


def test_the_last_pass_that_is_known_is_reported():
    model = Model()
    hooks = LayerSOLHooks(model, CPU).attach()
    for _ in range(4):
        train(model)
        hooks.step()
    assert hooks.analysis.totals.matrix_flops == 3 * linear_flops(8)
    hooks.detach()
    report = hooks.report()
    assert "iteration 3" in report.title
    assert hooks_of(model) == 0
    assert report.data.step.measured_s > 0


def test_the_report_can_be_read_while_the_pass_is_open():
    model = Model()
    hooks = LayerSOLHooks(model, CPU).attach()
    with pytest.raises(RuntimeError, match="nothing was recorded yet"):
        hooks.report()
    with torch.no_grad():
        model(tokens())
    assert hooks.analysis.totals.matrix_flops == linear_flops(8)
    with torch.no_grad():
        model(tokens())
    assert hooks.analysis.totals.matrix_flops == 2 * linear_flops(8)
    hooks.detach()
    assert hooks.analysis.totals.matrix_flops == 2 * linear_flops(8)


def test_uses_in_the_wrong_order_are_refused_in_words():
    hooks = LayerSOLHooks(Model(), CPU)
    with pytest.raises(RuntimeError, match="nothing was recorded yet"):
        hooks.report()
    with pytest.raises(RuntimeError, match="not attached"):
        hooks.step()
    hooks.detach()
    hooks.attach()
    with pytest.raises(RuntimeError, match="attached already"):
        hooks.attach()
    assert hooks.attached
    hooks.detach()
    hooks.detach()
    assert not hooks.attached
    with sol_profile(Model(), CPU) as hooks:
        pass
    with pytest.raises(RuntimeError, match="nothing was recorded yet"):
        hooks.report()


def test_attached_again_it_forgets_what_was_before():
    model = Model()
    hooks = LayerSOLHooks(model, CPU)
    for batch in (2, 3):
        hooks.attach()
        with torch.no_grad():
            model(tokens(batch))
        hooks.detach()
        assert hooks.analysis.totals.matrix_flops == linear_flops(4 * batch)


def test_the_device_may_be_named_and_an_unknown_one_is_refused_before_anything_is_touched():
    model = Model()
    with pytest.raises(ValueError, match="unknown device"):
        LayerSOLHooks(model, "NVIDIA H300")
    with sol_profile(model, "H100-SXM5-80GB") as hooks:
        model(tokens())
    assert hooks.analysis.device.name == "H100-SXM5-80GB"
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
        LayerSOLHooks([model, "model"], CPU)
    with pytest.raises(TypeError), sol_profile("model", CPU):
        raise AssertionError("never reached")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_passes_and_what_ran_before_it_is_reported(error):
    model = Model()
    hooks = None

    def run():
        nonlocal hooks
        with sol_profile(model, CPU) as hooks:
            model(tokens()).detach_()
            raise error

    with pytest.raises(error):
        run()
    assert hooks_of(model) == 0
    assert hooks.analysis.totals.matrix_flops == linear_flops(8)


def test_several_models_by_name():
    models = {"policy": Model(), "reference": Model()}
    with sol_profile(models, CPU) as hooks:
        for model in models.values():
            model(tokens())
    groups = {group.name: group for group in hooks.analysis.by("module")}
    assert groups["policy.head"].matrix_flops == groups["reference.head"].matrix_flops == 2 * 8 * 80
    assert hooks.analysis.totals.matrix_flops == 2 * linear_flops(8)
    assert "policy and reference" in hooks.report().title


def test_two_profiles_of_one_model_each_see_all_and_may_end_out_of_order():
    model = Model()
    first, second = LayerSOLHooks(model, CPU).attach(), LayerSOLHooks(model, CPU).attach()
    with torch.no_grad():
        model(tokens())
    first.detach()
    with torch.no_grad():
        model(tokens())
    second.detach()
    assert first.analysis.totals.matrix_flops == linear_flops(8)
    assert second.analysis.totals.matrix_flops == 2 * linear_flops(8)
    assert hooks_of(model) == 0


def test_hooks_gone_with_the_model_keep_nothing_alive():
    model = Model()
    with sol_profile(model, CPU) as hooks:
        train(model)
    freed = weakref.ref(model.layers[0])
    assert hooks.analysis is not None
    del model, hooks
    gc.collect()
    assert freed() is None


def test_a_model_can_be_copied_while_attached_and_the_copy_runs_alone():
    model = Model()
    with sol_profile(model, CPU):
        clone = copy.deepcopy(model)
    train(clone)
    assert clone.head.weight.grad is not None


@pytest.mark.parametrize("where", ["op", "hook", "analysis"])
def test_an_error_of_our_own_does_not_reach_the_program_and_is_told_with_the_report(monkeypatch, where):
    def fail(*_, **__):
        raise ZeroDivisionError("ours")

    model = Model()
    expected = model(tokens())
    if where == "op":
        monkeypatch.setattr(dispatch, "_current_graph_task_id", fail)
    elif where == "hook":
        monkeypatch.setattr("rooflight.sources.capture.time.spans.look_of", fail)
    else:
        monkeypatch.setattr("rooflight.studies.tracking.observer.analyze", fail)
        monkeypatch.setattr("rooflight.studies.tracking.layers.analyze", fail)
    with sol_profile(model, CPU) as hooks:
        output = model(tokens())
        output.sum().backward()
    assert torch.equal(output, expected)
    assert hooks_of(model) == 0
    assert not hooks.attached
    with pytest.raises(RuntimeError, match="were removed after an error: ours"):
        hooks.report()


def test_an_error_of_our_own_between_steps_does_not_reach_the_loop(monkeypatch):
    model = Model()
    monkeypatch.setattr("rooflight.studies.tracking.observer.analyze", lambda *_: 1 / 0)
    hooks = LayerSOLHooks(model, CPU).attach()
    train(model)
    hooks.step()
    assert not hooks.attached
    assert hooks_of(model) == 0
    with pytest.raises(RuntimeError, match="were removed after an error"):
        hooks.report()


def test_spans_and_structure_speak_of_the_same_modules():
    model = Model()
    hooks = LayerSOLHooks(model, CPU).attach()
    for _ in range(3):
        train(model)
        hooks.step()
    data = hooks.report().data.step
    hooks.detach()
    names = {row.name for row in data.by_module}
    assert {"head", "layers.0.up", "layers.1.norm", "embed"} <= names
    linear = next(row for row in data.by_layer if row.name == "Linear")
    assert linear.matrix_flops == 3 * linear_flops(8)
    assert linear.measured_s > 0


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_has_the_work_of_the_one_it_wraps(in_place):
    torch._dynamo.reset()
    counters.clear()
    model = Model()
    with sol_profile(model, CPU) as eager:
        train(model)
    compiled = model
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True)
    else:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    hooks = LayerSOLHooks(compiled, CPU).attach()
    for _ in range(4):
        train(compiled)
        hooks.step()
    totals, groups = hooks.analysis.totals, {group.name: group for group in hooks.analysis.by("layer")}
    hooks.detach()
    assert totals.matrix_flops == eager.analysis.totals.matrix_flops
    assert totals.bytes_moved == eager.analysis.totals.bytes_moved
    assert groups["Linear"].matrix_flops == 3 * linear_flops(8)
    # compiled, its parts run as one: that has the time of all, and the bounds of all
    rows = {row.name: row for row in hooks.report().data.step.by_layer}
    assert rows["Model"].matrix_flops == 3 * linear_flops(8)
    assert rows["Model"].measured_s > 0
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch._dynamo.reset()


def test_a_pass_says_what_ran_outside_modules():
    model = Model()
    with sol_profile(model, CPU) as hooks:
        train(model)
        with rl.phase("extra"):
            torch.ones(4, 4) @ torch.ones(4, 4)
    rows = {group.name: group for group in hooks.analysis.by("layer")}
    assert rows["(outside modules)"].matrix_flops == 2 * 4 * 4 * 4
    phases = {group.name: group for group in hooks.analysis.by("phase")}
    assert phases["extra"].matrix_flops == 128


def test_what_ran_here_is_not_divided_by_another_devices_bound():
    model = Model()
    hooks = LayerSOLHooks(model, "H100-SXM5-80GB").attach()
    for _ in range(4):
        train(model)
        hooks.step()
    hooks.detach()
    report = hooks.report()
    assert "efficiency" not in dict(report.facts)
    assert dict(report.facts)["times"].startswith("none by place: the loop ran on another device")
    assert "step of" in dict(report.facts)["measured there"]
    assert all(place.efficiency is place.measured_s is None for place in report.data.step.by_layer)
    assert report.data.step.by_layer[0].op_bound_s > 0
    found = scalars_of(hooks._last)
    assert {"sol/iteration_s", "sol/op_bound_s", "sol_phase/forward/seconds"} <= set(found)
    assert not [name for name in found if "efficiency" in name]
