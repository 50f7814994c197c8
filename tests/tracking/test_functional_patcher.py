"""``FunctionalPatcher``: functions of torch by name, and torch as before however it ends."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from tracked import CPU, Model, loss_of, tokens

from rooflight import FunctionalPatcher, sol_profile
from rooflight.roofline.tables.document import analysis_data
from rooflight.sources.capture.record import dispatch


def patched(run, *models) -> FunctionalPatcher:
    patcher = FunctionalPatcher(CPU).patch()
    for model in models:
        patcher.register_model(model)
    try:
        run()
    finally:
        patcher.unpatch()
    return patcher


def functions(patcher: FunctionalPatcher) -> dict[str, int]:
    return {group.name: group.matrix_flops for group in patcher.analyze().by("function")}


def test_functions_of_a_program_without_modules():
    a, b = torch.ones(4, 6), torch.ones(6, 5)

    def run():
        torch.matmul(a, b)
        a @ b
        torch.mm(a, b)
        functional.linear(a, b.t())
        functional.softmax(a, -1)
        a.sum()

    found = functions(patched(run))
    # 2 * 4 * 6 * 5 = 240; the operator is matmul too
    assert found["matmul"] == 480
    assert found["mm"] == found["linear"] == 240
    assert {"softmax", "sum"} <= set(found)


def test_the_summary_has_arithmetic_intensities():
    a, b = torch.ones(4, 6), torch.ones(6, 5)
    patcher = patched(lambda: torch.mm(a, b))
    # 2 * 4 * 6 * 5 = 240 FLOP; 4 * (24 + 30 + 20) = 296 B
    (row,) = patcher.report().table("by_function").values("intensity")
    assert row == pytest.approx(240 / 296)
    assert "0.81 FLOP/B" in patcher.get_summary()


def test_a_backward_pass_belongs_to_the_functions_of_its_forward_pass():
    weight = torch.ones(5, 6, requires_grad=True)

    def run():
        functional.linear(torch.ones(4, 6), weight).sum().backward()

    found = functions(patched(run))
    assert found["linear"] == 480  # forward, and the weight's gradient of as many FLOPs
    assert "backward" not in found


def test_models_are_named_before_and_after_patch():
    model, other = Model(), Model()
    patcher = FunctionalPatcher(CPU)
    patcher.register_model({"first": model})
    patcher.patch()
    patcher.register_model({"second": other})
    model(tokens())
    other(tokens())
    patcher.unpatch()
    paths = {group.name for group in patcher.analyze().by("module")}
    assert {"first.head", "second.head"} <= paths
    for state in (patcher, FunctionalPatcher(CPU)):
        with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
            state.register_model("model")


@pytest.mark.parametrize("before", [True, False])
def test_two_models_registered_one_after_the_other_have_the_names_they_have_alone(before):
    models = [Model(), nn.Sequential(nn.Linear(8, 8))]
    patcher = FunctionalPatcher(CPU)
    if before:
        for model in models:
            patcher.register_model(model)
    patcher.patch()
    if not before:
        for model in models:
            patcher.register_model(model)
    models[0](tokens())
    models[1](torch.ones(3, 8))
    patcher.unpatch()
    groups = {group.name: group.matrix_flops for group in patcher.analyze().by("module")}
    assert groups["head"] == 2 * 8 * 80
    assert groups["0"] == 2 * 3 * 64


def test_the_same_records_as_the_layers_of_a_model():
    model = Model()

    def run():
        model.zero_grad()
        loss_of(model(tokens()), tokens()).backward()

    run()
    patcher = patched(run, model)
    with sol_profile(model, CPU) as hooks:
        run()
    ours, theirs = patcher.analyze(), hooks.analysis
    for key in ("layer", "module", "function", "op", "direction"):
        one, other = ([(g.name, g.calls, g.matrix_flops) for g in each.by(key)] for each in (ours, theirs))
        assert one == other


def test_uses_in_the_wrong_order_are_refused_in_words():
    patcher = FunctionalPatcher(CPU)
    for call in (patcher.analyze, patcher.report, patcher.get_summary):
        with pytest.raises(RuntimeError, match="nothing was captured"):
            call()
    patcher.unpatch()
    patcher.patch()
    with pytest.raises(RuntimeError, match="patched already"):
        patcher.patch()
    patcher.unpatch()
    patcher.unpatch()
    with pytest.raises(ValueError, match="unknown device"):
        FunctionalPatcher("H300")


def test_patched_again_it_begins_anew():
    patcher = FunctionalPatcher(CPU)
    for times in (1, 3):
        patcher.patch()
        for _ in range(times):
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert functions(patcher)["matmul"] == times * 16  # 2 * 2 * 2 * 2
        patcher.unpatch()
        assert functions(patcher)["matmul"] == times * 16


def test_the_summary_has_the_tables_of_the_page():
    model = Model()
    text = patched(lambda: model(tokens()), model).get_summary(top=3)
    for title in ("By phase", "By layer type", "By function", "Top 3 modules"):
        assert title in text


def test_the_same_capture_on_another_device_with_intensities_and_ridge_points():
    patcher = FunctionalPatcher("A100-SXM4-80GB").patch()
    torch.ones(64, 64) @ torch.ones(64, 64)
    patcher.unpatch()
    here, there = patcher.analyze(), patcher.analyze("H100-SXM5-80GB")
    assert (here.device.part_name, there.device.part_name) == ("A100-SXM4-80GB", "H100-SXM5-80GB")
    data = analysis_data(there, "")
    product = next(op for op in data.ops if op.name == "aten::mm")
    assert product.arithmetic_intensity == 2 * 64**3 / (3 * 64 * 64 * 4)
    assert data.device.ridge_points["bfloat16"] == pytest.approx(989.4e12 / 3.35e12, rel=1e-3)
    with pytest.raises(ValueError, match="unknown device"):
        patcher.analyze("H101")


def test_an_empty_capture_has_a_summary_too():
    summary = patched(lambda: None).get_summary()
    assert "No ops were recorded" in summary
    assert "By phase" not in summary  # it would have no row


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_the_program_leaves_torch_as_it_was_once_unpatched(error):
    class Breaks(Model):
        def forward(self, tokens):
            super().forward(tokens)
            raise error

    model = Breaks()
    patcher = FunctionalPatcher(CPU).patch()
    patcher.register_model(model)
    with pytest.raises(error):
        model(tokens())
    patcher.unpatch()
    assert functions(patcher)["linear"] == 9472


def test_two_patchers_end_out_of_order():
    first, second = FunctionalPatcher(CPU).patch(), FunctionalPatcher(CPU).patch()
    torch.ones(2, 2) @ torch.ones(2, 2)
    first.unpatch()
    torch.ones(2, 2) @ torch.ones(2, 2)
    second.unpatch()
    assert functions(first)["matmul"] == 16
    assert functions(second)["matmul"] == 32


def test_a_patcher_that_is_forgotten_takes_itself_out():
    patcher = FunctionalPatcher(CPU).patch()
    torch.ones(2, 2) @ torch.ones(2, 2)
    del patcher
    gc.collect()


def test_an_error_of_our_own_reaches_whoever_asks_and_not_the_program(monkeypatch):
    monkeypatch.setattr(dispatch, "_current_graph_task_id", lambda: 1 / 0)
    patcher = FunctionalPatcher(CPU).patch()
    assert torch.ones(2, 2).neg().tolist() == [[-1.0, -1.0], [-1.0, -1.0]]
    with pytest.raises(RuntimeError, match="was removed after an error: division by zero"):
        patcher.analyze()
    patcher.unpatch()
    monkeypatch.undo()
    patcher.patch()
    torch.ones(2).neg()
    patcher.unpatch()
    assert "neg" in {group.name for group in patcher.analyze().by("function")}
