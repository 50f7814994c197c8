"""Padding: tokens of which masks show that nobody looks at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.quantity import percent
from rooflight.records.record import Direction
from rooflight.records.signature import PADDED, OpSignature

PADDING: Final = Remedy(
    id="padding-tokens",
    title="much of the batch is padding",
    short="cut each batch at its longest row",
    rest="and batch rows of like length, or pack them (nested tensors, varlen)",
    verify="fewer tokens in the step, the same loss",
)
_LEAST: Final = 0.25  # of the tokens: batches of real text have some


def padding(facts: Facts) -> Iterable[Draft]:
    """All work on tokens of masked attention, forward and backward."""
    of = facts.of
    masked = next((op for op in of.session.signatures if op.attribute(PADDED)), None)
    seen = masked.attribute(PADDED) if masked else None
    if masked is None or not isinstance(seen, tuple):
        return
    rows, keys, longest, kept = seen
    cut = 1 - longest / keys
    share = cut if cut >= _LEAST else 1 - kept / (rows * keys)
    if share < _LEAST:
        return
    lengths = (keys, masked.inputs[0].shape[0] * keys)
    dims = np.array([_most(op, lengths) for op in of.session.signatures])[of.signature]
    calls = np.flatnonzero((dims > 0) & of.works & (of.direction != Direction.OPTIMIZER))
    spared = np.where(dims[calls] > 1, 1 - (1 - share) ** 2, share)
    gain_s = of.gain(float((np.maximum(of.seconds[calls] - of.floor_s, 0.0) * spared).sum()))
    whole = f"the longest of {rows} rows has {longest} of {keys} tokens" if cut >= _LEAST else f"rows of {keys} tokens"
    text = f"{percent(1 - kept / (rows * keys))} of the tokens are padding: {whole}{of.places(calls.tolist())}"
    yield from facts.draft(PADDING, calls, text, gain_s=gain_s)


def _most(op: OpSignature, lengths: tuple[int, ...]) -> int:
    """In how many dimensions a tensor of an op has as many tokens."""
    return max((sum(size in lengths for size in each.shape) for each in (*op.inputs, *op.outputs)), default=0)


RULES: Final = (padding,)
