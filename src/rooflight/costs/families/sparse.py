"""Sparse tensors: products, ops element by element, layouts, and 2:4 semi-structured products.

Products of coordinate (COO), compressed (CSR, CSC) and block compressed (BSR, BSC) tensors with dense ones: S stored
elements do S N multiply-adds with a dense matrix of N columns; the elements inside a stored block count, zeros among
them too. Read are the elements, their indices and the rows of the dense operand that meet one: how many do is data, so
they are taken to lie in different columns, at the most all, and such counts are ``upper``. Two sparse operands do at
least one multiply-add per element that the result stores; how many more is data. A result with the pattern of an
operand shares its indices; otherwise its indices are written.

Element by element, and from one layout to another: 0 FLOPs but for what is computed with stored elements, 1 each. A
sparse operand meets only as many elements of a dense one as it stores. Indices are read where they say which elements
meet, and written where the result's pattern is a new one; ops on the elements alone (``sparse * 2``) move no indices.
Merging equal coordinates does one addition per element that disappears. What wraps indices and elements as a tensor
moves nothing.

2:4 semi-structured products: half the multiply-adds of the dense product, and the weight at half size plus 2 bits of
metadata per kept element, as the operands' shapes say.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.matmul import adds, product, product_added
from rooflight.costs.rules import (
    Family,
    copies,
    flags,
    in_place,
    nothing,
    picked_bytes,
    picks_alone,
    sources,
    tensor_bytes,
    uncosted,
)
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec

sparse_ops = Family("sparse", layout=registry.SPARSE)

PLACES_NOTE = "stored elements taken to be at different places"


UNRECORDED = (
    "_sparse_mm _sparse_addmm _sparse_sparse_matmul _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward smm hspmm "
    "sspaddmm sparse_sampled_addmm _sparse_softmax _sparse_softmax_backward_data _sparse_log_softmax "
    "_sparse_log_softmax_backward_data _sparse_sum _sparse_sum_backward _sparse_csr_sum _sparse_csr_prod sparse_mask "
    "_sparse_mask_projection _coalesce coalesce copy_sparse_to_sparse _spdiags _spsolve _gather_sparse_backward "
    "_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc "
    "to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc"
)
"""Ops that have a sparse operand or result always. A record that shows none does not hold what it stores."""

Family("sparse").rows(
    {
        uncosted("how many elements a sparse tensor stores is not recorded"): UNRECORDED,
        copies: "_to_dense to_dense to_dense_backward",  # of MKL-DNN's layout
    }
)


def index_bytes(*tensors: TensorSpec) -> int:
    """Bytes of the indices of sparse tensors, those of tensors that share their elements counted once."""
    total = 0
    shared: dict[int, int] = {}
    for tensor in tensors:
        size = tensor.packing.index_bytes if tensor.packing else 0
        if tensor.storage == UNSHARED:
            total += size
        else:
            shared[tensor.storage] = max(size, shared.get(tensor.storage, 0))
    return total + sum(shared.values())


def _stored(*tensors: TensorSpec) -> int:
    """Bytes of elements and of the indices that place them."""
    return tensor_bytes(*tensors) + index_bytes(*tensors)


def _moved(read: int, written: int, flops: int = 0) -> OpCost:
    return OpCost(vector_flops=flops, bytes_read=read, bytes_written=written)


def _new(op: OpSignature) -> int:
    """Bytes of the elements of the result, none if it shares those of an input."""
    out = op.outputs[0]
    is_alias = out.storage != UNSHARED and any(tensor.storage == out.storage for tensor in op.inputs)
    return 0 if is_alias else out.nbytes


sparse_ops(
    "_sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe "
    "sparse_coo_tensor sparse_compressed_tensor _sparse_compressed_tensor_unsafe sparse_csr_tensor "
    "sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor _sparse_csr_tensor_unsafe "
    "_sparse_compressed_tensor_with_dims embedding_sparse_backward sparse_resize sparse_resize_and_clear "
    "resize_as_sparse _coalesced empty_like empty new_empty",
    view=True,
)(nothing)


@sparse_ops(
    "_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc to_sparse to_sparse_csr to_sparse_csc "
    "to_sparse_bsr to_sparse_bsc"
)
def to_sparse(op: OpSignature) -> OpCost:
    """Dense or of another sparse layout to elements and indices; elements may be taken over, as from COO to CSR."""
    x, out = op.inputs[0], op.outputs[0]
    new = _new(op)
    read = x.nbytes if x.packing is None or new else 0
    return _moved(read + index_bytes(x), new + index_bytes(out))


def _bag_backward(op: OpSignature) -> OpCost:
    """The gradient of each bag [bags, d] to each of its indices, as elements and indices of a table's gradient."""
    grad, out = op.inputs[0], op.outputs[0]
    return _moved(picked_bytes(grad, out.numel) + index_bytes(out), out.nbytes)


def _softmax_backward(op: OpSignature) -> OpCost:
    """4 FLOPs per stored element. The op is given its forward's input for the pattern alone."""
    out = op.outputs[0]
    return _moved(tensor_bytes(*op.inputs[:2]) + index_bytes(out), out.nbytes, 4 * out.numel)


sparse_ops.rows(
    {
        # elements to where their indices say: into a dense tensor, or beside others in a sparse one
        lambda op: _moved(_stored(*sources(op)), _stored(op.outputs[0])): "_to_dense to_dense _spdiags cat stack",
        # elements and indices over those of another
        lambda op: _moved(*[_stored(op.input("src") or op.inputs[-1])] * 2): "copy copy_sparse_to_sparse",
        # stored elements added up along some dimensions
        lambda op: _moved(op.inputs[0].nbytes, _stored(op.outputs[0]), op.inputs[0].numel): "sum _sparse_sum "
        "_sparse_csr_sum _sparse_csr_prod",
        _bag_backward: "_embedding_bag_backward _embedding_bag_sparse_backward",
        picks_alone: "_sparse_sum_backward",  # to each element that was added; the pattern is the forward's input
        # over the stored elements of a row, as of dense rows
        lambda op: _moved(_stored(op.inputs[0]), op.outputs[0].nbytes, 5 * op.inputs[0].numel): "_sparse_softmax "
        "_sparse_log_softmax",
        _softmax_backward: "_sparse_softmax_backward_data _sparse_log_softmax_backward_data",
        # a sparse tensor that stores nothing: the offsets of its rows alone
        lambda op: OpCost(bytes_written=index_bytes(op.outputs[0])): "zeros_like",
        uncosted("sparse factors: how many elements they store is data"): "_spsolve",
    }
)


@sparse_ops("index_select select narrow_copy")
def pick(op: OpSignature) -> OpCost:
    """Part of a sparse tensor: the indices tell which elements."""
    x, *further = op.inputs
    out = op.outputs[0]
    return _moved(picked_bytes(x, out.numel) + index_bytes(x) + tensor_bytes(*further), _stored(out))


@sparse_ops("sparse_mask _sparse_mask_projection")
def sparse_mask(op: OpSignature) -> OpCost:
    """x where the mask stores an element; the result has the mask's pattern."""
    x, mask = op.inputs[:2]
    out = op.outputs[0]
    indices = index_bytes(x, mask) if x.packing else index_bytes(mask)
    return _moved(picked_bytes(x, out.numel) + indices, out.nbytes)


@sparse_ops("_coalesce coalesce")
def coalesce(op: OpSignature) -> OpCost:
    """Elements of equal coordinates merged: an addition for each that disappears. Sorting is not counted."""
    x, out = op.inputs[0], op.outputs[0]
    return _moved(_stored(x), _stored(out), max(0, x.numel - out.numel))


@sparse_ops("add sub")
def add(op: OpSignature) -> OpCost:
    """dense + sparse: what is stored is added to elements of the dense one, in place to these alone. sparse + sparse:
    an addition where both store an element.
    """
    x, y = sources(op)[:2]
    out = op.outputs[0]
    indices = index_bytes(x, y)
    if x.packing and y.packing:
        read = tensor_bytes(x, y) + (0 if in_place(op) and out.numel == x.numel else indices)
        return _moved(read, out.nbytes, max(0, x.numel + y.numel - out.numel))
    stored, dense = (x, y) if x.packing else (y, x)
    touched = picked_bytes(dense, stored.numel)
    return OpCost(
        vector_flops=stored.numel,
        bytes_read=stored.nbytes + indices + (touched if in_place(op) else dense.nbytes),
        bytes_written=touched if in_place(op) else out.nbytes,
        upper=in_place(op),
        note=PLACES_NOTE if in_place(op) else "",
    )


@sparse_ops("mul div")
def multiply(op: OpSignature) -> OpCost:
    """sparse * dense where the sparse one stores an element; sparse * sparse where both do. A scalar meets them all."""
    given, out = sources(op), op.outputs[0]
    by_scalar = all(tensor.packing is None and tensor.numel == 1 for tensor in given[1:])
    read = given[:1] if len(given) > 1 and given[0] == given[1] else given  # x * x
    picked = sum(picked_bytes(tensor, out.numel) for tensor in read)
    return _moved(picked + (0 if by_scalar else index_bytes(*given)), out.nbytes, out.numel)


SPREAD_NOTE = "stored elements taken to meet as many rows of the dense operand as they can"
TRIANGLE_NOTE = "all stored elements taken to lie in the triangle that is solved"
BOTH_SPARSE_NOTE = "at least one multiply-add per stored element of the result"


def _product(op: OpSignature, a: TensorSpec, b: TensorSpec, addend: TensorSpec | None = None) -> OpCost:
    """[..., m, k] @ [..., k, n], or @ [k], of which one or both are sparse, to a dense or sparse result."""
    out = op.outputs[0]
    upper, note = True, SPREAD_NOTE
    if a.packing and b.packing:
        count, read = out.numel if out.packing else 0, tensor_bytes(a, b)
        upper, note = False, BOTH_SPARSE_NOTE
    elif a.packing:
        columns = b.shape[-1] if len(b.shape) > 1 else 1
        count, read = a.numel * columns, a.nbytes + picked_bytes(b, a.numel * columns)
    else:
        rows = a.shape[-2] if len(a.shape) > 1 else 1
        count, read = rows * b.numel, b.nbytes + picked_bytes(a, rows * b.numel)
    read += index_bytes(a, b) + tensor_bytes(addend)
    added = addend.numel if addend else 0
    return product(op, count, a, vector_flops=added, read=read, bytes_written=_stored(out), upper=upper, note=note)


sparse_ops.rows(
    {
        lambda op: _product(op, *op.inputs[:2]): "mm bmm mv matmul dot hspmm _sparse_mm _sparse_sparse_matmul",
        # torch.sparse.mm reaches it with zeros for an addend and a factor of 0, so that none is read
        lambda op: _product(op, *op.inputs[1:3]): "_sparse_addmm",
    }
)


@sparse_ops("addmm addmv baddbmm sspaddmm smm")
def addmm(op: OpSignature) -> OpCost:
    """addend + a @ b."""
    addend, a, b = op.inputs[:3]
    return _product(op, a, b, addend if adds(op) else None)


_spread = partial(product, upper=True, note=SPREAD_NOTE)
"""A product that data could only make do with fewer bytes."""


@sparse_ops("linear")
def linear(op: OpSignature) -> OpCost:
    """x [..., k] @ sparse [n, k]^T + bias: each row of x meets every stored element."""
    x, weight = op.inputs[:2]
    bias = op.input("bias")
    met = x.numel // max(1, x.shape[-1]) * weight.numel
    read = picked_bytes(x, met) + _stored(weight) + tensor_bytes(bias)
    return _spread(op, met, x, read=read, vector_flops=op.outputs[0].numel if bias else 0)


@sparse_ops("sparse_sampled_addmm")
def sampled_addmm(op: OpSignature) -> OpCost:
    """sparse + (dense [m, k] @ dense [k, n] where that stores elements): k multiply-adds for each."""
    pattern, a, b = op.inputs[:3]
    met = pattern.numel * a.shape[-1]
    read = pattern.nbytes * adds(op) + index_bytes(pattern) + picked_bytes(a, met) + picked_bytes(b, met)
    return _spread(op, met, a, read=read, vector_flops=pattern.numel * adds(op))


@sparse_ops("_sparse_mm_reduce_impl")
def mm_reduce(op: OpSignature) -> OpCost:
    """sparse [m, k] with dense [k, n]: products summed, averaged or compared, and perhaps where the extremum was."""
    a, b = op.inputs[:2]
    met = a.numel * b.shape[-1]
    return _spread(op, met, a, read=_stored(a) + picked_bytes(b, met))


@sparse_ops("_sparse_mm_reduce_impl_backward")
def mm_reduce_backward(op: OpSignature) -> OpCost:
    """The result's gradient [m, n] at each stored element: with the dense operand, or with the element."""
    a, grad, b = op.inputs[:3]
    met, wanted = a.numel * grad.shape[-1], flags(op, "output_mask", (True, True))
    read = index_bytes(a) + picked_bytes(grad, met) + a.nbytes * wanted[1]
    return _spread(op, sum(wanted) * met, a, read=read + picked_bytes(b, a.numel * b.shape[-1]) * wanted[0])


@sparse_ops("triangular_solve")
def triangular_solve(op: OpSignature) -> OpCost:
    """B [n, k], A triangular [n, n]: a multiply-add per stored element and right-hand side."""
    b, a = op.inputs[:2]
    columns = b.numel // max(1, (a.packing.shape if a.packing else a.shape)[-1])
    written = op.outputs[0].nbytes  # not the copy of A that it returns
    return _spread(op, a.numel * columns, b, read=_stored(a) + b.nbytes, bytes_written=written, note=TRIANGLE_NOTE)


def _halved(op: OpSignature, operand: TensorSpec, k: int, parts: int = 1) -> OpCost:
    """2:4 [m, k] @ dense [k, n], or x [..., k] times a 2:4 weight: half of the size contracted is ``k`` / ``parts``."""
    elements = op.outputs[0].numel
    return product(op, elements * k // parts, operand, vector_flops=elements if op.input("bias") else 0)


Family("sparse").rows(
    {
        copies: "_cslt_compress _sparse_semi_structured_tile _sparse_semi_structured_apply "
        "_sparse_semi_structured_apply_dense _to_sparse_semi_structured",
        lambda op: _halved(op, op.inputs[1], op.inputs[1].shape[0], 2): "_cslt_sparse_mm",
        # the 2:4 operand is kept as [.., k / 2]
        lambda op: _halved(op, op.inputs[0], op.inputs[1].shape[-1]): "_sparse_semi_structured_linear",
        lambda op: _halved(op, op.inputs[0], op.inputs[0].shape[-1]): "_sparse_semi_structured_mm",
        lambda op: product_added(
            op, op.outputs[0].numel * op.inputs[1].shape[-1], op.inputs[1], op.outputs[0].numel
        ): "_sparse_semi_structured_addmm",
    }
)
