"""Reading and writing picked elements: gather, scatter, index, masked and their kin.

Conventions: reading picks: of the source only as many elements move as the result has, or as the source has where
that is fewer; indices are read in full. Writing picks in place touches as many elements as are given, read first
only if something is added to them. Indices are taken to differ from each other, which data can only lower (``upper``).
Out of place the source is copied whole besides. Adding is 1 FLOP per element given. Any thread may write anywhere, so a
chain of fused ops may end with writing picks, but none goes on after it.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import (
    further_bytes,
    in_place,
    largest,
    may_repeat,
    moves,
    names,
    picked_bytes,
    sources,
)
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

formula = partial(registry.formula, error_group="indexing", fusable=True)

_INDICES = ("index", "indices")


@formula("aten::masked_select", fusable=False)  # how much it picks is data
@formula(*names("gather index_select index _unsafe_index take take_along_dim _unsafe_masked_index"))
def pick(op: OpSignature) -> OpCost:
    """x and indices (or a mask) to the elements picked."""
    source = op.inputs[0]
    return OpCost(
        bytes_read=further_bytes(op) + picked_bytes(source, op.outputs[0].numel),
        bytes_written=op.output_bytes,
        upper=may_repeat(sources(op)[1:]),
    )


def put(
    op: OpSignature, target: TensorSpec, touched: int, *, accumulate: bool, given: int | None = None, note: str = ""
) -> OpCost:
    """The cost of writing ``touched`` elements of ``target``, or of a copy of it; ``given`` bytes are read besides."""
    read = further_bytes(op) if given is None else given
    flops = touched if accumulate else 0
    picked = picked_bytes(target, touched)
    if in_place(op):
        kept, written = (picked if accumulate else 0), picked
    else:
        written = op.output_bytes
        # what is overwritten need not be read, if all that is given lands on distinct elements
        kept = target.nbytes if accumulate else target.nbytes - picked
    upper = bool(note) or (in_place(op) and may_repeat(each for name in _INDICES for each in op.named(name)))
    return OpCost(vector_flops=flops, bytes_read=read + kept, bytes_written=written, upper=upper, note=note)


@formula(*names("scatter scatter_add scatter_reduce"), ends_chain=True)
def scatter(op: OpSignature) -> OpCost:
    """x, index and src: the elements of src under the index go to, or are added to, those of x it names."""
    target, index = op.inputs[:2]
    src = op.input("src") or op.input("value")
    given = index.nbytes + (picked_bytes(src, index.numel) if src else 0)
    adds = op.name.rstrip("_") != "aten::scatter" or bool(op.attribute("reduce"))
    return put(op, target, index.numel, accumulate=adds, given=given)


@formula("aten::index_add", "aten::index_reduce", ends_chain=True)
def index_add(op: OpSignature) -> OpCost:
    """x, index [n] and n slices of source, added to those of x."""
    source = op.input("source") or op.inputs[2]
    return put(op, op.inputs[0], source.numel, accumulate=True)


@formula("aten::index_copy", ends_chain=True)
def index_copy(op: OpSignature) -> OpCost:
    """x, index [n] and n slices of source, put over those of x."""
    source = op.input("source") or op.inputs[2]
    return put(op, op.inputs[0], source.numel, accumulate=False)


@formula("aten::index_fill", needs=Needs.JOINED)
def index_fill(op: OpSignature) -> OpCost:
    """x and index [n]: n slices of x get one value."""
    target, index = op.inputs[:2]
    dim = op.attribute("dim", 0)
    size = target.shape[dim] if isinstance(dim, int) and target.shape else 1
    return put(op, target, index.numel * target.numel // max(1, size), accumulate=False)


@formula("aten::put", ends_chain=True)
def put_flat(op: OpSignature) -> OpCost:
    """x, index and source alike: flat positions of x get the elements of source."""
    return put(op, op.inputs[0], op.inputs[1].numel, accumulate=bool(op.attribute("accumulate")))


@formula(*names("index_put _unsafe_index_put _index_put_impl _unsafe_masked_index_put_accumulate"), ends_chain=True)
def index_put(op: OpSignature) -> OpCost:
    """x, indices and values; which dimensions are indexed is unknown, so values or indices give the count."""
    target = op.inputs[0]
    values = op.input("values") or op.inputs[-1]
    indices = op.named("indices")
    accumulate = bool(op.attribute("accumulate")) or op.name.endswith("accumulate")
    masked = [index for index in indices if index.dtype in ("bool", "uint8")]
    if masked and values.numel == 1:
        return put(op, target, target.numel, accumulate=accumulate, note="mask taken as all true")
    return put(op, target, max(values.numel, largest(indices)), accumulate=accumulate)


@formula("aten::masked_scatter", ends_chain=True)
def masked_scatter(op: OpSignature) -> OpCost:
    """x, mask and source: masked elements of x get those of source in order."""
    target, mask, source = op.inputs[:3]
    touched = min(target.numel, source.numel)
    given = mask.nbytes + picked_bytes(source, touched)
    return put(op, target, touched, accumulate=False, given=given, note="mask taken as all true")


@formula("aten::fill_diagonal_")
def fill_diagonal(op: OpSignature) -> OpCost:
    """The diagonal of x gets one value."""
    target = op.inputs[0]
    return OpCost(bytes_written=picked_bytes(target, min(target.shape, default=1)))


@formula(*names("slice_scatter select_scatter diagonal_scatter as_strided_scatter"), needs=Needs.JOINED)
def view_scatter(op: OpSignature) -> OpCost:
    """A copy of x with src in one of its views: what src covers of x is not read."""
    target, src = op.inputs[:2]
    return OpCost(
        bytes_read=max(0, target.nbytes - src.numel * target.item_bytes) + src.nbytes,
        bytes_written=op.output_bytes,
    )


@formula("aten::masked_select_backward", fusable=False)
@formula("aten::masked_scatter_backward", ends_chain=True)
@formula("aten::index_select_backward", "aten::gather_backward")
def pick_backward(op: OpSignature) -> OpCost:
    """The gradients of what was picked, put back among zeros."""
    return moves(op, vector_flops=op.inputs[0].numel, unread=("self",))


@formula(*names("nonzero nonzero_numpy nonzero_static argwhere"), fusable=False)  # how many there are is data
def nonzero(op: OpSignature) -> OpCost:
    """x to the coordinates of its elements that are not zero."""
    return moves(op, vector_flops=op.inputs[0].numel)


@formula("aten::is_nonzero", fusable=False)
@formula("aten::_local_scalar_dense", "aten::item", "prims::item")
def item(op: OpSignature) -> OpCost:
    """One element to the host."""
    return OpCost(bytes_read=op.inputs[0].item_bytes)
