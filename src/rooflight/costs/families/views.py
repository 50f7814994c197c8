"""Views and questions about tensors: metadata only, no element is touched."""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.families.rules import nothing, register

formula = partial(registry.formula, error_group="views", view=True)

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

register(formula, {nothing: f"{VIEWS} {QUESTIONS}"})
register(formula, {nothing: "_record_function_enter _record_function_enter_new _record_function_exit"}, "profiler")
register(formula, {nothing: "_reinterpret_tensor _alloc_from_pool resize_storage_bytes_"}, "inductor")
