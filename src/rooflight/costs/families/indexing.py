"""Reading and writing picked elements: gather, scatter, masks, and tables of embeddings.

Reading picks: of the source only as many elements move as the result has, or as the source has where that is fewer;
indices are read in full. Writing picks in place touches as many elements as are given, read first only if something is
added to them. Indices are taken to differ from each other, which data can only lower (``upper``). Out of place the
source is copied whole besides. Adding is 1 FLOP per element given. Any thread may write anywhere, so a chain of fused
ops may end with writing picks, but none goes on after it.

Tables: a look-up reads the indices and the rows they pick, at the most as many distinct rows as there are indices or
as the table has, never the whole table; tokens that repeat can only lower this (``upper``). A dense gradient writes
the whole table, however few rows it hits; adding the gradients up is 1 FLOP per element. A bag adds rows: 1 FLOP per
element picked, 2 with weights.

FBGEMM's tables and sparse features (``fbgemm_gpu``), in training of recommenders: a look-up reads indices and offsets
and writes a row for each bag; rows that it reads are not counted, since indices may all pick one of them. Rows of
tables have at least 4 numbers, FBGEMM's smallest. Its backward, a node of autograd in traces, reads the gradient;
which rows it updates is unknown. So these counts are the least, not the usual. Signatures:
``fbgemm_gpu/codegen/training/forward`` and ``fbgemm_gpu/src/sparse_ops`` of FBGEMM.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Final

from rooflight.costs import registry
from rooflight.costs.cost import Needs, OpCost
from rooflight.costs.rules import (
    Family,
    all_but_one,
    copies,
    first_input,
    further_bytes,
    in_place,
    largest,
    may_repeat,
    moves,
    picked_bytes,
    picking,
    read_bytes,
    sources,
    tensor_bytes,
)
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

indexing_ops = Family("indexing", fusable=True)
unfusable = indexing_ops.having(fusable=False)
ending = indexing_ops.having(ends_chain=True)

_INDICES = ("index", "indices")


@unfusable("masked_select")  # how much it picks is data
@indexing_ops("gather index_select index _unsafe_index take take_along_dim _unsafe_masked_index")
def pick(op: OpSignature) -> OpCost:
    """x and indices (or a mask) to the elements picked."""
    return picking(op, op.outputs[0].numel, upper=may_repeat(sources(op)[1:]))


def put(
    op: OpSignature,
    target: TensorSpec,
    touched: int,
    *,
    accumulate: bool,
    given: int | None = None,
    note: str = "",
    adds_to_old: bool = True,
) -> OpCost:
    """The cost of writing ``touched`` elements of ``target``, or of a copy of it; ``given`` bytes are read besides.
    What is accumulated may leave out what was there.
    """
    read = further_bytes(op) if given is None else given
    flops, reads_old = touched if accumulate else 0, accumulate and adds_to_old
    picked = picked_bytes(target, touched)
    if in_place(op):
        rest, written = (picked if reads_old else 0), picked
    else:
        written = op.output_bytes
        # what is overwritten need not be read, if all that is given lands on distinct elements
        rest = target.nbytes if reads_old else target.nbytes - picked
    upper = bool(note) or (in_place(op) and may_repeat(each for name in _INDICES for each in op.named(name)))
    spared = upper and in_place(op)
    return OpCost(
        vector_flops=flops,
        bytes_read=read + rest,
        bytes_written=written,
        avoidable_read=all_but_one(rest, target) if spared else 0,
        avoidable_written=all_but_one(written, target) if spared else 0,
        upper=upper,
        note=note,
    )


@ending("scatter scatter_add scatter_reduce")
def scatter(op: OpSignature) -> OpCost:
    """x, index and src: the elements of src under the index go to, or are added to, those of x it names."""
    target, index = op.inputs[:2]
    src = op.input("src") or op.input("value")
    given = index.nbytes + (picked_bytes(src, index.numel) if src else 0)
    adds = op.name.rstrip("_") != "aten::scatter" or bool(op.attribute("reduce"))
    kept = op.attribute("include_self") is not False
    return put(op, target, index.numel, accumulate=adds, given=given, adds_to_old=kept)


def _puts_source(op: OpSignature, *, accumulate: bool) -> OpCost:
    """x, index [n] and n slices of source, which go to those of x."""
    source = op.input("source") or op.inputs[2]
    kept = op.attribute("include_self") is not False
    return put(op, op.inputs[0], source.numel, accumulate=accumulate, adds_to_old=kept)


def item(op: OpSignature) -> OpCost:
    """One element to the host."""
    return OpCost(bytes_read=op.inputs[0].item_bytes)


_back = first_input(1, "self")
"""The gradients of what was picked, put back among zeros."""
ending.rows(
    {
        partial(_puts_source, accumulate=True): "index_add index_reduce",
        partial(_puts_source, accumulate=False): "index_copy",
        # x, index and source alike: flat positions of x get the elements of source
        lambda op: put(op, op.inputs[0], op.inputs[1].numel, accumulate=bool(op.attribute("accumulate"))): "put",
        _back: "masked_scatter_backward",
    }
)
indexing_ops.rows(
    {
        _back: "index_select_backward gather_backward",
        item: "_local_scalar_dense item prims::item",
        # the diagonal of x gets one value
        lambda op: OpCost(bytes_written=picked_bytes(op.inputs[0], min(op.inputs[0].shape, default=1))): (
            "fill_diagonal_"
        ),
    }
)
# x to the coordinates of its elements that are not zero; how many there are is data
_nonzero = "nonzero nonzero_numpy nonzero_static argwhere"
unfusable.rows({_back: "masked_select_backward", first_input(1): _nonzero, item: "is_nonzero"})


@indexing_ops("index_fill", needs=Needs.JOINED)
def index_fill(op: OpSignature) -> OpCost:
    """x and index [n]: n slices of x get one value."""
    target, index = op.inputs[:2]
    dim = op.attribute("dim", 0)
    size = target.shape[dim] if isinstance(dim, int) and target.shape else 1
    return put(op, target, index.numel * target.numel // max(1, size), accumulate=False)


@ending("index_put _unsafe_index_put _index_put_impl _unsafe_masked_index_put_accumulate")
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


@ending("masked_scatter")
def masked_scatter(op: OpSignature) -> OpCost:
    """x, mask and source: masked elements of x get those of source in order."""
    target, mask, source = op.inputs[:3]
    touched = min(target.numel, source.numel)
    given = mask.nbytes + picked_bytes(source, touched)
    return put(op, target, touched, accumulate=False, given=given, note="mask taken as all true")


@indexing_ops("slice_scatter select_scatter diagonal_scatter as_strided_scatter", needs=Needs.JOINED)
def view_scatter(op: OpSignature) -> OpCost:
    """A copy of x with src in one of its views: what src covers of x is not read."""
    target, src = op.inputs[:2]
    return OpCost(
        bytes_read=max(0, target.nbytes - src.numel * target.item_bytes) + src.nbytes, bytes_written=op.output_bytes
    )


embedding_ops = Family("embedding", fusable=True)


def _in_rows(table: TensorSpec, indices: TensorSpec) -> int:
    return indices.numel * prod(table.shape[1:])


@embedding_ops("_embedding_bag _embedding_bag_forward_only embedding_bag")
def embedding_bag(op: OpSignature) -> OpCost:
    """weight [V, d], indices [n], offsets [bags] to the sum, mean or maximum of each bag's rows [bags, d]."""
    weight, indices = op.inputs[:2]
    flops = (2 if op.input("per_sample_weights") else 1) * indices.numel * weight.shape[-1]
    return picking(op, _in_rows(weight, indices), vector_flops=flops, upper=may_repeat([indices]))


_dense_backward = first_input(1)
"""dy [..., d], indices [...] to dweight [V, d]: zeros and the sums of what hit each row."""
embedding_ops.rows(
    {  # weight [V, d], indices [...] to rows [..., d]
        lambda op: picking(op, _in_rows(*op.inputs[:2]), upper=may_repeat(op.inputs[1:2])): "embedding",
        _dense_backward: "embedding_backward",
        copies: "embedding_sparse_backward _embedding_bag_sparse_backward",
    }
)
embedding_ops.having(ends_chain=True).rows({_dense_backward: "embedding_dense_backward"})  # any may hit any row


@embedding_ops("_embedding_bag_dense_backward", ends_chain=True)
@embedding_ops("_embedding_bag_backward")
def embedding_bag_dense_backward(op: OpSignature) -> OpCost:
    """dy [bags, d], indices [n] to dweight [V, d]: each index adds a row."""
    indices = op.input("indices") or op.inputs[1]
    return moves(op, vector_flops=indices.numel * op.inputs[0].shape[-1])


@embedding_ops("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(op: OpSignature) -> OpCost:
    """dy [bags, d] . weight [V, d] for each of n indices."""
    weight, indices = op.inputs[1:3]
    picked, repeats = picked_bytes(weight, _in_rows(weight, indices)), may_repeat([indices])
    return OpCost(
        vector_flops=2 * indices.numel * weight.shape[-1],
        bytes_read=read_bytes(op, "weight") + picked,
        bytes_written=op.output_bytes,
        avoidable_read=all_but_one(picked, weight) if repeats else 0,
        upper=repeats,
    )


@embedding_ops("embedding_renorm")
def embedding_renorm(op: OpSignature) -> OpCost:
    """Rescales the rows picked: square, add, scale."""
    weight, indices = op.inputs[:2]
    rows = picked_bytes(weight, _in_rows(weight, indices))
    return OpCost(
        vector_flops=3 * rows // weight.item_bytes,
        bytes_read=indices.nbytes + rows,
        bytes_written=rows,
        upper=True,
        note="rows within the norm need no writing",
    )


fbgemm_ops = Family("embedding")

LEAST_WIDTH: Final = 4
_LENGTHS_NOTE: Final = "rows read are not counted: indices may repeat"
_NODE: Final = "trace::torch::autograd::CppNode"
_PERMUTE_NODE: Final = f"{_NODE}<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"


def lookup(op: OpSignature, *, at: int, bags_at: int, weights_at: int) -> OpCost:
    """T tables, indices [n] in bags [B T + 1], perhaps weights [n], to [B, sum of the tables' widths] float32. The
    widths are the argument ``at``, their sum the next, indices and offsets those from ``bags_at`` on.
    """
    widths, indices, offsets = (op.input(f"arg{place}") for place in (at, bags_at, bags_at + 1))
    if widths is None or indices is None or offsets is None:
        raise ValueError("its arguments are not those of 2022: no D_offsets, indices, offsets")
    tables, bags = widths.numel - 1, max(offsets.numel - 1, 0)
    given = op.attribute(f"arg{at + 1}")  # total_D, which old traces do not have
    total = given if type(given) is int and given >= LEAST_WIDTH * tables else LEAST_WIDTH * tables
    return OpCost(
        vector_flops=LEAST_WIDTH * indices.numel,
        vector_dtype="float32",
        bytes_read=indices.nbytes + offsets.nbytes + tensor_bytes(op.input(f"arg{weights_at}")),
        bytes_written=bags // max(tables, 1) * total * 2,  # results may be float16
        note=_LENGTHS_NOTE,
    )


@registry.formula(_PERMUTE_NODE, error_group="embedding")
@fbgemm_ops(
    "fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad "
    "fbgemm::recat_embedding_grad_output_mixed_D_batch"
)
def rearrange(op: OpSignature) -> OpCost:
    """x [B, D] in another order of its columns; the lists of offsets are read too."""
    return OpCost(bytes_read=op.input_bytes, bytes_written=op.inputs[0].nbytes)


@fbgemm_ops("fbgemm::permute_sparse_features fbgemm::permute_2D_sparse_data")
def permute_sparse(op: OpSignature) -> OpCost:
    """permute [T'], lengths [T, B] to [T', B]; how many indices the features picked have is unknown."""
    permute, lengths = op.inputs[:2]
    written = permute.numel * (lengths.shape[-1] if lengths.shape else 0) * lengths.item_bytes
    note = "the indices of features are not counted: some may be left"
    return OpCost(bytes_read=permute.nbytes, bytes_written=written, note=note)


@fbgemm_ops("fbgemm::asynchronous_complete_cumsum fb::asynchronous_complete_cumsum")
def complete_cumsum(op: OpSignature) -> OpCost:
    """x [n] to its sums [n + 1], from 0 on."""
    x = op.inputs[0]
    written = (x.numel + 1) * x.item_bytes
    return OpCost(vector_flops=x.numel, vector_dtype="float32", bytes_read=x.nbytes, bytes_written=written)


fbgemm_ops.rows(
    {
        partial(lookup, at=6, bags_at=11, weights_at=14): (
            "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
        ),
        partial(lookup, at=2, bags_at=7, weights_at=10): "fbgemm::dense_embedding_codegen_lookup_function",
        # permute [T'], lengths [T] to [T']
        lambda op: OpCost(bytes_read=op.inputs[0].nbytes, bytes_written=op.inputs[0].numel * op.inputs[1].item_bytes): (
            "fbgemm::permute_1D_sparse_data"
        ),
        # dy [B, sum of widths], added to the rows that the look-up picked
        lambda op: OpCost(bytes_read=op.input_bytes, note="rows updated are not counted: indices may repeat"): (
            f"{_NODE}<SplitLookupFunction_rowwise_adagrad_Op>"
        ),
        # rows per table, indices [n] and offsets: two comparisons per index
        lambda op: OpCost(
            vector_flops=2 * op.inputs[1].numel, vector_dtype="float32", bytes_read=tensor_bytes(*op.inputs[:3])
        ): "fbgemm::bounds_check_indices",
        # offsets [n] to places within the bags; their number is not counted
        lambda op: OpCost(bytes_read=op.inputs[0].nbytes): "fb::offsets_range fbgemm::offsets_range",
    }
)
