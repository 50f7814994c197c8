"""The float64 run of a program equals the same program after ``.double()``, and tells rounding from mistakes."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from rooflight.studies.compiling.bench.check import InFloat64, check


class Net(nn.Module):
    """Convolution, batch norm, attention, a table, a quotient of integers, writes in place: what is followed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.table, self.line, self.norm = nn.Embedding(10, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.batch(self.conv(x)))
        y = y.flatten(2).transpose(1, 2)
        y = functional.scaled_dot_product_attention(y, y, y) + self.table(torch.arange(y.shape[1]) % 10)
        y = self.norm(self.line(y).mean(1)) * (torch.arange(8) / 3)
        y[:, ::2] += 0.1
        return torch.softmax(y, -1)


def training(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer):
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_it_is_the_model_in_double(kind, how) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 8, 8)
    double = copy.deepcopy(model).double()
    ours = training(model, x, kind(model.parameters(), lr=0.1, **how))
    exact = training(double, x.double(), kind(double.parameters(), lr=0.1, **how))
    mode = InFloat64()
    for _ in range(3):
        with mode:
            loss = ours()
        torch.set_default_dtype(torch.float64)  # a quotient of integers has the default dtype
        try:
            expected = exact()
        finally:
            torch.set_default_dtype(torch.float32)
    assert not mode.missing
    assert abs(mode.of(loss).item() - expected.item()) < 1e-13
    for name, value in mode.of(dict(model.state_dict())).items():
        assert torch.allclose(value.double(), double.state_dict()[name].double(), atol=1e-12, rtol=1e-12), name
    assert model.line.weight.dtype == torch.float32  # the program itself is as it was
    assert loss.dtype == torch.float32


def test_the_program_itself_runs_as_without_it() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 8, 8)
    other = copy.deepcopy(model)
    ours, theirs = (training(each, x, torch.optim.AdamW(each.parameters())) for each in (model, other))
    for _ in range(2):
        with InFloat64():
            ours()
        theirs()
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_float64_tensors_are_written_once() -> None:
    x = torch.zeros(4, dtype=torch.float64)
    with (mode := InFloat64()):
        x.add_(1)
        torch._foreach_add_([x], 1)
    assert x.tolist() == mode.of(x).tolist() == [2] * 4


def test_constants_are_exact_and_dropout_drops_the_same() -> None:
    x = torch.ones(1000)
    with (mode := InFloat64()):
        tenth = torch.full((3,), 0.1)
        dropped = functional.dropout(x * 0.1, 0.3)
        sampled = torch.randn(3)
    assert mode.of(tenth).tolist() == [0.1] * 3
    assert tenth.double()[0] != 0.1
    assert sorted(set(mode.of(dropped).tolist())) == pytest.approx([0, 0.1 / 0.7], rel=1e-14)
    assert torch.equal(mode.of(dropped) == 0, dropped == 0)
    assert torch.equal(mode.of(sampled), sampled.double())


def test_complex_numbers_half_precision_and_memory_that_is_used_again() -> None:
    x = torch.randn(64)
    with (mode := InFloat64()):
        spectrum = torch.view_as_real(torch.fft.fft(x))
        for _ in range(3000):  # storages that ended make room
            x.half().sum()
        softmax = functional.softmax(x.half(), 0, dtype=torch.float32)
    assert torch.allclose(mode.of(spectrum), torch.view_as_real(torch.fft.fft(x.double())), atol=1e-13)
    assert torch.allclose(mode.of(softmax), functional.softmax(x.double(), 0), atol=1e-15)
    assert len(mode._shadows) < 3000


@torch.library.custom_op("rooflight_tests::only_float32", mutates_args=())
def only_float32(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise RuntimeError("float32 only")
    return x + 1


def test_an_op_without_a_float64_form_is_named() -> None:
    with (mode := InFloat64()):
        out = only_float32(torch.ones(2))
    assert dict(mode.missing) == {"rooflight_tests::only_float32": 1}
    assert mode.of(out).tolist() == [2, 2]


def made(change=lambda x: x, weight: float = 1 / 3):
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, weight)
    nn.init.constant_(model.bias, 0.1)

    def step() -> torch.Tensor:
        model.zero_grad()
        out = change(model(torch.full((2, 4), 0.7)))
        out.sum().backward()
        return out

    return step, model


class Detached(torch.autograd.Function):
    """The same result, and half as much again of its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.5


def test_a_mistake_is_further_than_eager_and_a_right_program_has_errors_of_rounding() -> None:
    changes = (nn.Identity(), lambda out: out * 1.01, Detached.apply)
    right, wrong, gradients = (check(made(), made(change), made) for change in changes)
    assert (right.correct, wrong.correct, gradients.correct) == (True, False, False)
    assert right.rounding.eager == right.rounding.compiled > 0
    assert not right.rounding.further
    assert "differs" in wrong.why
    assert wrong.rounding.further.startswith("result")
    assert wrong.rounding.compiled > 1e-3 > wrong.rounding.eager
    assert gradients.rounding.further == "gradient ['weight']"


def test_rounding_that_eager_has_too_is_no_mistake() -> None:
    # 1.0333 and 0.3444 between 10,000 and 10,001, where floats are 1e-3 apart: off by 1e-4 and, times 3, 9e-4
    eager = made(lambda out: (out / 3 + 10_000 - 10_000) * 3)
    found = check(eager, made(lambda out: out + 10_000 - 10_000), made)
    assert found.different
    assert found.rounding.explains
    assert found.correct


def test_integers_have_no_excuse_and_what_keeps_a_program_from_float64_is_said() -> None:
    def counting(number):
        return lambda: torch.tensor([number]), None

    def breaks():
        raise ValueError("only once")

    found = check(counting(1), counting(2), lambda: counting(1))
    assert not found.correct
    assert found.rounding.failed == "it gives no floating-point numbers"
    found = check(made(), made(), lambda: (breaks, made()[1]))
    assert found.correct
    assert "ValueError: only once" in found.rounding.failed


def test_gradients_that_a_kernel_gives_unasked_do_not_keep_an_op_from_float64() -> None:
    conv = nn.Conv2d(3, 4, 3)
    conv.weight.requires_grad_(False)  # oneDNN computes its gradient beside that of the bias
    with (mode := InFloat64()):
        conv(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert not mode.missing
    assert conv.bias.grad is not None
    assert not torch.equal(mode.of(conv.bias.grad), conv.bias.grad.double())


def test_the_size_of_what_is_summed_is_known_of_sums() -> None:
    x, bias = torch.tensor([[3.0, -1.0], [-3.0, 2.0]]), torch.zeros(2, requires_grad=True)
    with (mode := InFloat64()):
        out = x.sum()
        ((x + bias) * x).sum().backward()
    assert mode.exact({"sum": out, "bias": bias.grad, "x": x})[1] == {"sum": 9.0, "bias": 4.5, "x": 0.0}


def test_gradients_that_cancel_are_right_to_the_rounding_of_their_terms() -> None:
    def opened(how):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        x = torch.randn(8, 4, 12, 12)

        def step() -> torch.Tensor:
            model.zero_grad()
            out = how(model, x)
            out.sum().backward()
            return out

        return step, model

    def wrong(model, x):
        return model(x) + 0.01 * (model[0].bias - model[0].bias.detach()).view(4, 1, 1)

    hows = (lambda model, x: model(x), lambda model, x: model(x.flip(0)).flip(0), wrong)
    right, mistaken = (check(opened(hows[0]), opened(how), partial(opened, hows[0])) for how in hows[1:])
    assert right.different
    assert right.correct
    assert mistaken.rounding.further == "gradient ['0.bias']"
