"""What Inductor fuses, and the bytes that it saves, by hand; what AOT autograd saves, recomputes and decomposes."""

from __future__ import annotations

import pytest
import torch
from explained import explanation

from rooflight.studies.compiling.explain.tables import report_of, saved_bytes

ROWS, COLUMNS = 64, 32
N = ROWS * COLUMNS * 4  # bytes of a float32 matrix
X = torch.rand(ROWS, COLUMNS)
W = torch.rand(COLUMNS, COLUMNS)
BIAS = torch.rand(COLUMNS)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(function, *args, **options):
    found = explanation(function, tuple(args), backend="inductor", **options)
    assert found.not_compiled == ""
    return found


def chain(x):
    return torch.tanh(torch.relu(x + 1) * 2)


def test_a_chain_of_pointwise_ops_is_one_kernel_that_moves_two_tensors() -> None:
    found = of(chain, X, code=True)
    (kernel,) = found.kernels
    assert (kernel.kind, kernel.direction) == ("fused", "inference")
    assert kernel.ops == kernel.eager_ops == ("aten::add", "aten::relu", "aten::mul", "aten::tanh")
    assert kernel.bytes_eager == 4 * 2 * N  # each op reads a tensor and writes one
    assert kernel.bytes_kernel == 2 * N
    assert saved_bytes(found.kernels) == (8 * N, 2 * N)
    assert "tanh()" in kernel.code
    assert [place.code for place in kernel.places] == ["return torch.tanh(torch.relu(x + 1) * 2)"]
    assert report_of(found).table("code_1") is not None


def test_a_reduction_with_pointwise_ops_is_one_kernel() -> None:
    (kernel,) = of(lambda x: torch.softmax(x * 2, dim=-1), X).kernels
    assert kernel.kind == "fused"
    assert "aten::_softmax" in kernel.eager_ops
    assert kernel.bytes_eager == 4 * N  # mul and softmax: each reads and writes a tensor
    assert kernel.bytes_kernel is not None
    # in and out, and up to four numbers per row between the loops
    assert 2 * N <= kernel.bytes_kernel <= 2 * N + 2 * 4 * 4 * ROWS


def test_a_matmul_stays_a_library_call_and_what_follows_is_one_kernel() -> None:
    matmul, rest = of(lambda x, w, bias: torch.relu(x @ w + bias), X, W, BIAS).kernels
    product = N + 4 * COLUMNS * COLUMNS + N
    assert (matmul.kind, matmul.ops) == ("library", ("aten::addmm",))  # Inductor put it in the place of mm and add
    assert matmul.eager_ops == ("aten::mm", "aten::add")
    assert matmul.bytes_eager == product + (2 * N + 4 * COLUMNS)
    assert matmul.bytes_kernel == product + 4 * COLUMNS
    assert (rest.kind, rest.eager_ops) == ("single", ("aten::relu",))
    assert rest.bytes_eager == rest.bytes_kernel == 2 * N


def test_attention_is_a_call_that_nothing_fuses_with() -> None:
    found = of(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), torch.rand(2, 4, 16, 8))
    (kernel,) = [kernel for kernel in found.kernels if kernel.kind == "library"]
    assert [op.startswith("aten::_scaled_dot_product") for op in kernel.eager_ops] == [True]
    assert kernel.ops == kernel.eager_ops
    assert kernel.bytes_eager == kernel.bytes_kernel
    assert any("scaled_dot_product" in name for name in found.fallbacks)


def test_views_make_no_kernel_and_an_embedding_fuses_with_what_uses_it() -> None:
    found = of(lambda x: x.view(COLUMNS, ROWS).t()[:3], X)
    assert found.kernels == ()
    assert [graph.state for graph in found.graphs] == ["captured"]
    assert saved_bytes(found.kernels) == (0, 0)
    (kernel,) = of(lambda table, index: torch.nn.functional.embedding(index, table) * 2, W, torch.arange(8)).kernels
    assert kernel.eager_ops == ("aten::embedding", "aten::mul")


def written(x):
    x.add_(1)
    return x * 2


def test_a_write_into_an_input_is_functionalized_and_copied_back() -> None:
    found = of(written, X.clone())
    (graph,) = found.autograd
    assert graph.mutated_inputs == 1
    assert "copy_" in graph.code
    (kernel,) = found.kernels
    assert kernel.bytes_kernel == 3 * N  # reads x; writes x and the result


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * 3 * x**2


def normed(x, scale):
    y = torch.nn.functional.layer_norm(x, (COLUMNS,))
    return Cube.apply(torch.nn.functional.gelu(y) * scale)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by Dynamo
def test_forward_and_backward() -> None:
    found = of(normed, X.clone().requires_grad_(), torch.tensor(2.0))
    assert found.graph_breaks == ()
    (graph,) = found.autograd
    assert graph.joint >= graph.forward > 0
    assert graph.backward > 0
    assert {"forward", "backward"} == {kernel.direction for kernel in found.kernels}
    ops = {each.op for each in graph.decompositions}
    assert {"aten::native_layer_norm", "aten::gelu", "aten::native_layer_norm_backward"} <= ops
    assert "aten::erf" in graph.recomputed  # of gelu: cheaper than to save
    inputs = [saved for saved in graph.saved if saved.of_input]
    kept = [saved for saved in graph.saved if not saved.of_input]
    assert {saved.bytes for saved in inputs} == {N, 4}
    assert all(saved.dtype == "f32" and saved.bytes and saved.bytes <= 4 * ROWS for saved in kept)  # a number per row
    backward = [kernel for kernel in found.kernels if kernel.direction == "backward"]
    assert any("aten::native_layer_norm_backward" in kernel.eager_ops for kernel in backward)
    eager, moved = saved_bytes(found.kernels) or (0, 0)
    assert eager > 2 * moved > 0


def test_views_of_inputs_take_no_memory_and_aot_alone_generates_no_kernels() -> None:
    found = explanation(
        lambda x, w: torch.nn.functional.dropout(x @ w, 0.5, True), (X, W.clone().requires_grad_()), backend="aot_eager"
    )
    (graph,) = found.autograd
    assert found.kernels == ()
    by_input = {saved.of_input: saved for saved in graph.saved}
    assert by_input[True].bytes == N  # x, transposed
    assert by_input[False].op == "aten::native_dropout"
    assert by_input[False].bytes == N // 4  # a mask of bytes
    note = "not Inductor: only the stages before it are explained"
    assert any(note in each for each in report_of(found).notes)


def test_sizes_of_a_dynamic_graph_are_those_of_its_first_call() -> None:
    found = explanation(chain, (X,), backend="inductor", dynamic=True)
    (kernel,) = found.kernels
    assert (kernel.bytes_eager, kernel.bytes_kernel) == (8 * N, 2 * N)
