"""Attention: written out op by op, or with keys and values copied to every head."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import LOW, Draft, Facts, Remedy
from rooflight.diagnosis.remedies.algebra import DROPOUT
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction
from rooflight.records.session import KEPT, Int64
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

SDPA: Final = Remedy(
    id="sdpa",
    title="attention written out (product, softmax, product)",
    short="F.scaled_dot_product_attention",
    rest="with its mask (is_causal, attn_mask), or attn_implementation='sdpa' in transformers",
    verify="no softmax over scores is left in the step",
)
REPEAT_KV: Final = Remedy(
    id="repeat-kv",
    title="keys and values are copied to every head",
    short="enable_gqa=True in the attention",
    rest="scaled_dot_product_attention(..., enable_gqa=True), or queries grouped by key head",
    verify="no copy of an expanded tensor before attention",
)
_SOFTMAX: Final = ("aten::_softmax", "aten::softmax", "aten::_softmax_backward_data")
_EFFICIENCY: Final = 0.5  # of attention's products in one kernel
_EXPONENTIALS: Final = 0.4  # of a softmax's time
_ATTENTION: Final = "scaled_dot_product"
_COPIES: Final = (
    "aten::clone", "aten::copy_", "aten::repeat", "aten::contiguous", "aten::_to_copy", "aten::index_select",
    "aten::expand_copy", "aten::repeat_interleave", "aten::reshape", "aten::index",
)  # fmt: skip


def written_out(facts: Facts) -> Iterable[Draft]:
    """Softmaxes between products, and all that works on their scores."""
    of = facts.of
    attending = np.isin(of.records, list(of.analysis.fusion.attending))
    softmaxes = of.named(*_SOFTMAX)
    if not attending.any() or not len(softmaxes) or _keeps_weights(facts, softmaxes):
        return
    dropped = len(of.named(*DROPOUT)) and of.reads.by(of.writes.of(softmaxes))[of.named(*DROPOUT)].any()
    if dropped and of.on_cpu:  # there it is written out within the op as well
        return
    scores = {op.outputs[0].numel for op in of.ops(softmaxes) if op.outputs and len(op.outputs[0].shape) > 2}
    if not scores:
        return
    on_scores = of.where_op(
        any(tensor.numel in scores for tensor in (*op.inputs, *op.outputs)) for op in of.session.signatures
    )
    between = np.flatnonzero(on_scores & of.works & ~of.products)
    multiply = np.flatnonzero(on_scores & of.products)
    calls: Int64 = np.concatenate([between, multiply])
    # the kernel multiplies and takes exponentials as they do, at a size that stays in the cache, and moves no scores
    multiplying_s, bound_s = facts.spared(multiply), float(of.bound_s[multiply].sum())
    gain_s = facts.spared(between) - facts.spared(softmaxes, _EXPONENTIALS) + 0.15 * multiplying_s
    if bound_s:
        gain_s += max(0.0, 0.85 * multiplying_s - of.gain(bound_s / _EFFICIENCY))
    text = (
        f"{count_of(len(softmaxes), 'softmax', 'softmaxes')} over scores, {count_of(len(between), 'op')} on these "
        f"beside products: {Quantity(facts.spared(between), 's')}{of.places(calls)}"
    )
    text += "; with dropout_p" if dropped else ""
    # a CPU's fused kernel has been from as slow to twice as fast
    yield from facts.draft(SDPA, calls, text, gain_s=gain_s, low=0.0 if facts.of.on_cpu else LOW)


def _keeps_weights(facts: Facts, softmaxes: Int64) -> bool:
    """Whether the step keeps the weights that the softmaxes make, which the fused op does not give."""
    lifetimes = facts.of.session.lifetimes
    if lifetimes is None or not facts.values.known:
        return False
    of = facts.of
    weights = of.writes.of(softmaxes[of.direction[softmaxes] == Direction.FORWARD])
    # what only the end of the step frees may be a variable of the function that multiplied it last
    late = [lifetimes.freed[each] >= len(of.session) and max(of.readers[each], default=0) < of.last for each in weights]
    return bool(len(weights)) and bool(((lifetimes.freed[weights] == KEPT) | late).all())


def repeated_heads(facts: Facts) -> Iterable[Draft]:
    """Copies of expanded tensors that attention reads."""
    of = facts.of
    spread = of.where_op(
        op.name in _COPIES
        and bool(op.outputs)
        and (
            any(tensor.distinct * 2 <= tensor.numel for tensor in op.inputs)
            or (len(op.inputs) > 0 and op.name != "aten::index" and op.outputs[0].numel >= 2 * op.inputs[0].numel)
        )
        for op in of.session.signatures
    )
    if not spread.any():
        return
    attends = of.where_op(_ATTENTION in op.name for op in of.session.signatures) | (
        np.isin(of.records, list(of.analysis.fusion.attending))
    )
    attend = np.flatnonzero(attends)
    keys = {tensor.numel for op in of.ops(attend) for tensor in _keys_of(op)}
    of_keys = of.where_op(bool(op.outputs) and op.outputs[0].numel in keys for op in of.session.signatures)
    calls = np.flatnonzero(spread & of_keys & of.writes.by(of.reads.of(attend)))
    if not len(calls):
        return
    reading = np.flatnonzero(attends & of.reads.by(of.writes.of(calls)))
    written, source = (of.total(attrgetter(f"{way}_bytes"), calls) for way in ("output", "input"))
    gain_s = facts.spared(calls) + 0.4 * facts.spared(reading)
    text = f"{count_of(len(calls), 'copy', 'copies')} write {Quantity(written, 'B')} from {Quantity(source, 'B')}"
    yield from facts.draft(REPEAT_KV, [*calls, *reading], text + of.places(calls), gain_s=gain_s)


def _keys_of(op: OpSignature) -> tuple[TensorSpec, ...]:
    """Keys and values of an op of attention; of a product of one that is written out, its operands."""
    return (*op.named("key"), *op.named("value")) or op.inputs


RULES: Final = (written_out, repeated_heads)
