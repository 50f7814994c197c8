"""Which torch function an op was called for: forward, backward, recomputed, and beside the modes of others."""

import threading
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import recorded_model
import torch
from recorded_model import FunctionNames, Names, in_thread
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.records.record import Direction
from rooflight.sources.capture.record.modules import function_name

recorded = partial(recorded_model.recorded, functions=True)


def pairs(session: rl.Session, direction: Direction | None = None) -> list[tuple[str, str]]:
    """Op and function of each record."""
    return [
        (op.signature.name.removeprefix("aten::"), op.function)
        for op in session.records
        if direction is None or op.direction is direction
    ]


def functions(session: rl.Session) -> set[str]:
    return {op.function for op in session.records}


def x() -> torch.Tensor:
    return torch.ones(3, 4)


def w() -> torch.Tensor:
    return torch.ones(4, 4, requires_grad=True)


def test_every_way_to_call_an_op():
    a, b = x(), torch.ones(4, 3)
    out = torch.empty(3, 3)

    def run():
        torch.mm(a, b)
        a.mm(b)
        a @ b
        torch.ops.aten.mm(a, b)
        torch.ops.aten.mm.default(a, b)
        torch.mm(a, b, out=out)
        a + 1
        1 + a
        a.add_(1)
        a[0]
        a[0] = 2
        a.T  # noqa: B018
        functional.relu(a, inplace=True)
        a.clone().neg_()

    found = pairs(recorded(run))
    assert [function for op, function in found if op == "mm"] == ["mm", "mm", "matmul", "mm", "mm", "mm"]
    assert [function for op, function in found if op == "add"] == ["add", "add"]
    assert ("add_", "add_") in found
    assert ("relu_", "relu") in found
    assert ("neg_", "neg_") in found
    assert ("clone", "clone") in found
    assert {function for op, function in found if op in ("fill_", "copy_")} == {"setitem"}
    assert {function for op, function in found if op in ("t", "permute", "numpy_T")} <= {"T"}
    assert "" not in {function for _, function in found}


def test_the_outermost_function_and_the_innermost():
    """A composite's ops belong to what the program called; functional.linear calls itself nothing else."""
    weight = w().detach()
    found = dict(pairs(recorded(lambda: functional.linear(x(), weight))))
    assert found["mm"] == "linear"
    einsum = recorded(lambda: torch.einsum("ij,jk->ik", x(), weight))
    assert {function for op, function in pairs(einsum) if op in ("bmm", "mm")} == {"einsum"}


def test_a_function_of_python_that_calls_others():
    """multi_head_attention_forward is Python that calls linear, baddbmm and softmax, each of which torch tells."""
    net = nn.MultiheadAttention(8, 2)
    session = recorded(lambda: net(*[torch.ones(3, 1, 8, requires_grad=True)] * 3), net)
    assert "" not in {op.function for op in session.records if op.signature.name == "aten::mm"}
    assert functions(session) - {"ones"} != set()


def test_attention_is_one_op_of_one_function():
    q = torch.ones(1, 2, 4, 8, requires_grad=True)
    session = recorded(lambda: functional.scaled_dot_product_attention(q, q, q).sum().backward())
    attention = [
        (op, counted)
        for op, counted in zip(session.records, session.counted, strict=True)
        if "attention" in op.signature.name
    ]
    assert sum(counted for _, counted in attention) == 2  # forward and backward; the kernels are parts of them
    assert {op.function for op, _ in attention} == {"scaled_dot_product_attention"}


def test_the_backward_pass_belongs_to_the_functions_of_the_forward_pass():
    weight = w()

    def run():
        (functional.linear(x(), weight).tanh() * 2).sum().backward()

    found = dict(pairs(recorded(run), Direction.BACKWARD))
    assert found["mm"] == "linear"
    assert found["tanh_backward"] == "tanh"
    assert found["mul"] == "mul"
    assert found["expand"] == "sum"


@pytest.mark.parametrize("call", ["backward", "autograd.backward", "autograd.grad"])
def test_the_engines_are_no_functions_of_the_program(call):
    weight = w()

    def run():
        loss = (x() @ weight).sum()
        if call == "backward":
            loss.backward()
        elif call == "autograd.backward":
            torch.autograd.backward([loss])
        else:
            torch.autograd.grad(loss, [weight])

    found = functions(recorded(run))
    assert {"matmul", "sum"} <= found
    assert not found & {"backward", "grad"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_runs_again_belongs_to_the_same_functions(reentrant):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    given = x().requires_grad_()

    def run(around):
        net.zero_grad()
        around(given).square().sum().backward()

    run(net)
    plain = recorded(lambda: run(net), net)
    again = recorded(lambda: run(lambda x: checkpoint(net, x, use_reentrant=reentrant)), net)
    forward = [pair for pair in pairs(plain, Direction.FORWARD) if pair[0] in ("addmm", "tanh")]
    assert forward == [("addmm", "linear"), ("tanh", "tanh"), ("addmm", "linear")]
    recomputed = [pair for pair in pairs(again, Direction.BACKWARD) if pair[0] in ("addmm", "tanh")]
    # the newer kind stops when it has what the backward pass needs: the last linear's input, not its output
    assert recomputed == (forward if reentrant else forward[: len(recomputed)])
    assert len(recomputed) >= 2
    for op in ("mm", "tanh_backward", "sum"):
        first, second = ([f for o, f in pairs(s, Direction.BACKWARD) if o == op] for s in (plain, again))
        assert sorted(first) == sorted(second)


def test_a_checkpointed_function_without_modules():
    weight = w()

    def body(x):
        return functional.linear(x, weight).tanh().square()

    def run():
        checkpoint(body, x().requires_grad_(), use_reentrant=False).sum().backward()

    session = recorded(run)
    # linear of a matrix with a bias-less weight: t and mm; forward, again, and for two gradients
    assert [op for op, function in pairs(session) if op == "mm"] == ["mm"] * 4
    assert [op.function for op in session.records if op.signature.name == "aten::mm"].count("linear") >= 3


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        return grads[0] * x.cos()


def transforms() -> None:
    torch.func.grad(lambda weight, x: (x @ weight).sin().sum())(torch.ones(4, 4), x())
    torch.func.vmap(lambda row: torch.dot(row, row))(x())
    torch.func.jvp(lambda x: x.sin(), (x(),), (x(),))


def gradient() -> None:
    weight = w()
    (x() @ weight).sum().backward()
    weight.grad.mul_(2)
    weight.grad = None


def on_meta() -> None:
    with torch.device("meta"):
        torch.ones(3).neg()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("program", "forward", "backward"),
    [
        (lambda: Double.apply(w()).sum().backward(), {("sin", "sin")}, {"cos", "mul"}),
        (transforms, {("sin", "sin"), ("mm", "matmul"), ("bmm", "dot")}, set()),
        (gradient, {("mul_", "mul_")}, set()),
        (on_meta, {("neg", "neg")}, set()),  # a default device is a mode too
    ],
    ids=["custom function", "transforms", "gradient", "default device"],
)
def test_other_ways_to_call_functions(program, forward, backward):
    session = recorded(program)
    assert forward <= set(pairs(session))
    assert backward <= {op for op, _ in pairs(session, Direction.BACKWARD)}


class Tagged(torch.Tensor):
    """A subclass by __torch_function__ alone."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_with_a_function_handler_of_its_own():
    given = x().as_subclass(Tagged)
    Tagged.seen.clear()
    session = recorded(lambda: torch.sin(given) + 1)
    assert [(op, f) for op, f in pairs(session) if op in ("sin", "add")] == [("sin", "sin"), ("add", "add")]
    assert [name for name in Tagged.seen if name in ("sin", "add")] == ["sin", "add"]


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("make", [FunctionNames, Names])
def test_modes_of_the_users_outside_and_inside(make, outside):
    def run():
        (x() @ torch.ones(4, 4)).tanh()

    mode: AbstractContextManager[Any] = make()
    if outside:
        with mode:
            session = recorded(run)
    else:

        def inside():
            with mode:
                run()

        session = recorded(inside)
    found = pairs(session)
    assert ("mm", "matmul") in found
    assert ("tanh", "tanh") in found
    assert len([op for op, _ in found if op == "mm"]) == 1
    names = [name.removeprefix("aten::") for name in mode.names]
    assert names.count("tanh") == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_function_that_raised_is_over(error):
    def run():
        with pytest.raises(RuntimeError):
            torch.mm(x(), x())
        with pytest.raises(error), FunctionNames(error):
            torch.sin(x())
        x().neg()

    with rl.record(functions=True) as recording:
        run()
    with rl.record(functions=True) as other:
        torch.ops.aten.neg(torch.ones(2))
    assert pairs(recording.session)[-1] == ("neg", "neg")
    assert pairs(other.session)[-1] == ("neg", "neg")


def test_two_recordings_end_out_of_order():
    first, second = rl.record(functions=True), rl.record(functions=True)
    first.__enter__()
    x().sin()
    second.__enter__()
    x().cos()
    first.__exit__()
    x().tanh()
    second.__exit__()
    x().neg()
    names = ("sin", "cos", "tanh", "neg")
    assert [(op, f) for op, f in pairs(first.session) if op in names] == [("sin", "sin"), ("cos", "cos")]
    assert [(op, f) for op, f in pairs(second.session) if op in names] == [("cos", "cos"), ("tanh", "tanh")]


def test_nested_recordings_of_which_one_wants_functions():
    with rl.record() as outer, rl.record(functions=True) as inner:
        x().sin()
    with rl.record(functions=True) as other, rl.record():
        x().sin()
    assert functions(outer.session) == {""}
    assert functions(inner.session) == functions(other.session) == {"ones", "sin"}


def test_a_recording_ends_inside_a_function_mode_that_began_later():
    recording = rl.record(functions=True).__enter__()
    mode = FunctionNames()
    mode.__enter__()
    x().sin()
    recording.__exit__()
    x().cos()
    mode.__exit__(None, None, None)
    assert functions(recording.session) == {"ones", "sin"}
    assert mode.names.count("cos") == 1


def test_other_threads_are_not_ours():
    def other():
        x().sin()

    def run():
        in_thread(other)
        x().cos()

    found = pairs(recorded(run))
    assert ("cos", "cos") in found
    assert "sin" not in [op for op, _ in found]


def test_each_thread_its_own_recording():
    sessions: dict[str, rl.Session] = {}

    def work(name: str) -> None:
        sessions[name] = recorded(lambda: [getattr(x(), name)() for _ in range(50)])

    threads = [threading.Thread(target=work, args=(name,)) for name in ("sin", "cos")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("sin", "cos"):
        assert [pair for pair in pairs(sessions[name]) if pair[0] != "ones"] == [(name, name)] * 50


def test_optimizers_call_functions_too():
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def run():
        net(x()).sum().backward()
        optimizer.step()

    session = recorded(run, net)
    found = [op.function for op in session.records if op.direction is Direction.OPTIMIZER]
    assert found
    assert "" not in found


def test_functions_change_no_count_and_no_module():
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def run():
        net.zero_grad()
        net(x()).square().mean().backward()

    run()
    with rl.record(net) as plain:
        run()
    rich = recorded(run, net)
    assert [(op.signature, op.module, op.direction) for op in plain.session.records] == [
        (op.signature, op.module, op.direction) for op in rich.records
    ]


NAMES = {
    "linear": functional.linear,
    "add": torch.Tensor.__add__,
    "T": torch.Tensor.T.__get__,
    "grad": torch.Tensor.grad.__get__,
    "mm": torch.ops.aten.mm.default,
    "add_": torch.Tensor.add_,
    "matmul": torch.Tensor.__matmul__,
    "softmax": functional.softmax,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_functions_are_called(name):
    assert function_name(NAMES[name]) == name


def test_something_without_a_name_has_that_of_its_class():
    class Callable_:  # noqa: N801
        def __call__(self):
            raise AssertionError

    assert function_name(Callable_()) == "Callable_"
