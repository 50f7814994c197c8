"""Jagged and nested tensors.

Convention: repacking between padded and jagged layouts is bytes only: of the padded side no more than the jagged one
holds. Nested tensors of the older layout have no shape to tell, so ops on them are Uncosted.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import copies, further_bytes, picked_bytes, register, uncosted
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="nested")

register(
    formula,
    {
        copies: "_jagged_to_padded_dense_forward _nested_get_values_copy _nested_view_from_buffer_copy "
        "_nested_view_from_jagged_copy",
        uncosted("nested layout: the sizes are data"): "_nested_from_padded _nested_from_padded_tensor "
        "_nested_from_padded_and_nested_example _nested_tensor_from_mask _nested_tensor_from_tensor_list "
        "_nested_tensor_from_mask_left_aligned _nested_tensor_softmax_with_shape _nested_select_backward "
        "_nested_sum_backward nested_to_padded_tensor to_padded_tensor",
    },
)


@formula("aten::_padded_dense_to_jagged_forward")
def padded_to_jagged(op: OpSignature) -> OpCost:
    """dense [B, N, ...] and offsets to values [total, ...]: padding is not read."""
    dense, out = op.inputs[0], op.outputs[0]
    return OpCost(bytes_read=further_bytes(op) + picked_bytes(dense, out.numel), bytes_written=op.output_bytes)
