"""Attention, forward and backward: over sequences of known length, and over packed ones.

Conventions: B batch, Hq query heads, Hkv key and value heads, Nq queries, Nk keys, Dqk and Dv head sizes, P visible
(query, key) pairs of one head. Forward 2 B Hq P (Dqk + Dv) matrix FLOPs, backward 2 B Hq P (3 Dqk + 2 Dv): the scores
are recomputed (2.5x forward when Dqk = Dv), or 2x forward with ``recompute`` false. Where they are, a forward pass in
the same program computed them, too: the bound of a program leaves them out. Vector FLOPs: 5 per pair forward
(softmax), 6 backward (4 for softmax backward, 2 to recompute the exponential). torch's ``is_causal`` aligns the mask
to the top left, flash-attn's ``causal`` to the bottom right. What a mask hides counts where the recording saw how it
was made (``HIDDEN``), a sliding window's for one; else it is data, like what a score function does: such counts are
``upper``. Scores are never stored; the log-sum-exp is, where the op returns it.

Lengths of packed sequences are data that a signature does not hold: n sequences count the least pairs that they can
have, those of n equal ones. Without cumulative lengths the batch is dense and exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from rooflight.costs.cost import Float32Kind, Needs, OpCost
from rooflight.costs.families.matmul import multiply_adds, product
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, clamped_sum, flags, integer, integers, read_bytes
from rooflight.records.signature import HIDDEN, LENGTHS, SCORED, AttributeValue, OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes

attention_ops = Family("attention", epilogue=True, float32=Float32Kind.ATTENTION)

FORWARD_VECTOR_FLOPS = 5
BACKWARD_VECTOR_FLOPS = 4
RECOMPUTE_VECTOR_FLOPS = 2

MASK_NOTE = "attention mask taken as all visible"
LENGTHS_NOTE = "sequence lengths unknown: all taken as equal, which is the least"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Which keys the queries of a head see.

    Query i stands at key i, or at key i + Nk - Nq where sequences are aligned at their ends (``bottom_right``). It
    sees ``left`` keys before its own and ``right`` after, all of them where None; none after if ``causal``.
    """

    causal: bool = False
    bottom_right: bool = False
    left: int | None = None
    right: int | None = None

    def _after(self) -> int | None:
        return 0 if self.causal else self.right

    def pairs(self, num_queries: int, num_keys: int) -> int:
        """How many keys all queries of one head see together."""
        shift, right = num_keys - num_queries if self.bottom_right else 0, self._after()
        stops = num_queries * num_keys if right is None else clamped_sum(shift + right + 1, num_queries, num_keys)
        return stops - (0 if self.left is None else clamped_sum(shift - self.left, num_queries, num_keys))

    def hidden(self, num_queries: int, num_keys: int) -> int:
        """How many keys no query of a head sees, and no kernel reads: those that slid out of a window, for one."""
        shift, right = num_keys - num_queries if self.bottom_right else 0, self._after()
        stop = num_keys if right is None else max(0, min(num_keys, shift + num_queries + right))
        return num_keys - (stop - (0 if self.left is None else max(0, min(stop, shift - self.left))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What one attention call works on; ``count`` is batch entries times query heads."""

    count: int
    num_queries: int
    num_keys: int
    query_size: int
    value_size: int

    @classmethod
    def of(cls, query: TensorSpec, key: TensorSpec, value: TensorSpec, *, sequence_first: bool) -> Heads:
        """query [..., Hq, Nq, Dqk], key [..., Hkv, Nk, Dqk], value [..., Hkv, Nk, Dv] as torch has them, or with the
        sequence first, as flash-attn does: [..., Nq, Hq, Dqk].
        """
        length = -3 if sequence_first else -2
        return cls(
            count=prod(query.shape[:length]) * (query.shape[-2] if sequence_first else 1),
            num_queries=query.shape[length],
            num_keys=key.shape[length],
            query_size=query.shape[-1],
            value_size=value.shape[-1],
        )


def _unread_bytes(op: OpSignature, key: TensorSpec, value: TensorSpec, num_keys: int, hidden: int) -> int:
    """Bytes of so many keys and their values; none where they share memory with more than each other."""
    others = [tensor for tensor in op.inputs if tensor.storage in (key.storage, value.storage)]
    apart = key.storage == value.storage == UNSHARED or len(others) == 2
    return distinct_bytes((key, value)) * hidden // max(1, num_keys) if apart else 0


def attention_forward(
    op: OpSignature, heads: Heads, pairs: int, query: TensorSpec, *, unread: int = 0, note: str = ""
) -> OpCost:
    """Scores (Dqk multiply-adds a pair), softmax, weighted values (Dv multiply-adds a pair). ``unread``: bytes of keys
    and values that no query sees.
    """
    seen = heads.count * pairs
    count, read = seen * (heads.query_size + heads.value_size), read_bytes(op, "out", "dropout_mask") - unread
    written = distinct_bytes(op.outputs[:2])  # the rest are counters and debug masks
    flops = FORWARD_VECTOR_FLOPS * seen
    return product(op, count, query, vector_flops=flops, read=read, bytes_written=written, upper=bool(note), note=note)


def attention_backward(
    op: OpSignature, heads: Heads, pairs: int, query: TensorSpec, *, unread: int = 0, note: str = ""
) -> OpCost:
    """dV = P'dO and dP = dO V' (Dv each), dQ = dS K and dK = dS'Q (Dqk each), scores recomputed (Dqk).

    A ``grad_input_mask`` (query, key, value, ...) leaves out what it does not ask for; scores are recomputed anyway.
    """
    wants_query, wants_key, wants_value = flags(op, "grad_input_mask", (True, True, True))[:3]
    recompute = op.attribute("recompute", True) is not False
    through_scores = wants_query or wants_key
    per_pair = heads.query_size * (wants_query + wants_key + recompute) + heads.value_size * (
        wants_value + through_scores
    )
    seen = heads.count * pairs
    flops = (BACKWARD_VECTOR_FLOPS + RECOMPUTE_VECTOR_FLOPS * recompute) * seen
    read = read_bytes(op, "dq", "dk", "dv") - unread
    cost = product(op, seen * per_pair, query, vector_flops=flops, read=read, upper=bool(note), note=note)
    return replace(cost, recomputed_flops=multiply_adds(seen * heads.query_size * recompute, query))


def mask_note(op: OpSignature) -> str:
    """The note on a call with a mask tensor; none for others."""
    masks = ("attn_mask", "attn_bias")
    return MASK_NOTE if any(tensor.numel for name in masks for tensor in op.named(name)) else ""


def torch_mask(op: OpSignature) -> Mask:
    """The mask of torch's ops, aligned at the starts."""
    return Mask(causal=bool(op.attribute("is_causal")))


def flash_mask(op: OpSignature) -> Mask:
    """The mask of flash-attn's ops: aligned at the ends, windows as the op's arguments give them, -1 for no limit."""
    sides = op.attribute("window_size_left"), op.attribute("window_size_right")
    both = integers(op, "window_size")
    left, right = (
        value if isinstance(value, int) and value >= 0 else None for value in (both if len(both) == 2 else sides)
    )
    causal = bool(op.attribute("causal") or op.attribute("is_causal"))
    return Mask(causal=causal, bottom_right=True, left=left, right=right)


def attention(
    mask: Callable[[OpSignature], Mask],
    *,
    sequence_first: bool = False,
    backward: bool = False,
    at: int = 0,
    note: str = "",
) -> Formula:
    """A formula: query, key and value are the inputs from ``at`` on. The backward pass takes the output's gradient, the
    output and its log-sum-exp besides, and gives dq, dk and dv.
    """

    def cost(op: OpSignature) -> OpCost:
        query, key, value = op.inputs[at : at + 3]
        heads, seen = Heads.of(query, key, value, sequence_first=sequence_first), mask(op)
        told, masked = note or mask_note(op), _known_pairs(op, heads)
        if masked is not None:
            told, pairs, heads, (unseen, keys) = note, masked[0], replace(heads, count=1), masked[1:]
        else:
            unseen, keys = seen.hidden(heads.num_queries, heads.num_keys), heads.num_keys
            pairs = seen.pairs(heads.num_queries, heads.num_keys)
        unread = _unread_bytes(op, key, value, keys, unseen)
        if backward:
            return attention_backward(op, heads, pairs, query, unread=unread, note=told)
        found = attention_forward(op, heads, pairs, query, unread=unread, note=told)
        repeats = 1 if mask_note(op) or op.attribute("dropout_p") else _repeats(query, key, value)
        spared = found.matrix_flops - found.matrix_flops // repeats
        return replace(found, avoidable_flops=spared, vector_flops=found.vector_flops // repeats)

    return cost


def _known_pairs(op: OpSignature, heads: Heads) -> tuple[int, int, int] | None:
    """Pairs of all heads that a known mask shows, keys that it hides from all queries, all keys; None of others."""
    known = op.attribute(HIDDEN)
    if not isinstance(known, tuple):
        return None
    hidden, every, unseen, keys = known[:4]
    return heads.count * heads.num_queries * heads.num_keys * (every - hidden) // max(1, every), unseen, keys


def _repeats(*operands: TensorSpec) -> int:
    """How often the same attention is asked for: entries of the batch along which all operands are expanded."""
    alike = len({len(each.shape) for each in operands}) == 1 and len(operands[0].shape) == 4  # batch, heads, ...
    return max(1, min(each.repeats(0) for each in operands)) if alike else 1


def blocks(*, backward: bool = False) -> Formula:
    """A formula of FlexAttention, q, k, v first: the pairs and keys that its block mask, if known, is known to show. Of
    an unknown one the least count: a key for each query.
    """

    def cost(op: OpSignature) -> OpCost:
        query, key, value = op.inputs[:3]
        heads = Heads.of(query, key, value, sequence_first=False)
        note, known = "score function not evaluated" if op.attribute(SCORED) else "", _known_pairs(op, heads)
        if known is None:
            note = "block mask unknown: the least"
            known = heads.count * heads.num_queries, heads.num_keys - 1, heads.num_keys
        pairs, unseen, keys = known
        unread = _unread_bytes(op, key, value, keys, unseen)
        rule = attention_backward if backward else attention_forward
        return rule(op, replace(heads, count=1), pairs, query, unread=unread, note=note)

    return cost


attention_ops.having(needs=Needs.ATTENDED).rows(
    {
        # the first is the call itself, recorded by Rooflight whatever the host made of it
        attention(torch_mask): "scaled_dot_product_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps _triton_scaled_dot_attention"
    }
)
attention_ops.rows(
    {
        attention(torch_mask, backward=True, at=1): "rooflight::scaled_dot_product_attention_backward "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward",
        attention(flash_mask, sequence_first=True): "flash_attn::_flash_attn_forward aiter::_flash_attn_forward "
        "aiter::mha_fwd aiter::fmha_v3_fwd trace::FlashAttnFunc",
        attention(flash_mask, sequence_first=True, backward=True, at=1): "flash_attn::_flash_attn_backward "
        "aiter::_flash_attn_backward aiter::mha_bwd aiter::fmha_v3_bwd",
        blocks(): "higher_order::flex_attention",
        blocks(backward=True): "higher_order::flex_attention_backward",
    }
)


@attention_ops("flash_attn_3::bwd")
def flash3_backward(op: OpSignature) -> OpCost:
    """dout, q [B, Nq, Hq, D] or packed [T, Hq, D], k, v, out, log-sum-exp, dq, dk, dv that are written, where sequences
    begin, ...; schema: flash-attention's ``hopper/flash_api.cpp``. Of packed sequences the least pairs count.
    """

    def setting(place: int, name: str) -> AttributeValue:
        return op.attribute(f"arg{place}", op.attribute(name))

    query, key, value = op.inputs[1:4]
    sides = (setting(place, f"window_size_{side}") for place, side in ((17, "left"), (18, "right")))
    left, right = (side if isinstance(side, int) and side >= 0 else None for side in sides)
    mask = Mask(causal=bool(setting(16, "is_causal")), bottom_right=True, left=left, right=right)
    starts = op.input("arg9") or op.input("cu_seqlens_q")
    heads, note, sequences = Heads.of(query, key, value, sequence_first=True), "", 1
    if starts is not None:
        sequences, note = max(starts.numel - 1, 1), LENGTHS_NOTE
        heads = replace(heads, num_queries=heads.num_queries // sequences, num_keys=heads.num_keys // sequences)
    pairs = sequences * mask.pairs(heads.num_queries, heads.num_keys)
    results = [op.input(f"arg{place}") or op.input(name) for place, name in ((6, "dq"), (7, "dk"), (8, "dv"))]
    given = sum(tensor.nbytes for tensor in results if tensor is not None)
    cost = attention_backward(op, heads, pairs, query, unread=given if op.input("arg6") else 0, note=note)
    return replace(cost, bytes_written=query.nbytes + key.nbytes + value.nbytes)


varlen_ops = Family("attention_varlen", epilogue=True)

_CUMULATIVE = ("cum_seq_q", "cu_seqlens_q", "cum_seqlens_q", "cu_seq_q")


def _is_packed(op: OpSignature) -> bool:
    """Whether the batch is one row of sequences; torch passes empty cumulative lengths for a dense batch."""
    return any(tensor.numel for name in _CUMULATIVE for tensor in op.named(name))


def _least(op: OpSignature, heads: Heads) -> tuple[int, int]:
    """The pairs that packed sequences have at least, and the keys that they read, whatever their lengths are.

    Where each has as many keys as queries, equal lengths have the fewest pairs; so it is for keys in pages, of which
    only those of the call's own tokens are certain. Otherwise a key is seen by one query, behind windows one key of a
    sequence.
    """
    starts = next(tensor for name in _CUMULATIVE for tensor in op.named(name))
    sequences = max(starts.numel - 1, 1)
    queries, keys, mask = heads.num_queries, heads.num_keys, _packed_mask(op)
    if lengths := integers(op, LENGTHS):
        return sum(map(mask.pairs, lengths[::2], lengths[1::2])), sum(lengths[1::2])
    if queries == keys or op.input("block_table") is not None:
        length, longer = divmod(queries, sequences)
        pairs = longer * mask.pairs(length + 1, length + 1) + (sequences - longer) * mask.pairs(length, length)
        return pairs, queries
    if mask == Mask(bottom_right=True):
        return max(queries, keys), keys
    return (keys, keys) if mask.bottom_right and mask.left is None else (sequences, sequences)


def _packed_mask(op: OpSignature) -> Mask:
    """The efficient kernels say causal by ``custom_mask_type``: 1 top left, 2 bottom right."""
    mask_type, window = integer(op, "custom_mask_type", 0), integer(op, "window_size", 0)
    if mask_type or window:
        left = window - 1 if window > 0 else None
        return Mask(causal=mask_type > 0, bottom_right=mask_type == 2, left=left)
    return flash_mask(op)


def varlen(*, at: int = 0, backward: bool = False) -> Formula:
    """A formula: q [B, Nq, Hq, D] or packed [T, Hq, D], k and v alike, are the inputs from ``at`` on."""

    def cost(op: OpSignature) -> OpCost:
        query, key, value = op.inputs[at : at + 3]
        if _is_packed(op):
            # a paged cache holds its keys as [blocks, block size, Hkv, D]
            heads = replace(Heads.of(query, key, value, sequence_first=True), num_keys=prod(key.shape[:-2]))
            note = "" if integers(op, LENGTHS) else LENGTHS_NOTE
            pairs, read = _least(op, heads)
            unread = _unread_bytes(op, key, value, heads.num_keys, heads.num_keys - read)
        else:
            # cuDNN's ops keep torch's layout for dense batches, the others flash-attn's
            heads = Heads.of(query, key, value, sequence_first=not op.name.startswith("aten::_cudnn"))
            names = ("bias", "attn_bias", "seqlen_k", "seqused_k", "block_table")
            unknown = ", ".join(name for name in names if op.input(name) is not None)
            note = f"{unknown} not read" if unknown else ""
            pairs, unread = _packed_mask(op).pairs(heads.num_queries, heads.num_keys), 0
        rule = attention_backward if backward else attention_forward
        return rule(op, heads, pairs, query, unread=unread, note=note)

    return cost


varlen_ops.rows(
    {
        varlen(): "_flash_attention_forward _efficient_attention_forward _cudnn_attention_forward "
        "flash_attn::_flash_attn_varlen_forward torch_attn::_varlen_attn",
        # the output first
        varlen(at=1): "_flash_attention_forward_no_dropout_inplace torch_attn::_varlen_attn_out",
        varlen(at=1, backward=True): "_flash_attention_backward _efficient_attention_backward "
        "_cudnn_attention_backward flash_attn::_flash_attn_varlen_backward torch_attn::_varlen_attn_backward",
    }
)
