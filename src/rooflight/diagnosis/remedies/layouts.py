"""Layouts: memory that is read across its order, so that each line of the cache brings few of the numbers wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.costs.registry import traits_of
from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.remedies.precision import COPYING
from rooflight.records.account import Regime
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec, contiguous_strides

ACROSS: Final = Remedy(
    id="across-memory",
    title="memory is read across its order",
    short=".contiguous() once, dimensions in one order",
    rest="operands whose dimensions lie alike in memory; sums, scans and softmax along the last dimension; no steps "
    "over elements (x[:, ::2])",
    verify="the op takes a few times its bound",
)
_FAR: Final = 5.0  # times its bound: a CPU's kernels take 1.5 to 3 times it in order, 10 across
_LARGE_BYTES: Final = 1 << 18
_SCANS: Final = ("aten::cum", "aten::logcumsumexp", "aten::sort", "aten::topk")


def across(facts: Facts) -> Iterable[Draft]:
    """Ops of large tensors of unlike order, or along a dimension that is not the densest, far from their bound."""
    of = facts.of
    if not of.on_cpu or not of.measured:  # how far is far was measured on a CPU
        return
    took_s = of.seconds - of.fetching_s
    far = of.where_op(map(_goes_across, of.session.signatures)) & (of.bound_s > 0) & (took_s > _FAR * of.bound_s)
    calls = np.flatnonzero(far & ~of.merged)
    excess_s = float((took_s - _FAR * of.bound_s)[calls].sum())
    text = f"{count_of(len(calls), 'op')} ({of.names(calls)}) read or write tensors of another order: "
    text += f"{Quantity(float(took_s[calls].sum()), 's')}, bound {Quantity(float(of.bound_s[calls].sum()), 's')}"
    yield from facts.draft(ACROSS, calls, text, gain_s=of.gain(excess_s), regime=Regime.MEMORY, high=1.5)


def _goes_across(op: OpSignature) -> bool:
    traits = traits_of(op)
    scans = traits.softmax or op.name.startswith(_SCANS)
    copies = op.name in COPYING or op.name == "aten::_to_copy"
    if traits.product or traits.convolution or copies or not (traits.fusable or scans):
        return False
    most = max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)
    large = [t for t in (*op.inputs, *op.outputs) if t.numel == most and t.nbytes >= _LARGE_BYTES and not t.packing]
    orders = {order for order in map(_order, large) if order}
    dim = op.attribute("dim")
    if scans and isinstance(dim, int) and large and _strides(large[0])[dim] > 1 < large[0].shape[dim]:
        return True
    return len(orders) > 1 or any(min(filter(None, _strides(tensor)), default=1) > 1 for tensor in large)


def _order(tensor: TensorSpec) -> tuple[int, ...]:
    """Its dimensions from the outermost in memory to the innermost; empty of a tensor that repeats elements."""
    strides = _strides(tensor)
    return () if 0 in strides else tuple(sorted((d for d, size in enumerate(tensor.shape) if size > 1),
                                                key=lambda dim: -strides[dim]))  # fmt: skip


def _strides(tensor: TensorSpec) -> tuple[int, ...]:
    return tensor.strides if tensor.strides is not None else tuple(contiguous_strides(tensor.shape))


RULES: Final = (across,)
