"""Jagged and nested tensors, and fused transformer blocks.

Repacking between padded, jagged and nested layouts is bytes only: of the padded side no more than the other one holds.
Products of nested tensors are those of their parts, whose shapes are recorded; so is attention. What works element by
element costs what it does on strided tensors.

Fused transformer blocks are torch's inference fast path and the fused linear cross-entropy: T tokens of width E in
sequences of N, H heads, feed-forward width F. Matrix FLOPs: 2 T E per output feature of every projection, 4 N^2 E for
scores and weighted values of each sequence. A batch is dense [B, N, E] or nested, each sequence of a length of its
own, as torch makes it of a padding mask. Vector FLOPs: biases and residuals 1, layer norm 8, softmax 5 per score, gelu
8 or relu 1. Inputs and weights are read once, only the block's result is written: what passes between its kernels is
theirs to keep on chip.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from rooflight.costs import registry
from rooflight.costs.cost import Float32Kind, OpCost
from rooflight.costs.families.attention import FORWARD_VECTOR_FLOPS, MASK_NOTE, mask_note, torch_mask
from rooflight.costs.families.matmul import product
from rooflight.costs.families.normalization import LAYER_NORM_FLOPS
from rooflight.costs.rules import (
    Family,
    copies,
    first_input,
    flags,
    integer,
    moving,
    picks,
    picks_alone,
    uncosted,
)
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

nested_ops = Family("nested")
nested = Family("nested", layout=registry.NESTED)

COPIES = (
    "_jagged_to_padded_dense_forward _nested_get_values_copy _nested_view_from_buffer_copy "
    "_nested_view_from_jagged_copy"
)

nested_ops.rows(
    {
        copies: COPIES,
        uncosted("the sizes of a nested tensor are not recorded"): "_nested_from_padded _nested_from_padded_tensor "
        "_nested_from_padded_and_nested_example _nested_tensor_from_mask _nested_tensor_from_tensor_list "
        "_nested_tensor_softmax_with_shape _nested_select_backward _nested_sum_backward nested_to_padded_tensor "
        "to_padded_tensor",
    }
)
nested.rows(
    {copies: f"{COPIES} _nested_tensor_from_tensor_list nested_to_padded_tensor to_padded_tensor _nested_sum_backward"}
)


# of the padded side no more is read than the other one holds
nested_ops.rows({picks: "_padded_dense_to_jagged_forward"})
nested.rows(
    {
        picks: "_nested_from_padded _nested_from_padded_tensor _nested_tensor_from_mask",
        picks_alone: "_nested_from_padded_and_nested_example",  # elements of the other nested tensor are not read
        lambda op: OpCost(bytes_read=op.inputs[0].nbytes, bytes_written=op.output_bytes): "_nested_select_backward",
        first_input(FORWARD_VECTOR_FLOPS, "query"): "_nested_tensor_softmax_with_shape",  # the query lends its sizes
    }
)
# whether a mask [B, N] hides only ends of sequences; of the tensor that it is for, the sizes alone matter
nested_ops.rows({moving(lambda op: op.inputs[-1].numel, "t"): "_nested_tensor_from_mask_left_aligned"})


def _multiply_adds(a: TensorSpec, b: TensorSpec) -> int:
    """Of [..., m, k] @ [..., k, n], part by part; either side may be one dense matrix for all parts."""
    if a.packing and b.packing:
        return sum(prod(x) * y[-1] for x, y in zip(a.packing.parts, b.packing.parts, strict=True))
    if a.packing:
        return a.numel * b.shape[-1]
    parts = b.packing.parts if b.packing else ()
    rows = a.shape[-2]
    return sum(rows * prod(part) for part in parts)


@nested("matmul bmm mm")
def matmul(op: OpSignature) -> OpCost:
    """a @ b, part by part."""
    a, b = op.inputs[:2]
    return product(op, _multiply_adds(a, b), a)


@nested("matmul_backward")
def matmul_backward(op: OpSignature) -> OpCost:
    """The result's gradient times either operand: one forward's worth for each gradient asked for."""
    a, b = op.inputs[1:3]
    return product(op, sum(flags(op, "mask", (True, True))) * _multiply_adds(a, b), a)


@nested(
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    float32=Float32Kind.ATTENTION,
)
def attention(op: OpSignature) -> OpCost:
    """query, key, value of parts [H, Nq, Dqk], [H, Nk, Dqk], [H, Nk, Dv]: each sequence as in a dense batch."""
    query, key, value = op.inputs[:3]
    mask = torch_mask(op)
    products = pairs = 0
    for q, k, v in zip(*(each.packing.parts if each.packing else () for each in (query, key, value)), strict=True):
        seen = prod(q[:-2]) * mask.pairs(q[-2], k[-2])
        products += seen * (q[-1] + v[-1])
        pairs += seen
    flops, written, note = FORWARD_VECTOR_FLOPS * pairs, op.outputs[0].nbytes, mask_note(op)
    return product(op, products, query, vector_flops=flops, bytes_written=written, upper=bool(note), note=note)


transformer_ops = Family("transformer")


def _tokens(batch: TensorSpec) -> int:
    """T: of a dense batch [B, N, E] or of nested sequences [N, E]."""
    return sum(prod(part[:-1]) for part in batch.packing.parts) if batch.packing else prod(batch.shape[:-1])


def _pairs(query: TensorSpec, key: TensorSpec) -> int:
    """Nq Nk, added up over the sequences of a dense batch [B, N, E] or of nested ones [N, E]."""
    if query.packing and key.packing:
        return sum(q[0] * k[0] for q, k in zip(query.packing.parts, key.packing.parts, strict=True))
    return query.shape[0] * query.shape[1] * key.shape[1]


def _block(op: OpSignature, x: TensorSpec, count: int, vector_flops: int) -> OpCost:
    masked = op.input("mask") is not None
    cost = product(op, count, x, vector_flops=vector_flops)
    return replace(cost, upper=masked, note=MASK_NOTE if masked else "")


@transformer_ops("_transformer_encoder_layer_fwd", float32=Float32Kind.ATTENTION)
@transformer_ops("_transformer_encoder_layer_fwd", layout=registry.NESTED, float32=Float32Kind.ATTENTION)
def encoder_layer(op: OpSignature) -> OpCost:
    """src [B, N, E]: self-attention, feed-forward [F, E] and [E, F], two norms, two residuals."""
    src = op.inputs[0]
    hidden, width = (op.input("ffn_weight_1") or op.inputs[9]).shape
    tokens, pairs = _tokens(src), _pairs(src, src)
    activation = 8 if op.attribute("use_gelu") else 1
    features = 3 * width + width + hidden + width  # of the four projections, each with a bias
    per_token = features + activation * hidden + (2 * LAYER_NORM_FLOPS + 2) * width
    scores = FORWARD_VECTOR_FLOPS * pairs * integer(op, "num_heads", 1)
    products = tokens * (4 * width * width + 2 * width * hidden) + 2 * pairs * width
    return _block(op, src, products, scores + tokens * per_token)


@transformer_ops("_native_multi_head_attention _triton_multi_head_attention", float32=Float32Kind.ATTENTION)
@transformer_ops("_native_multi_head_attention", layout=registry.NESTED, float32=Float32Kind.ATTENTION)
def multi_head_attention(op: OpSignature) -> OpCost:
    """query [B, Nq, E], key and value [B, Nk, E]; projections to q, k, v and out are E x E each."""
    query, key = op.inputs[:2]
    width = (op.input("proj_weight") or op.inputs[5]).shape[0]
    pairs, projected = _pairs(query, key), 2 * _tokens(query) + 2 * _tokens(key)
    scores = FORWARD_VECTOR_FLOPS * pairs * integer(op, "num_head", 1)
    return _block(op, query, projected * width * width + 2 * pairs * width, scores + projected * width)


for _family in (transformer_ops, transformer_ops.having(layout=registry.NESTED)):
    # qkv [B, N, 3 E] plus bias, scaled, to q, k and v [B, H, N, D]
    _family.rows({first_input(2): "_transform_bias_rescale_qkv"})


@transformer_ops(
    "torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction"
)
def linear_cross_entropy(op: OpSignature) -> OpCost:
    """x [T, E], weight [V, E], target [T]: logits made, used and dropped in chunks, gradients made on the way."""
    x, weight = op.inputs[:2]
    logits = x.numel // max(1, x.shape[-1]) * weight.shape[0]
    gradients = sum(op.attribute(f"compute_{name}_grad") is True for name in ("input", "linear_weight"))
    return product(op, (1 + gradients) * logits * x.shape[-1], x, vector_flops=5 * logits)
