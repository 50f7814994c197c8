"""Products of dense matrices and vectors.

Conventions: 2 FLOPs per multiply-add on the matrix unit, at the peak of the first operand's dtype; a complex
multiply-add is 4 real ones, as cuBLAS's cgemm and MKL's compute it (docs/reference/formulas.md). A bias added in the
epilogue is one vector FLOP per element of the result, an activation applied there one more. With ``beta=0`` nothing is
added, and the first argument is not read; with ``alpha=0`` nothing is multiplied, and the others are not.

Avoidable are one triangle of a matrix times its own transpose (BLAS: syrk), and what repeats along a dimension of an
operand (stride 0): rows, columns and batch entries are computed once, and terms that have a factor in common are
summed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from rooflight.costs import registry
from rooflight.costs.cost import Needs, OpCost, Uncosted
from rooflight.costs.rules import Family, first_output, flags, integers, moves, moving, read_bytes, tensor_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, contiguous_strides

matmul_ops = Family("matmul", fusable=True, epilogue=True, product=True)
plain = matmul_ops.having(needs=Needs.PRODUCT)
thin = matmul_ops.having(epilogue=False, product=False)


def multiply_adds(count: int, operand: TensorSpec) -> int:
    """FLOPs of so many multiply-adds on the operand's kind of numbers."""
    return count * (8 if operand.dtype.startswith("complex") else 2)


def product(
    op: OpSignature,
    count: int,
    operand: TensorSpec,
    unread: Sequence[str] = (),
    read: int | None = None,
    by: TensorSpec | None = None,
    **rest: Any,
) -> OpCost:
    """The cost of an op that reads its inputs, or so many bytes, does ``count`` multiply-adds and writes its outputs;
    ``rest`` as ``OpCost`` has it. Where it is ``operand`` [..., m, k] @ ``by`` [..., k, n], some may be avoidable.
    """
    moved = {"bytes_read": read_bytes(op, *unread) if read is None else read, "bytes_written": op.output_bytes}
    flops = multiply_adds(count, operand)
    avoidable = 0 if by is None else flops - multiply_adds(least_multiply_adds(count, operand, by), operand)
    return OpCost(**{**moved, "matrix_dtype": operand.dtype, **rest}, matrix_flops=flops, avoidable_flops=avoidable)


def least_multiply_adds(count: int, a: TensorSpec, b: TensorSpec) -> int:
    """Of the ``count`` of a [..., m, k] @ b [..., k, n] those that no kernel can do without. Dimensions before the last
    two that one side lacks belong to the other.
    """
    if not _may_spare(a, b):
        return count
    if len(b.shape) < 2:
        b = transposed(_as_row(b))
    a = _as_row(a) if len(a.shape) < 2 else a
    repeats = a.repeats(-2) * b.repeats(-1) * max(a.repeats(-1), b.repeats(-2))
    for dim in range(-max(len(a.shape), len(b.shape)), -2):
        there = [tensor for tensor in (a, b) if len(tensor.shape) >= -dim and tensor.shape[dim] != 1]
        if there and all(tensor.repeats(dim) > 1 for tensor in there):
            repeats *= there[0].shape[dim]
    rows = a.shape[-2] // a.repeats(-2)
    is_symmetric = a.storage != UNSHARED and _plainly(a) == _plainly(transposed(b))
    return count // repeats * (rows + 1) // (2 * rows) if is_symmetric and rows else count // repeats


def _plainly(tensor: TensorSpec) -> TensorSpec:
    """Without dimensions of size 1, whose strides do not matter."""
    pairs = zip(tensor.shape, tensor.strides or contiguous_strides(tensor.shape), strict=True)
    kept = [pair for pair in pairs if pair[0] != 1]
    return replace(tensor, shape=tuple(size for size, _ in kept), strides=tuple(stride for _, stride in kept))


def _may_spare(a: TensorSpec, b: TensorSpec) -> bool:
    return a.storage != UNSHARED or a.strides is not None or b.strides is not None


def transposed(tensor: TensorSpec) -> TensorSpec:
    """A view [..., m, n] as [..., n, m]; contiguous strides are those that None stands for."""
    if len(tensor.shape) < 2:
        return tensor
    *batch, rows, columns = zip(tensor.shape, tensor.strides or contiguous_strides(tensor.shape), strict=True)
    shape, strides = zip(*batch, columns, rows, strict=True)
    contiguous = list(strides) == contiguous_strides(shape)
    return replace(tensor, shape=shape, strides=None if contiguous else strides)


def _as_row(vector: TensorSpec) -> TensorSpec:
    return replace(vector, shape=(1, *vector.shape), strides=vector.strides and (1, *vector.strides))


def adds(op: OpSignature) -> bool:
    """Whether a product is added to what its first argument holds, and does not overwrite it: ``beta`` is not 0."""
    return op.attribute("beta") != 0


def multiplies(op: OpSignature) -> bool:
    """Whether there is a product to add: ``alpha`` is not 0."""
    return op.attribute("alpha") != 0


def product_added(
    op: OpSignature,
    count: int,
    operand: TensorSpec,
    elements: int,
    activation: int = 0,
    by: TensorSpec | None = None,
) -> OpCost:
    """The same, added to the first argument unless ``beta`` is 0: a vector FLOP for each of so many elements, and those
    of an activation. With ``alpha=0`` there is nothing to add, and the operands are not read.
    """
    unread = () if adds(op) else op.input_names[:1]
    if not multiplies(op):
        return moves(op, vector_flops=activation * elements, unread=(*unread, *op.input_names[1:3]))
    return product(op, count, operand, vector_flops=(adds(op) + activation) * elements, unread=unread, by=by)


@plain("mm")
def mm(op: OpSignature) -> OpCost:
    """[m, k] @ [k, n]: one multiply-add per (m, n, k)."""
    a, b = op.inputs[:2]
    (m, k), (_, n) = a.shape, b.shape
    return product(op, m * n * k, a, by=b)


@plain("bmm")
def bmm(op: OpSignature) -> OpCost:
    """[b, m, k] @ [b, k, n]: a matrix product per batch entry."""
    a, b = op.inputs[:2]
    (batch, m, k), (_, _, n) = a.shape, b.shape
    return product(op, batch * m * n * k, a, by=b)


@plain("addmm _addmm_activation")
def addmm(op: OpSignature) -> OpCost:
    """bias + [m, k] @ [k, n]: the product, then the bias (and perhaps an activation) once per element."""
    _, a, b = op.inputs[:3]
    (m, k), (_, n) = a.shape, b.shape
    return product_added(op, m * n * k, a, m * n, activation=op.name == "aten::_addmm_activation", by=b)


@plain("baddbmm")
@matmul_ops("addbmm")
def baddbmm(op: OpSignature) -> OpCost:
    """bias + [b, m, k] @ [b, k, n], of ``addbmm`` summed over b."""
    _, a, b = op.inputs[:3]
    (batch, m, k), (_, _, n) = a.shape, b.shape
    return product_added(op, batch * m * n * k, a, (1 if "::addbmm" in op.name else batch) * m * n, by=b)


@thin("addr")
def addr(op: OpSignature) -> OpCost:
    """bias [m, n] + [m] outer [n]: a multiply and an add per element, too thin for the matrix unit."""
    _, a, b = op.inputs[:3]
    unread = () if adds(op) else ("self",)
    if not multiplies(op):
        return moves(op, unread=(*unread, *op.input_names[1:3]))
    return moves(op, vector_flops=(1 + adds(op)) * a.numel * b.numel, unread=unread)


matmul_ops.rows(
    {
        # [m, k] @ [k]; [k] . [k]
        lambda op: product(op, op.inputs[0].numel, op.inputs[0], by=op.inputs[1]): "mv dot vdot",
        # bias + [m, k] @ [k]
        lambda op: product_added(op, op.inputs[1].numel, op.inputs[1], op.inputs[1].shape[0], by=op.inputs[2]): "addmv",
        # [..., m, k] @ [..., k, n], either side perhaps a vector: k multiply-adds per element of the result
        lambda op: product(
            op, op.outputs[0].numel * op.inputs[0].shape[-1], op.inputs[0], by=op.inputs[1]
        ): "matmul linalg_matmul",
        lambda op: product(op, op.outputs[0].numel * op.inputs[0].shape[-1], op.inputs[0]): "inner",
        # one gradient of a linear layer: dx from (dy [m, n], w [n, k]) or dw from (dy [m, n], x [m, k])
        lambda op: product(op, op.inputs[0].numel * op.inputs[1].shape[-1], op.inputs[0]): (
            "mkldnn_linear_backward_input mkldnn_linear_backward_weights"
        ),
    }
)
thin.rows(
    {
        first_output(1): "outer ger",  # [m] outer [n]: one multiply per element
        # their gradients to those of x: about 4 FLOPs per distance and component
        moving(lambda op: 4 * op.inputs[0].numel * op.inputs[1].shape[-1]): "_cdist_backward _pdist_backward",
    }
)


@thin("cdist _cdist_forward pdist _pdist_forward")
def distances(op: OpSignature) -> OpCost:
    """x [..., p, m], y [..., r, m] to distances [..., p, r], or x [n, m] to n (n - 1) / 2: a multiplication and an
    addition for each component, as |x|^2 + |y|^2 - 2 x.y needs them, the least of any norm; of x and x half of it is
    the other half.
    """
    x, *others = op.inputs
    count = op.outputs[0].numel * x.shape[-1]
    by = transposed(others[0]) if others else None
    return moves(op, vector_flops=2 * (count if by is None else least_multiply_adds(count, x, by)))


@matmul_ops("matmul_backward")
def matmul_backward(op: OpSignature) -> OpCost:
    """The result's gradient times either operand: one forward's worth for each gradient asked for."""
    grad, a = op.inputs[:2]
    return product(op, sum(flags(op, "mask", (True, True))) * grad.numel * a.shape[-1], a)


@matmul_ops("linear", layout=registry.NESTED)
@plain("linear mkldnn_linear mkldnn::_linear_pointwise mkl::_mkl_linear")
def linear(op: OpSignature) -> OpCost:
    """[..., k] @ [n, k]^T + bias [n]; a mkldnn epilogue is not counted."""
    x, out = op.inputs[0], op.outputs[0]
    bias = op.input("bias") or op.input("B") or op.input("b")
    # a nested x is a flat list of elements, then only the weight tells k; a weight packed for MKL tells nothing
    k = op.inputs[1].shape[-1] if op.name == "aten::linear" else x.shape[-1]
    is_plain = op.name == "aten::linear" and x.packing is None and _may_spare(x, op.inputs[1])
    by = transposed(op.inputs[1]) if is_plain else None
    return product(op, out.numel * k, x, vector_flops=out.numel if bias else 0, by=by)


@matmul_ops("linear_backward")
@matmul_ops("linear_backward", layout=registry.NESTED)
def linear_backward(op: OpSignature) -> OpCost:
    """dx = dy [m, n] @ w [n, k], dw = dy^T @ x [m, k], db = sum of dy: each only as ``output_mask`` asks."""
    x, grad, weight = op.inputs[:3]
    wants_x, wants_weight, wants_bias = flags(op, "output_mask", (True, True, True))
    count = (wants_x + wants_weight) * grad.numel * weight.shape[-1]
    read = tensor_bytes(grad, x if wants_weight else None, weight if wants_x else None)
    return product(op, count, x, vector_flops=grad.numel * wants_bias, read=read)


@matmul_ops("inductor::_mm_plus_mm")
def mm_plus_mm(op: OpSignature) -> OpCost:
    """[m, k] @ [k, n] + [m, j] @ [j, n] in one kernel."""
    a, b, c = op.inputs[:3]
    (m, k), (_, n), (_, j) = a.shape, b.shape, c.shape
    return product(op, m * n * (k + j), a, vector_flops=m * n)


@matmul_ops("_euclidean_dist")
def euclidean_dist(op: OpSignature) -> OpCost:
    """|x|^2 + |y|^2 - 2 x.y: a product [p, m] @ [m, r], then 3 FLOPs per distance."""
    x, out = op.inputs[0], op.outputs[0]
    by = transposed(op.inputs[1]) if len(op.inputs) > 1 else None
    return product(op, out.numel * x.shape[-1], x, vector_flops=3 * out.numel, by=by)


@matmul_ops("_foreach_mm")
def foreach_mm(op: OpSignature) -> OpCost:
    """A list of [m, k] @ [k, n]."""
    lefts = op.named("self")
    return product(op, sum(out.numel * a.shape[-1] for a, out in zip(lefts, op.outputs, strict=True)), lefts[0])


@matmul_ops("einsum")
def einsum(op: OpSignature) -> OpCost | Uncosted:
    """Two operands contracted by an equation: one multiply-add per point of the joint index space."""
    equation = str(op.attribute("equation", "")).replace(" ", "").partition("->")[0]
    if len(op.inputs) != 2 or equation.count(",") != 1 or "." in equation:
        return Uncosted("einsum of other than two fully named operands")
    sizes = {
        label: size
        for labels, tensor in zip(equation.split(","), op.inputs, strict=True)
        for label, size in zip(labels, tensor.shape, strict=True)
    }
    return product(op, prod(sizes.values()), op.inputs[0])


@matmul_ops("_trilinear")
def trilinear(op: OpSignature) -> OpCost:
    """The sum of i1 * i2 * i3 over ``sumdim``, each without the dimensions of ``expand``: two of them first, then the
    third, in the order that takes the fewest multiply-adds.
    """
    axes = [
        dict(zip(sorted(set(range(len(tensor.shape) + len(expanded))) - {*expanded}), tensor.shape, strict=True))
        for number, tensor in enumerate(op.inputs, 1)
        for expanded in [integers(op, f"expand{number}")]
    ]
    summed = {*integers(op, "sumdim")}
    counts = []
    for last in axes:
        pair: dict[int, int] = {}
        for each in axes:
            pair |= {} if each is last else each
        left = {axis: size for axis, size in pair.items() if axis in last or axis not in summed}
        counts.append(prod(pair.values()) + prod((left | last).values()))
    return product(op, min(counts), op.inputs[0])


@matmul_ops("bilinear")
def bilinear(op: OpSignature) -> OpCost:
    """x [..., i], w [o, i, j], y [..., j]: x @ w first, then with y, per row."""
    x, y, weight = op.inputs[:3]
    rows = x.numel // x.shape[-1]
    return product(op, rows * (weight.numel + weight.shape[0] * y.shape[-1]), x)


@matmul_ops("chain_matmul linalg_multi_dot")
def chain_matmul(op: OpSignature) -> OpCost:
    """[m, k] @ [k, j] @ ... in the order that takes the fewest multiply-adds."""
    matrices = op.named("matrices") or op.named("tensors") or op.inputs
    sizes = [matrices[0].shape[0] if len(matrices[0].shape) == 2 else 1]
    sizes += [tensor.shape[-1] if len(tensor.shape) == 2 else 1 for tensor in matrices]
    if len(matrices[0].shape) == 1:
        sizes[1] = matrices[0].shape[0]
    return product(op, _cheapest_chain(sizes), matrices[0])


def _cheapest_chain(sizes: list[int]) -> int:
    """Multiply-adds of the best order for a chain of matrices sizes[i] x sizes[i + 1]."""
    count = len(sizes) - 1
    best = [[0] * count for _ in range(count)]
    for length in range(2, count + 1):
        for first in range(count - length + 1):
            last = first + length - 1
            best[first][last] = min(
                best[first][split] + best[split + 1][last] + sizes[first] * sizes[split + 1] * sizes[last + 1]
                for split in range(first, last)
            )
    return best[0][count - 1]
