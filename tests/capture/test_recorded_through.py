"""What wraps a training step and must be seen through: checkpointing, autocast, scaling, accumulation, compilation."""

from functools import partial
from typing import Any

import pytest
import recorded_model
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from tracked import CPU

import rooflight as rl
from rooflight import sol_profile
from rooflight.records.record import Direction

ROWS, WIDTH = 6, 8
LINEAR = 2 * ROWS * WIDTH * WIDTH  # FLOPs of one product: 2 * 6 * 8 * 8 = 768


def x() -> torch.Tensor:
    return torch.ones(ROWS, WIDTH, requires_grad=True)


class Net(nn.Sequential):
    def forward(self, x):  # torch does not compile its own, in place
        for module in self:
            x = module(x)
        return x


def net() -> Net:
    return Net(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())


recorded = partial(recorded_model.recorded, functions=True)


def flops(session: rl.Session, direction: str | None = None) -> int:
    groups = {group.name: group.matrix_flops for group in rl.analyze(session, CPU).by("direction")}
    return groups.get(direction, 0) if direction else sum(groups.values())


def names(session: rl.Session, direction: Direction | None = None) -> list[str]:
    return [
        op.signature.name.removeprefix("aten::")
        for op in session.records
        if direction is None or op.direction is direction
    ]


# -- checkpointing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_forward_twice(reentrant):
    model = net()

    def run():
        checkpoint(model, x(), use_reentrant=reentrant).sum().backward()

    plain, again = recorded(lambda: model(x()).sum().backward(), model), recorded(run, model)
    # two linears: forward 2, gradients of two inputs and two weights 4, again forward 2
    assert flops(plain) == 6 * LINEAR
    assert flops(again) == 8 * LINEAR
    # what is run again is run in the backward pass
    assert flops(again, "forward") == 2 * LINEAR
    assert flops(again, "backward") == 6 * LINEAR
    assert names(again).count("tanh") == 4
    paths = {op.module.path for op in again.records if op.signature.name == "aten::addmm"}
    assert paths == {"0", "2"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_every_layer_checkpointed_on_its_own(reentrant):
    model = nn.ModuleList(net() for _ in range(3))

    def run():
        hidden = x()
        for block in model:
            hidden = checkpoint(block, hidden, use_reentrant=reentrant)
        hidden.sum().backward()

    assert flops(recorded(run, model)) == 3 * 8 * LINEAR
    with sol_profile(model, CPU) as hooks:
        run()
    assert hooks.analysis.totals.matrix_flops == 3 * 8 * LINEAR


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_inside_a_checkpoint_runs_forward_three_times(reentrant):
    model = net()

    def inner(hidden):
        return checkpoint(model, hidden * 1, use_reentrant=reentrant).tanh()

    session = recorded(lambda: checkpoint(inner, x(), use_reentrant=reentrant).sum().backward(), model)
    # 2 forward, 4 backward; again 2 for the outer, and 2 for the inner
    assert flops(session) == 10 * LINEAR


# -- precision --------------------------------------------------------------------------------------------------------


def test_autocast_multiplies_in_bfloat16_and_its_casts_are_seen():
    model = net()

    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x()).float().sum()
        loss.backward()

    session = recorded(run, model)
    products = [op.signature for op in session.records if op.signature.name in ("aten::addmm", "aten::mm")]
    assert len(products) == 6
    assert {tensor.dtype for op in products for tensor in op.inputs} == {"bfloat16"}
    casts = [op for op in session.records if op.signature.name == "aten::_to_copy"]
    to_bfloat16 = [op for op in casts if op.signature.outputs[0].dtype == "bfloat16"]
    # weights and biases of two linears, once each, the input; the second linear's input is bfloat16 already
    assert len([op for op in to_bfloat16 if op.direction is Direction.FORWARD]) == 5
    assert flops(session) == 6 * LINEAR
    # a bfloat16 product has half the bytes of a float32 one: 2 * (48 + 64 + 8 + 48) for bias, input, weight, output
    first = next(op for op in products if op.name == "aten::addmm")
    assert first.input_bytes + first.output_bytes == 2 * (8 + 48 + 64 + 48)


def test_autocast_off_again_inside():
    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.autocast("cpu", enabled=False):
                torch.ones(4, 4) @ torch.ones(4, 4)
            torch.ones(4, 4) @ torch.ones(4, 4)

    found = [op.signature.inputs[0].dtype for op in recorded(run).records if op.signature.name == "aten::mm"]
    assert found == ["float32", "bfloat16"]


@pytest.mark.parametrize("infinite", [False, True])
def test_a_scaler_scales_and_steps_unless_it_meets_infinity(infinite):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def run():
        loss = model(x()).sum() * (float("inf") if infinite else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    before = model[0].weight.detach().clone()
    session = recorded(run, model)
    assert scaler.get_scale() == (4.0 if infinite else 8.0)
    assert torch.equal(model[0].weight, before) == infinite
    assert (Direction.OPTIMIZER in {op.direction for op in session.records}) == (not infinite)
    assert "_amp_foreach_non_finite_check_and_unscale_" in names(session)
    assert flops(session) == 6 * LINEAR


# -- accumulation -----------------------------------------------------------------------------------------------------


def test_two_micro_batches_are_twice_the_work_and_one_optimizer_step():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(micro_batches: int):
        for _ in range(micro_batches):
            (model(x()).sum() / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(1)
    one, two = recorded(lambda: run(1), model), recorded(lambda: run(2), model)
    for direction in ("forward", "backward"):
        assert flops(two, direction) == 2 * flops(one, direction) > 0
    assert names(two, Direction.OPTIMIZER) == names(one, Direction.OPTIMIZER)
    # the second micro-batch adds its gradients to those of the first: one add for each of four parameters
    adds = [names(session, Direction.BACKWARD).count("add_") for session in (one, two)]
    adds_out = [names(session, Direction.BACKWARD).count("add") for session in (one, two)]
    assert adds[1] - adds[0] + adds_out[1] - adds_out[0] == 4


# -- compilation ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_step_is_recorded_as_the_eager_one_and_runs_compiled_again(in_place):
    model = net()

    def train(module: nn.Module) -> list[list[float]]:
        model.zero_grad()
        module(x()).sum().backward()
        return [parameter.grad.tolist() for parameter in model.parameters()]

    train(model)
    eager = recorded(lambda: train(model), model)
    compiled: Any = model
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True)
    else:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = train(compiled)
    graphs = counters["stats"]["unique_graphs"]
    results: list[Any] = []
    session = recorded(lambda: results.append(train(compiled)), compiled)
    assert names(session) == names(eager)
    assert torch.allclose(torch.tensor(results[0][0]), torch.tensor(expected[0]))
    for _ in range(3):
        assert train(compiled) == expected
    assert counters["stats"]["unique_graphs"] == graphs == 1
    assert not counters["graph_break"]
    assert torch._dynamo.eval_frame._stance.stance == "default"
