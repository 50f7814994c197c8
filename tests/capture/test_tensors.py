"""What kinds of tensors and transforms a recording copes with, and what it makes of them."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional
from torch.utils._pytree import tree_map

import rooflight as rl
from rooflight.records.dtypes import item_bytes

# torch warns that some of these layouts are young, and that some of these ways are old
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("Sparse CSR", "torch.quantize_per_tensor", "`torch.jit", "The PyTorch API of nested tensors")
]


def recorded(program: Callable[[], Any], model: nn.Module | None = None) -> tuple[list[str], rl.Session]:
    """Names of the counted ops, and the session, which must survive an analysis."""
    with rl.record(model) as recording:
        program()
    session = recording.session
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    assert analysis.totals.calls == int(session.counted.sum())
    assert analysis.coverage.calls <= 1
    names = [op.signature.name.removeprefix("aten::") for op in session.records if op.parent is None]
    return names, session


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


# -- no values -------------------------------------------------------------------------------------------------------


def test_fake_tensors_record_what_real_ones_do() -> None:
    model = net()

    def step() -> None:
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()

    def step_fake() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            step()

    real, inside = recorded(step, model)[0], recorded(step_fake, model)[0]
    model.zero_grad()
    with FakeTensorMode(allow_non_fake_inputs=True):
        outside, session = recorded(step, model)
    model.zero_grad()
    assert real == inside == outside
    assert session.environment["device_kind"] == "meta"


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_recorded_without_values_as_with_them(kind) -> None:
    def steps(device: str) -> rl.Session:
        table, ids = kind(100, 8, sparse=True, device=device), torch.zeros(4, 5, dtype=torch.long, device=device)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

        def step() -> None:
            for _ in range(2):
                table(ids).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        return recorded(step, table)[1]

    def stored(session: rl.Session) -> list[Any]:
        found = [op.signature for op in session.records]
        return [(op.name, tensor) for op in found for tensor in (*op.inputs, *op.outputs) if tensor.packing]

    real, meta = steps("cpu"), steps("meta")
    assert [op.signature.name for op in real.records] == [op.signature.name for op in meta.records]
    assert stored(real) == stored(meta) != []
    assert rl.analyze(meta, "H100-SXM5-80GB").coverage.uncosted == ()


def test_sizes_that_data_decides_are_unknown_not_fatal() -> None:
    def program() -> None:
        with FakeTensorMode(shape_env=ShapeEnv()):
            x = torch.randn(5)
            assert (x.nonzero() * 2).sum().shape == ()
            x[x > 0].exp()
            torch.zeros(5) + torch.ones((), dtype=torch.int64).item()

    names, _ = recorded(program)
    assert " ".join(names) == "randn nonzero mul sum gt index exp zeros ones _local_scalar_dense add"


def test_symbolic_sizes_are_not_tied_to_the_values_they_were_traced_with() -> None:
    def program(x):
        return (x.relu() @ x.t()).view(x.shape[0] * x.shape[0]).sum(), x.new_ones(x.shape[0], 3)

    def traced() -> tuple[list[str], list[str]]:
        graph = make_fx(program, tracing_mode="symbolic")(torch.ones(5, 4))
        targets = sorted(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return targets, [str(guard.expr) for guard in graph.shape_env.guards]

    plain = traced()
    assert "aten.sym_size.int" in plain[0]
    found: list[tuple[list[str], list[str]]] = []
    _, session = recorded(lambda: found.append(traced()))
    assert found[0] == plain
    relu = next(op for op in session.signatures if op.name == "aten::relu")
    assert relu.input_shapes == ((5, 4),)


def test_meta_answers_item_and_keeps_attention_whole() -> None:
    answers = []

    def program() -> None:
        with torch.device("meta"):
            model, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
        model(x).sum().backward()
        q = torch.ones(1, 2, 8, 4, device="meta", requires_grad=True)
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        answers.extend(
            [bool((x > 0).all()), torch.ones(2, device="meta").sum().item(), int(torch.ones(1, device="meta"))]
        )

    names, session = recorded(program)
    assert answers == [True, 1.0, 1]
    assert names.count("scaled_dot_product_attention") == 1
    assert names.count("rooflight::scaled_dot_product_attention_backward") == 1
    assert "bmm" not in names
    assert names.count("_local_scalar_dense") == 3
    assert session.environment["device_kind"] == "meta"
    with pytest.raises(RuntimeError):
        torch.ones(1, device="meta").item()


# -- transforms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda: grad(lambda x: x.sin() @ x.cos())(torch.ones(4)), {"dot": 1, "sin": 2, "cos": 2}),
        (lambda: vmap(functional.linear)(torch.ones(3, 4), torch.ones(3, 5, 4)), {"bmm": 1}),
        (lambda: jvp(torch.sin, (torch.ones(3),), (torch.ones(3),)), {"sin": 1, "cos": 1}),
        (lambda: hessian(lambda x: (x**3).sum())(torch.ones(3)), {"pow": 4}),
        (
            lambda: grad(lambda q: functional.scaled_dot_product_attention(q, q, q).sum())(torch.ones(1, 2, 5, 4)),
            {"scaled_dot_product_attention": 1, "rooflight::scaled_dot_product_attention_backward": 1},
        ),
    ],
    ids=["grad", "vmap", "jvp", "hessian", "grad of attention"],
)
def test_torch_func(program: Callable[[], Any], expected: dict[str, int]) -> None:
    names, _ = recorded(program)
    assert {name: names.count(name) for name in expected} == expected


def test_functional_call_is_in_the_modules() -> None:
    model = net()
    _, session = recorded(
        lambda: grad(lambda p: functional_call(model, p, (torch.ones(2, 4),)).sum())(dict(model.named_parameters())),
        model,
    )
    assert [op.module.path for op in session.records if op.signature.name == "aten::addmm"] == ["0", "2"]


def test_control_flow_is_the_ops_it_runs() -> None:
    def program() -> None:
        torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (torch.ones(3),))

    assert recorded(program)[0] == ["lift_fresh", "ones", "sin"]


def test_make_fx_traces_the_same_graph() -> None:
    def program(x):
        return (x.sin() @ x).sum()

    x = torch.ones(3)
    plain = make_fx(program)(x).code
    with rl.record():
        assert make_fx(program)(x).code == plain


def test_scripted_and_traced_modules_run_as_before() -> None:
    model = net()
    x = torch.ones(2, 4)
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
    expected = model(x)
    for module in (scripted, traced):
        results = []
        names, _ = recorded(lambda module=module, results=results: results.append(module(x)))
        assert torch.equal(results[0], expected)
        assert names.count("addmm") == 2


# -- other layouts and dtypes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", [False, True])
def test_nested_tensors_keep_their_own_kernels(inference: bool) -> None:
    model = nn.Linear(4, 4)
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    with torch.inference_mode(inference):
        expected = model(nested).relu().to_padded_tensor(0.0)
        results: list[torch.Tensor] = []
        names, _ = recorded(lambda: results.append(model(nested).relu().to_padded_tensor(0.0)), model)
    assert torch.equal(results[0], expected)
    assert "linear" in names


def test_jagged_tensors_are_recorded_by_their_values() -> None:
    def program() -> None:
        x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged, requires_grad=True)
        nn.Linear(4, 4)(x).relu().values().sum().backward()
        q = x.unflatten(-1, (2, 2)).transpose(1, 2)
        functional.scaled_dot_product_attention(q, q, q)

    names, session = recorded(program)
    relu = next(op for op in session.records if op.signature.name == "aten::relu")
    assert relu.signature.input_shapes == ((5, 4),)
    assert "addmm" in names


def test_sparse_tensors() -> None:
    def program() -> None:
        coo = torch.eye(4).to_sparse()
        x = torch.ones(4, 4, requires_grad=True)
        torch.sparse.mm(coo, x).sum().backward()
        coo.to_sparse_csr() @ torch.ones(4, 2)
        (coo + coo).coalesce().to_dense()

    names, session = recorded(program)
    assert {"_sparse_addmm", "add", "mm"} <= set(names)
    assert not rl.analyze(session, "H100-SXM5-80GB").coverage.uncosted


def test_quantized_complex_tiny_and_odd_dtypes() -> None:
    def program() -> None:
        torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8).dequantize()
        (torch.view_as_complex(torch.ones(3, 2)).conj() @ torch.ones(3, dtype=torch.complex64)).abs()
        torch.empty(0, 4) @ torch.ones(4, 3)
        torch.tensor(3.0) * 2
        torch.ones(0).sum()
        torch.cat([torch.empty(0), torch.ones(2)])
        for dtype in (torch.uint4, torch.int3, torch.bits16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2):
            torch.empty(4, dtype=dtype)
        torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
        functional.linear(
            torch.ones(2, 4).to_mkldnn(), torch.ones(4, 4).to_mkldnn()
        ) if torch.is_inference_mode_enabled() else None

    names, session = recorded(program)
    assert {"quantize_per_tensor", "dequantize", "dot", "abs", "mm", "cat"} <= set(names)
    mm = next(op for op in session.signatures if op.name == "aten::mm")
    assert (mm.input_bytes, mm.output_bytes) == (4 * 4 * 3, 0)


def test_every_dtype_of_torch_has_the_size_that_torch_says() -> None:
    dtypes = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    assert {str(dtype): item_bytes(str(dtype).removeprefix("torch.")) for dtype in dtypes} == {
        str(dtype): dtype.itemsize for dtype in dtypes
    }


# -- subclasses ------------------------------------------------------------------------------------------------------


class Wrapper(torch.Tensor):
    """The usual wrapper: its own dispatch, to ops on the tensor inside."""

    seen: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inside, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inside.shape,
            dtype=inside.dtype,
            device=inside.device,
            strides=inside.stride(),
            requires_grad=requires_grad,
        )

    def __init__(self, inside, requires_grad=False) -> None:
        self.inside = inside

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func._schema.name.removeprefix("aten::"))
        args, kwargs = tree_map(lambda t: t.inside if isinstance(t, Wrapper) else t, (args, kwargs or {}))
        return tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))


class Function(torch.Tensor):
    """Acts on the Python level only."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_wrapper_is_recorded_by_the_ops_inside_it() -> None:
    Wrapper.seen.clear()
    x, weight = torch.ones(3, 3), torch.ones(3, 3)

    def program() -> None:
        (Wrapper(x, requires_grad=True) @ Wrapper(weight)).relu().sum().backward()
        q = Wrapper(torch.ones(1, 2, 5, 4), requires_grad=True)
        functional.scaled_dot_product_attention(q, q, q)

    names, session = recorded(program)
    assert [name for name in names if name not in ("ones", "ones_like")] == [
        name for name in Wrapper.seen if name != "ones_like"
    ]
    mm = next(op for op in session.records if op.signature.name == "aten::mm")
    assert len(mm.reads) == 2


def test_a_python_level_subclass_is_recorded_as_a_tensor() -> None:
    def program() -> None:
        q = torch.ones(1, 2, 5, 4, requires_grad=True).as_subclass(Function)
        out = functional.scaled_dot_product_attention(q, q, q)
        assert type(out) is Function
        out.sum().backward()

    names, _ = recorded(program)
    assert names.count("scaled_dot_product_attention") == 1


def test_parameters_and_buffers_are_tensors() -> None:
    names, _ = recorded(lambda: nn.Parameter(torch.ones(3)) + nn.Buffer(torch.ones(3)))
    assert names[-1] == "add"


def test_views_that_give_several_tensors_tell_their_layouts() -> None:
    x = torch.ones(4, 6)
    with rl.record() as recording:
        for _ in range(2):
            x.split([2, 4], dim=1)
        x.split([3, 3], dim=1)
    first, again, other = [op.signature for op in recording.session.records]
    assert first.input_shapes == ((4, 6),)
    assert [(tensor.shape, tensor.strides) for tensor in first.outputs] == [((4, 2), (6, 1)), ((4, 4), (6, 1))]
    assert again == first
    assert [tensor.shape for tensor in other.outputs] == [(4, 3), (4, 3)]
