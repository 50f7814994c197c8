"""Reductions and scans.

Conventions, FLOPs per input element: sum, product, extremum, any, all, mean and scans 1 (dividing a mean is lost in
it); norms 2 (raise, add); variance and standard deviation 4 (mean 1, subtract, square, add); log-sum-exp 4 (maximum,
subtract, exponential, add). An additive reduction of complex numbers is twice that.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import moves, names
from rooflight.costs.registry import Formula
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="reduction", fusable=True)


def reducing(flops: int) -> Formula:
    """A formula: so many FLOPs for each element of the first input."""

    def cost(op: OpSignature) -> OpCost:
        factor = 2 if op.inputs[0].dtype.startswith("complex") else 1
        return moves(op, vector_flops=flops * factor * op.inputs[0].numel)

    return cost


REDUCTIONS: dict[int, str] = {
    1: "sum nansum mean nanmean prod amax amin aminmax _aminmax max min argmax argmin any all count_nonzero trace "
    "_is_all_true _is_any_true hash_tensor equal "
    "cumsum cumprod cummax cummin _cummax_helper _cummin_helper",
    2: "norm linalg_vector_norm native_norm frobenius_norm norm_except_dim dist linalg__powsum linalg_vecdot",
    4: "var std var_mean std_mean logsumexp special_logsumexp logcumsumexp _logcumsumexp",
}

for _flops, _ops in REDUCTIONS.items():
    formula(*names(_ops))(reducing(_flops))


@formula("aten::value_selecting_reduction_backward", "aten::cummaxmin_backward")
def selecting_backward(op: OpSignature) -> OpCost:
    """Puts each gradient where its value was picked, zeros elsewhere."""
    return moves(op)
