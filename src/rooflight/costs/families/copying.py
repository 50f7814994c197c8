"""Memory made, copied, looked at anew: allocation, copies, views, and what was written outside of torch.

Copies, conversions, concatenation, rearrangement and padding are bytes only, 0 FLOPs: sources read once, results
written once; a tensor copied into is not read. A call that returns an alias of its input (``contiguous`` of a
contiguous tensor) moves nothing.

Making tensors: memory handed out uninitialized moves no byte; a fill writes each byte once and reads none, since the
tensor it is shaped like only lends its shape. Sequences (``arange``) and windows are fills.

Views and questions about tensors: metadata only, no element is touched.

Memory that something outside torch's dispatcher filled: its size is known, what was computed is not.
"""

from __future__ import annotations

from math import prod

from rooflight.costs.cost import Needs, OpCost, Uncosted
from rooflight.costs.rules import (
    Family,
    clamped_sum,
    copies,
    in_place,
    integer,
    integers,
    nothing,
    overwrites,
    picked_bytes,
    picks,
    picks_alone,
    read_bytes,
    uncosted,
    writes,
)
from rooflight.costs.windows import Windows
from rooflight.records.signature import FAILED_MODULE, WRITTEN_OUTSIDE, OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec

copying_ops = Family("copying", fusable=True)

elements = copying_ops.having(needs=Needs.ELEMENTS)
joined = copying_ops.having(needs=Needs.JOINED)
divided = copying_ops.having(needs=Needs.DIVIDED)

elements.rows(
    {
        copies: "clone _to_copy lift_fresh_copy _to_cpu _pin_memory pin_memory _copy_from alias_copy detach_copy "
        "_conj_copy"
    }
)
joined.rows(
    {
        copies: "cat concat concatenate stack _stack hstack vstack dstack column_stack row_stack block_diag "
        "_chunk_cat diag_embed diagflat _pad_circular pad_sequence slice_backward select_backward diagonal_backward "
        "trace_backward _pad_packed_sequence flatten_dense_tensors repeat_interleave fsdp::chunk_cat",
    }
)
divided.rows({copies: "split_with_sizes_copy split_copy unbind_copy fsdp::split_with_sizes_copy"})
copying_ops.rows(
    {
        copies: "expand_copy permute_copy squeeze_copy t_copy transpose_copy unsqueeze_copy view_copy "
        "view_as_real_copy view_as_complex_copy _reshape_alias_copy _reshape_copy _neg_view_copy _fw_primal_copy "
        "_make_dual_copy values_copy _values_copy indices_copy _indices_copy crow_indices_copy col_indices_copy "
        "ccol_indices_copy row_indices_copy _sparse_broadcast_to_copy "
        "flip fliplr flipud roll rot90 repeat tile channel_shuffle native_channel_shuffle pixel_shuffle "
        "pixel_unshuffle cartesian_prod combinations vander "
        "_pack_padded_sequence_backward unflatten_dense_tensors _copy_from_and_resize "
        "to_mkldnn to_mkldnn_backward _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo "
        "mkldnn::_reorder_linear_weight mkldnn::_reorder_convolution_weight "
        "mkldnn::_reorder_convolution_transpose_weight mkldnn::_reorder_mkldnn_rnn_layer_weight "
        "mkl::_mkl_reorder_linear_weight",
        overwrites: "fsdp::copy_",
        # a part of x; padded sequences and their lengths to the elements that are no padding
        picks_alone: "diag diagonal_copy narrow_copy select_copy slice_copy",
        picks: "_pack_padded_sequence",
    }
)


@joined("constant_pad_nd pad")
def pad(op: OpSignature) -> OpCost:
    """x with so many elements more (or less) at both ends of its last dimensions, which come last first."""
    x, ends = op.inputs[0], integers(op, "pad")
    kept = list(x.shape)
    for place, (before, after) in enumerate(zip(ends[::2], ends[1::2], strict=True)):
        kept[-1 - place] = max(0, kept[-1 - place] + min(before, 0) + min(after, 0))
    read = picked_bytes(x, min(prod(kept), op.outputs[0].numel))
    return OpCost(bytes_read=read, bytes_written=op.output_bytes)


@copying_ops("as_strided_copy")
def as_strided_copy(op: OpSignature) -> OpCost:
    """Elements of x by strides, with which some may come again."""
    x = op.inputs[0]
    view = TensorSpec(integers(op, "size"), x.dtype, integers(op, "stride"))
    return OpCost(bytes_read=picked_bytes(x, view.distinct), bytes_written=op.output_bytes)


@copying_ops("unfold_copy")
def unfold_copy(op: OpSignature) -> OpCost:
    """Windows of ``size`` elements of x along a dimension, ``step`` apart, to [..., windows, ..., size]."""
    x, dim, taps = op.inputs[0], integer(op, "dimension", 0), integer(op, "size", 1)
    if not x.shape:
        return picks_alone(op)
    size = x.shape[dim]
    touched = Windows(size, taps, (size - taps) // integer(op, "step", 1) + 1, integer(op, "step", 1)).touched
    return OpCost(bytes_read=picked_bytes(x, x.numel // max(1, size) * touched), bytes_written=op.output_bytes)


@elements("copy")
def copy(op: OpSignature) -> OpCost:
    """src over x; nothing where both are one view of the same memory, as at the end of ``x[:4] += 1``."""
    x, src = op.inputs[:2]
    return OpCost() if x == src and x.storage != UNSHARED else overwrites(op)


@elements("contiguous reshape reshape_as flatten ravel to type_as")
def perhaps_copy(op: OpSignature) -> OpCost:
    """Nothing where the result aliases the input, a copy where it could not."""
    x, out = op.inputs[0], op.outputs[0]
    return OpCost() if out.storage == x.storage != UNSHARED else OpCost(bytes_read=x.nbytes, bytes_written=out.nbytes)


@joined("tril triu")
def triangle(op: OpSignature) -> OpCost:
    """x [..., m, n] with zeros above (or below) a diagonal: only what is kept is read, in place only zeros written."""
    x = op.inputs[0]
    rows, columns = x.shape[-2:]
    diagonal = integer(op, "diagonal", 0)
    if op.name.startswith("aten::tril"):
        copied = clamped_sum(diagonal + 1, rows, columns)
    else:
        copied = rows * columns - clamped_sum(diagonal, rows, columns)
    matrices = x.numel // max(1, rows * columns)
    if in_place(op):
        return OpCost(bytes_written=picked_bytes(x, matrices * (rows * columns - copied)))
    return OpCost(bytes_read=picked_bytes(x, matrices * copied), bytes_written=op.output_bytes)


@joined("fsdp::all_gather_copy_in")
def all_gather_copy_in(op: OpSignature) -> OpCost:
    """Shards of one rank into its place in the buffer that the all-gather fills."""
    read = read_bytes(op, "all_gather_output")
    return OpCost(bytes_read=read, bytes_written=read)


allocation_ops = Family("allocation", fusable=True)

UNINITIALIZED = (
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized resize resize_as "
    "_resize_output _empty_affine_quantized _empty_per_channel_affine_quantized _efficientzerotensor "
    "_cudnn_init_dropout_state _sparse_coo_tensor_with_dims sparse_resize sparse_resize_and_clear resize_as_sparse"
)

FILLS = (
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full _new_zeros_with_same_feature_meta "
    "arange range linspace logspace eye scalar_tensor tril_indices triu_indices fft_fftfreq fft_rfftfreq _dim_arange "
    "bartlett_window blackman_window hamming_window hann_window kaiser_window"
)

allocation_ops.rows({nothing: UNINITIALIZED, writes: FILLS, overwrites: "fill zero"})


view_ops = Family("views", view=True)

VIEWS = (
    "view _unsafe_view _reshape_alias expand expand_as broadcast_to t transpose permute numpy_T mT mH adjoint "
    "matrix_H moveaxis movedim swapaxes swapdims slice select narrow split split_with_sizes chunk tensor_split hsplit "
    "vsplit dsplit unsafe_split unsafe_split_with_sizes unsafe_chunk unbind as_strided diagonal linalg_diagonal unfold "
    "unsqueeze squeeze unflatten view_as view_as_real view_as_complex real imag _conj _neg_view conj "
    "detach alias lift lift_fresh _reshape_from_tensor atleast_1d atleast_2d atleast_3d broadcast_tensors meshgrid "
    "slice_inverse _fw_primal _make_dual _unpack_dual _add_batch_dim _remove_batch_dim data "
    "_nested_view_from_buffer _nested_view_from_jagged _nested_get_values _nested_get_offsets _nested_get_lengths "
    "_nested_get_ragged_idx _nested_get_min_seqlen _nested_get_max_seqlen _nested_get_jagged_dummy "
    "values _values indices _indices crow_indices col_indices ccol_indices row_indices _sparse_broadcast_to "
    "_lazy_clone _mkldnn_transpose _mkldnn_reshape"
)

QUESTIONS = (
    "size stride storage_offset numel dim is_same_size is_contiguous is_complex is_floating_point is_signed is_leaf "
    "is_conj is_neg is_inference is_coalesced is_pinned is_set_to is_distributed is_vulkan_available "
    "sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous sym_constrain_range "
    "sym_constrain_range_for_size _functional_sym_constrain_range _functional_sym_constrain_range_for_size "
    "_assert_async _functional_assert_async _assert_scalar _functional_assert_scalar _assert_tensor_metadata "
    "_has_same_storage_numel _has_compatible_shallow_copy_type _debug_has_internal_overlap _is_zerotensor _version "
    "output_nr result_type promote_types can_cast get_device qscheme q_scale q_zero_point q_per_channel_axis "
    "q_per_channel_scales q_per_channel_zero_points dense_dim sparse_dim _nnz _dimI _dimV _coalesced "
    "cudnn_is_acceptable _nnpack_available _use_cudnn_ctc_loss _use_miopen_ctc_loss _use_cudnn_rnn_flatten_weight "
    "_fused_sdp_choice record_stream requires_grad_ retain_grad retains_grad set_ set_data _backward _print "
    "_make_dep_token _cufft_get_plan_cache_size _cufft_get_plan_cache_max_size _cufft_set_plan_cache_max_size "
    "_cufft_clear_plan_cache _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets "
    "_nested_compute_contiguous_strides_offsets _shape_as_tensor _validate_sparse_coo_tensor_args "
    "_validate_sparse_compressed_tensor_args _validate_sparse_csr_tensor_args _validate_sparse_csc_tensor_args "
    "_validate_sparse_bsr_tensor_args _validate_sparse_bsc_tensor_args _validate_compressed_sparse_indices"
)

view_ops.rows({nothing: f"{VIEWS} {QUESTIONS}"})
view_ops.rows({nothing: "_record_function_enter _record_function_enter_new _record_function_exit"}, "profiler")
view_ops.rows({nothing: "_reinterpret_tensor _alloc_from_pool resize_storage_bytes_"}, "inductor")


outside_ops = Family("outside")
# a tensor that no recorded op wrote; a module whose kernels nobody saw
outside_ops.rows(
    {
        uncosted("written outside the dispatcher"): WRITTEN_OUTSIDE,
        lambda op: Uncosted(f"module formula failed: {op.attribute('reason')}"): FAILED_MODULE,
    }
)
