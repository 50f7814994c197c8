"""Copies, conversions, concatenation, rearrangement and padding: bytes only, 0 FLOPs.

Conventions: sources read once, results written once; a tensor copied into is not read. A call that returns an alias
of its input (``contiguous`` of a contiguous tensor) moves nothing.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import (
    clamped_sum,
    copies,
    further_bytes,
    in_place,
    integer,
    moves,
    names,
    overwrites,
    picked_bytes,
    read_bytes,
    register,
)
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED

formula = partial(registry.formula, error_group="copying", fusable=True)

elements = partial(formula, needs=Needs.ELEMENTS)
joined = partial(formula, needs=Needs.JOINED)
divided = partial(formula, needs=Needs.DIVIDED)

register(
    elements,
    {
        copies: "clone _to_copy lift_fresh_copy _to_cpu _pin_memory pin_memory _copy_from alias_copy detach_copy "
        "_conj_copy"
    },
)
register(
    joined,
    {
        copies: "cat concat concatenate stack _stack hstack vstack dstack column_stack row_stack block_diag "
        "_chunk_cat diag_embed diagflat _pad_circular pad_sequence slice_backward select_backward "
        "diagonal_backward trace_backward _pad_packed_sequence flatten_dense_tensors"
    },
)
register(
    formula,
    {
        copies: "expand_copy permute_copy "
        "squeeze_copy t_copy transpose_copy unsqueeze_copy view_copy view_as_real_copy "
        "view_as_complex_copy _reshape_alias_copy _reshape_copy _neg_view_copy _fw_primal_copy "
        "_make_dual_copy values_copy _values_copy indices_copy _indices_copy crow_indices_copy col_indices_copy "
        "ccol_indices_copy row_indices_copy _sparse_broadcast_to_copy "
        "flip fliplr flipud roll rot90 repeat tile channel_shuffle native_channel_shuffle pixel_shuffle "
        "pixel_unshuffle cartesian_prod combinations vander "
        "_pack_padded_sequence_backward unflatten_dense_tensors _copy_from_and_resize "
        "to_mkldnn to_mkldnn_backward _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo",
    },
)


register(divided, {copies: "split_with_sizes_copy split_copy unbind_copy"})


@elements("aten::copy")
def copy(op: OpSignature) -> OpCost:
    """src over x; nothing where both are one view of the same memory, as at the end of ``x[:4] += 1``."""
    x, src = op.inputs[:2]
    return OpCost() if x == src and x.storage != UNSHARED else overwrites(op)


@formula(*names("as_strided_copy diag diagonal_copy narrow_copy select_copy slice_copy unfold_copy"))
def copy_of_part(op: OpSignature) -> OpCost:
    """A part of x: no more elements are read than written."""
    read = picked_bytes(op.inputs[0], op.outputs[0].numel)
    return OpCost(bytes_read=read, bytes_written=op.output_bytes)


@elements(*names("contiguous reshape reshape_as flatten ravel to type_as"))
def perhaps_copy(op: OpSignature) -> OpCost:
    """Nothing where the result aliases the input, a copy where it could not."""
    x, out = op.inputs[0], op.outputs[0]
    return OpCost() if out.storage == x.storage != UNSHARED else OpCost(bytes_read=x.nbytes, bytes_written=out.nbytes)


@joined("aten::constant_pad_nd", "aten::pad")
def pad(op: OpSignature) -> OpCost:
    """x amid a constant; negative padding leaves some of x unread."""
    return OpCost(bytes_read=picked_bytes(op.inputs[0], op.outputs[0].numel), bytes_written=op.output_bytes)


@formula("aten::_pack_padded_sequence")
def pack_padded(op: OpSignature) -> OpCost:
    """Padded sequences and their lengths to the elements that are no padding, which is not read."""
    read = picked_bytes(op.inputs[0], op.outputs[0].numel) + further_bytes(op)
    return OpCost(bytes_read=read, bytes_written=op.output_bytes)


@joined("aten::tril", "aten::triu")
def triangle(op: OpSignature) -> OpCost:
    """x [..., m, n] with zeros above (or below) a diagonal: only what is kept is read, in place only zeros written."""
    x = op.inputs[0]
    rows, columns = x.shape[-2:]
    diagonal = integer(op, "diagonal", 0)
    if op.name.startswith("aten::tril"):
        kept = clamped_sum(diagonal + 1, rows, columns)
    else:
        kept = rows * columns - clamped_sum(diagonal, rows, columns)
    matrices = x.numel // max(1, rows * columns)
    if in_place(op):
        return OpCost(bytes_written=picked_bytes(x, matrices * (rows * columns - kept)))
    return OpCost(bytes_read=picked_bytes(x, matrices * kept), bytes_written=op.output_bytes)


@joined("aten::repeat_interleave")
def repeat_interleave(op: OpSignature) -> OpCost:
    """x and repeats to each slice as often as given; of repeats alone, to the indices that would pick them."""
    return moves(op)


@joined("fsdp::all_gather_copy_in")
def all_gather_copy_in(op: OpSignature) -> OpCost:
    """Shards of one rank into its place in the buffer that the all-gather fills."""
    read = read_bytes(op, "all_gather_output")
    return OpCost(bytes_read=read, bytes_written=read)


register(
    formula,
    {
        copies: "_reorder_linear_weight _reorder_convolution_weight _reorder_convolution_transpose_weight "
        "_reorder_mkldnn_rnn_layer_weight"
    },
    "mkldnn",
)
formula("mkl::_mkl_reorder_linear_weight")(copies)
divided("fsdp::split_with_sizes_copy")(copies)
joined("fsdp::chunk_cat")(copies)
formula("fsdp::copy_")(overwrites)
