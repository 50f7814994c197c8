"""Reductions and scans.

Conventions, FLOPs per input element: sum, product, extremum, mean and scans 1 (dividing a mean is lost in
it); norms 2 (raise, add); variance and standard deviation 4 (mean 1, subtract, square, add); log-sum-exp 4 (maximum,
subtract, exponential, add). Of complex numbers a product is 6 per element, any other reduction twice that of real ones.
What may stop at the first element (``equal``, ``any``, ``all``) is counted as if it did.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import moves, names, picked_bytes
from rooflight.costs.registry import Formula
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED

formula = partial(registry.formula, error_group="reduction", fusable=True)

STOPS_NOTE = "counted as if the first elements differ"
EARLY_NOTE = "counted as if the first elements decide"


def reducing(flops: int, complex_factor: int = 2) -> Formula:
    """A formula: so many FLOPs for each element of the first input, ``complex_factor`` times as many if complex."""

    def cost(op: OpSignature) -> OpCost:
        factor = complex_factor if op.inputs[0].dtype.startswith("complex") else 1
        return moves(op, vector_flops=flops * factor * op.inputs[0].numel)

    return cost


REDUCTIONS: dict[int, str] = {
    1: "sum nansum mean nanmean amax amin aminmax _aminmax max min argmax argmin count_nonzero hash_tensor",
    2: "norm linalg_vector_norm native_norm frobenius_norm norm_except_dim dist linalg__powsum linalg_vecdot",
    4: "var std var_mean std_mean logsumexp special_logsumexp",
}

SCANS: dict[int, str] = {
    1: "cumsum cummax cummin _cummax_helper _cummin_helper",
    4: "logcumsumexp _logcumsumexp",
}

for _flops, _ops in REDUCTIONS.items():
    formula(*names(_ops), needs=Needs.REDUCED)(reducing(_flops))
for _flops, _ops in SCANS.items():
    formula(*names(_ops), needs=Needs.SCAN)(reducing(_flops))
formula("aten::prod", needs=Needs.REDUCED)(reducing(1, complex_factor=6))
formula("aten::cumprod", needs=Needs.SCAN)(reducing(1, complex_factor=6))


@formula("aten::trace")
def trace(op: OpSignature) -> OpCost:
    """x [m, n] to the sum of its diagonal; nothing else is read."""
    x = op.inputs[0]
    factor = 2 if x.dtype.startswith("complex") else 1
    diagonal = min(x.shape)
    read = picked_bytes(x, diagonal)
    return OpCost(vector_flops=factor * diagonal, bytes_read=read, bytes_written=op.output_bytes)


@formula(*names("any all _is_all_true _is_any_true"))
def decided_early(op: OpSignature) -> OpCost:
    """x to whether any or all of it is true, at the latest known after all elements, perhaps after the first."""
    x, answers = op.inputs[0], sum(tensor.numel for tensor in op.outputs)
    looks = min(x.numel, answers)
    return OpCost(vector_flops=looks, bytes_read=picked_bytes(x, looks), bytes_written=op.output_bytes, note=EARLY_NOTE)


@formula("aten::equal", fusable=False)
def equal(op: OpSignature) -> OpCost:
    """Two tensors to one answer: no for other sizes, and else at the latest where two elements differ, perhaps the
    first two; two names of the same elements need no look. CPUs stop there, GPUs compare all (``eq``, then ``all``).
    """
    a, b = op.inputs[:2]
    same = a == b and a.storage != UNSHARED
    if same or a.shape != b.shape or not a.numel:
        return OpCost()
    return OpCost(vector_flops=1, bytes_read=a.item_bytes + b.item_bytes, note=STOPS_NOTE)


@formula("aten::value_selecting_reduction_backward", "aten::cummaxmin_backward")
def selecting_backward(op: OpSignature) -> OpCost:
    """Puts each gradient where its value was picked, zeros elsewhere."""
    return moves(op)
