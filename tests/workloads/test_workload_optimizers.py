import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.sources.workloads.build import make_optimizer


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def model_with_gradients(device):
    model = nn.Linear(4, 4, device=device)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("name", "op"), [("adamw", "_foreach_addcdiv_"), ("adamw-fused", "_fused_adamw_"), ("sgd", "_foreach_add_")]
)
def test_runs_in_the_form_named(name, op, device):
    optimizer = make_optimizer(name, model_with_gradients(device))
    with Ops() as ops:
        optimizer.step()
    assert op in ops.names
    assert not {"addcdiv_", "zeros_like"} & set(ops.names)  # no loop over parameters, no state made late


@pytest.mark.parametrize("name", ["adamw", "adamw-fused"])
def test_state_made_beforehand_is_the_state_torch_makes(name):
    ours, theirs = (model_with_gradients("cpu") for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    for model, with_state in ((ours, True), (theirs, False)):
        optimizer = make_optimizer(name, model, with_state=with_state)
        optimizer.step()
        optimizer.step()
        assert set(optimizer.state[model.weight]) == {"step", "exp_avg", "exp_avg_sq"}
        assert optimizer.state[model.weight]["step"].item() == 2
    assert torch.equal(ours.weight, theirs.weight)


def test_state_on_meta_allocates_nothing_and_none_is_none():
    model = nn.Linear(10**6, 10**6, device="meta")
    optimizer = make_optimizer("adamw", model)
    assert optimizer.state[model.weight]["exp_avg"].device.type == "meta"
    assert make_optimizer("none", nn.Linear(2, 2)) is None
