"""The line of the user's own that calls each op: forward, backward, in functions, generators and made-up code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.records.account import Place
from rooflight.sources.capture.own_code import place_at, place_in

HERE = "tests/capture/test_lines.py"
TEXT = Path(__file__).read_text().splitlines()


def places(step: Callable[[], object]) -> list[tuple[str, str, str]]:
    """Of each op its name, direction, and the text of the line that called it; empty where none is known."""
    with rl.record() as recording:
        step()
    return [
        (
            record.signature.name.removeprefix("aten::"),
            record.direction.name,
            TEXT[record.place.line - 1].strip() if record.place.file == HERE else record.place.file,
        )
        for record in recording.session.records
    ]


def line_of(found: list[tuple[str, str, str]], name: str, direction: str = "FORWARD") -> set[str]:
    return {text for op, way, text in found if op == name and way == direction}


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x)
        return y.tanh()  # the last


def test_ops_of_a_module_are_at_its_own_lines_and_a_librarys_at_the_line_that_calls_it() -> None:
    model, x = Squares(), torch.ones(2, 4)
    found = places(lambda: model(x).sum().backward())
    assert line_of(found, "addmm") == {"y = self.inner(x)"}
    assert line_of(found, "tanh") == {"return y.tanh()  # the last"}
    assert line_of(found, "tanh_backward", "BACKWARD") == {"return y.tanh()  # the last"}
    assert line_of(found, "mm", "BACKWARD") == {"y = self.inner(x)"}


def test_ops_that_compiled_code_does_are_told_from_others() -> None:
    model, x = torch.compile(nn.Sequential(Squares(), nn.Softplus()), backend="eager"), torch.ones(2, 4)

    @torch.compile(backend="eager")
    def loss(y):
        return y.exp().mean()

    with rl.record() as recording:
        (loss(model(x)) * x.cos().sum()).backward()
    torch._dynamo.reset()
    compiled: dict[bool, set[str]] = {True: set(), False: set()}
    for record in recording.session.records:
        compiled[record.place.compiled].add(record.signature.name.removeprefix("aten::"))
    inside = {"addmm", "tanh", "softplus", "exp", "mean", "tanh_backward", "softplus_backward"}
    assert inside <= compiled[True]
    assert not inside & compiled[False]
    assert {"cos", "sum"} <= compiled[False]
    assert not {"cos"} & compiled[True]


def test_ops_without_gradients_between_others_do_not_take_their_backward() -> None:
    x = torch.ones(3, requires_grad=True)

    def step() -> None:
        y = x.sin()
        torch.zeros(3)
        with torch.no_grad():
            x.cosh()
        z = y.exp()
        z.sum().backward()

    found = places(step)
    assert line_of(found, "cos", "BACKWARD") == {"y = x.sin()"}
    assert all(
        text == "z = y.exp()" for op, way, text in found if op == "mul" and way == "BACKWARD" and "sin" not in text
    )


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul(2)  # by hand


def test_a_gradient_written_by_hand_is_at_its_own_line() -> None:
    x = torch.ones(3, requires_grad=True)
    found = places(lambda: Doubled.apply(x).sum().backward())
    assert line_of(found, "mul", "BACKWARD") == {"return gradient.mul(2)  # by hand"}


def test_a_checkpoint_computes_again_at_the_same_line() -> None:
    model, x = Squares(), torch.ones(2, 4, requires_grad=True)
    found = places(lambda: checkpoint(model, x, use_reentrant=False).sum().backward())
    assert line_of(found, "tanh", "BACKWARD") == {"return y.tanh()  # the last"}


def test_generators_and_recursion() -> None:
    def parts():
        for number in range(3):
            yield torch.full((2,), float(number))

    def deep(depth: int) -> torch.Tensor:
        return torch.ones(1).exp() if depth == 0 else deep(depth - 1)

    found = places(lambda: (list(parts()), deep(200)))
    assert line_of(found, "full") == {"yield torch.full((2,), float(number))"}
    assert line_of(found, "exp") == {"return torch.ones(1).exp() if depth == 0 else deep(depth - 1)"}


def test_code_without_a_file_is_at_the_line_that_runs_it() -> None:
    space = {"torch": torch}
    exec("def made():\n    return torch.ones(2).cosh()", space)
    made: Callable[[], torch.Tensor] = space["made"]  # type: ignore[assignment]

    def step() -> None:
        made()  # code made by exec

    assert line_of(places(step), "cosh") == {"made()  # code made by exec"}


def test_the_caller_of_a_function_is_named_and_what_it_calls() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x])

    def step() -> None:
        inner(torch.ones(2))  # calls inner

    with rl.record() as recording:
        step()
    place = next(each.place for each in recording.session.records if each.signature.name == "aten::cat")
    assert (place.function.rpartition(".")[2], place.calls) == ("inner", "torch.cat")
    file, _, line = place.caller.rpartition(":")
    assert (file, TEXT[int(line) - 1].strip()) == (HERE, "inner(torch.ones(2))  # calls inner")
    assert place.path == f"{place.at} from {place.caller}"


def test_other_threads_and_sessions_keep_their_lines(tmp_path: Path) -> None:
    found: list[Place] = []

    def work() -> None:
        with rl.record() as recording:
            torch.ones(2).tan()
        session = rl.load(recording.session.save(tmp_path / "a.session"))
        found.extend(each.place for each in session.records)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [TEXT[place.line - 1].strip() for place in found] == ["torch.ones(2).tan()"] * 2


def test_places_of_code_that_is_gone_or_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "gone.py"
    code = compile("print(\n  1)\n", str(file), "exec")
    assert [place_at(code, at).calls for at in range(-1, len(code.co_code), 2)] == [""] * (len(code.co_code) // 2 + 1)
    file.write_text("not )( Python")
    assert place_at(code, 8).calls == ""
    assert place_in(code, None).line == 1


@pytest.mark.parametrize("text", ["np.save(path, x)", "f(x)(y)", "a.b.c(1)", "x + y", "'é'.join(f(x))", "(yield x)"])
def test_what_an_expression_calls(tmp_path: Path, text: str) -> None:
    file = tmp_path / f"e{abs(hash(text))}.py"
    file.write_text(f"def g(a, f, np, path, x, y):\n    return {text}\n")
    space: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    code = space["g"].__code__  # type: ignore[attr-defined]
    called = {place_at(code, at).calls for at in range(0, len(code.co_code), 2)} - {""}
    assert called == {
        "np.save(path, x)": {"np.save"}, "f(x)(y)": {"f"}, "a.b.c(1)": {"a.b.c"}, "x + y": set(),
        "'é'.join(f(x))": {"join", "f"}, "(yield x)": set(),
    }[text]  # fmt: skip
