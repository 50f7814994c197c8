"""Arithmetic element by element.

Conventions: one FLOP per element for each addition, multiplication, division, comparison, selection, logical or
bitwise operation and call of an elementary or special function, integers and booleans alike; ``addcmul``,
``addcdiv`` and ``lerp`` are 3, ``clamp`` to a range 2. On complex numbers a multiplication or division is 6 and
anything else 2 for each. Broadcast operands are read once, at their own size.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import in_place, largest, moves, names
from rooflight.costs.registry import Formula
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="pointwise", fusable=True, needs=Needs.ELEMENTS)


def elementwise(flops: int, complex_factor: int = 2) -> Formula:
    """A formula: so many FLOPs per element of the result, ``complex_factor`` times as many on complex numbers."""

    def cost(op: OpSignature) -> OpCost:
        if op.attribute("alpha") == 0:  # x + 0 y
            return added_nothing(op)
        factor = complex_factor if any(tensor.dtype.startswith("complex") for tensor in op.inputs) else 1
        return moves(op, vector_flops=flops * factor * largest(op.outputs))

    return cost


def added_nothing(op: OpSignature) -> OpCost:
    """x + 0 y, a copy of x: y is not read, and nothing moves in place. ``rsub`` has y as the one that counts."""
    if op.name.startswith("aten::rsub"):
        return moves(op, unread=("self",))
    return OpCost() if in_place(op) else moves(op, unread=("other",))


MULTIPLICATIVE: dict[int, str] = {
    1: "mul multiply div divide true_divide reciprocal square",
    3: "addcmul addcdiv",
}
"""FLOPs per element of the ops that multiply or divide."""

ELEMENTWISE: dict[int, str] = {
    0: "positive conj_physical _conj_physical resolve_conj resolve_neg complex",
    1: "add sub subtract rsub neg negative abs absolute sign sgn signbit sqrt rsqrt "
    "exp exp2 expm1 log log2 log10 log1p "
    "sin cos tan asin acos atan arcsin arccos arctan sinh cosh asinh acosh atanh arcsinh arccosh arctanh "
    "atan2 arctan2 hypot angle deg2rad rad2deg "
    "pow float_power ceil floor round trunc fix frac fmod remainder floor_divide "
    "eq ne lt le gt ge less less_equal greater greater_equal not_equal "
    "logical_and logical_or logical_xor logical_not "
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift "
    "__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ "
    "maximum minimum fmax fmin clamp_max clamp_min where isnan isinf isfinite isposinf isneginf isreal nan_to_num "
    "copysign nextafter heaviside gcd lcm frexp",
    2: "clamp clip xlogy special_xlogy special_xlog1py special_entr sinc special_sinc ldexp polar isclose",
    3: "lerp logit special_logit logaddexp logaddexp2",
}
"""FLOPs per element of the other ops."""

SPECIAL = (
    "erf erfc erfinv lgamma digamma polygamma i0 igamma igammac mvlgamma "
    "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx "
    "special_digamma special_erf special_erfc special_erfinv special_exp2 special_expm1 special_gammainc "
    "special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p "
    "special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri special_polygamma special_psi "
    "special_round special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 "
    "special_zeta special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
    "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
    "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w"
)
"""Special functions: one call, one FLOP, as no instruction count is agreed upon."""

for _flops, _ops in MULTIPLICATIVE.items():
    formula(*names(_ops))(elementwise(_flops, complex_factor=6))
for _flops, _ops in ELEMENTWISE.items():
    formula(*names(_ops))(elementwise(_flops))
formula(*names(SPECIAL))(elementwise(1))


@formula("aten::masked_fill")
def masked_fill(op: OpSignature) -> OpCost:
    """x with ``value`` where mask: one selection per element. In place only masked elements need writing."""
    if in_place(op):
        return moves(op, vector_flops=op.outputs[0].numel, unread=("self",), upper=True)
    return moves(op, vector_flops=op.outputs[0].numel)
