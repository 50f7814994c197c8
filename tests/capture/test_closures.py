"""What an optimizer's closure computes is forward and backward, not the optimizer's."""

from collections.abc import Callable

import pytest
import torch
from recorded_model import recorded
from torch import nn

from rooflight.sources.capture.phases import with_closure_inside


def directions(run: Callable[[], object], model: nn.Module) -> list[tuple[str, str, str]]:
    moving = [op for op in recorded(run, model).records if op.reads and op.signature.name != "aten::detach"]
    return [(op.signature.name, op.module.path, op.direction.label) for op in moving]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_runs_forward_and_backward_inside_the_step(by_name: bool) -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        loss = (model(torch.ones(2, 4)) * 2).sum()
        loss.backward()
        return loss

    seen = directions(lambda: optimizer.step(closure=closure) if by_name else optimizer.step(closure), model)
    assert seen[:3] == [("aten::mm", "Linear", "forward"), ("aten::mul", "", "forward"), ("aten::sum", "", "forward")]
    assert seen[-1] == ("aten::add_", "", "optimizer")


def test_an_optimizer_that_calls_its_closure_again_and_again_is_the_optimizer_in_between() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    seen = directions(lambda: optimizer.step(closure), model)
    assert {direction for _, module, direction in seen if module == ""} == {"forward", "backward", "optimizer"}
    assert all(direction != "optimizer" for name, _, direction in seen if name in ("aten::pow", "aten::mm"))


def test_a_closure_that_raises_leaves_the_step_as_it_was() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        raise KeyError("mine")

    def run() -> None:
        with pytest.raises(KeyError, match="mine"):
            optimizer.step(closure)
        torch.ones(3) + 1

    assert directions(run, model)[-1] == ("aten::add", "", "forward")


def test_the_closure_gets_what_it_was_given_and_gives_what_it_gave() -> None:
    entered = []

    class Around:
        def __enter__(self) -> None:
            entered.append("in")

        def __exit__(self, *_: object) -> None:
            entered.append("out")

    def closure(scale: int, *, by: int) -> int:
        return scale * by

    wrapped = with_closure_inside(("optimizer", closure, "more"), {"x": 1}, Around)
    assert wrapped is not None
    args, kwargs = wrapped
    assert (args[0], args[2], kwargs) == ("optimizer", "more", {"x": 1})
    assert args[1](2, by=3) == 6
    assert entered == ["in", "out"]


@pytest.mark.parametrize(("args", "kwargs"), [(("o",), {}), (("o", None), {}), (("o",), {"closure": None})])
def test_without_a_closure_nothing_changes(args: tuple, kwargs: dict) -> None:
    assert with_closure_inside(args, kwargs, lambda: None) is None
