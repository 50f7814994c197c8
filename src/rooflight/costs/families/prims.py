"""torch's primitive ops, which decompositions trace to.

Conventions as for the aten op of the same name: 1 FLOP per element for pointwise ops and reductions, bytes only for
copies, nothing for views.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.families.pointwise import elementwise
from rooflight.costs.families.reduction import reducing
from rooflight.costs.families.rules import copies, nothing, overwrites, register, writes

formula = partial(registry.formula, error_group="prims", fusable=True)

register(
    formula,
    {
        elementwise(1): "abs acos acosh add asin asinh atan atan2 atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e "
        "bessel_j0 bessel_j1 bitwise_and bitwise_not bitwise_or bitwise_xor cbrt ceil cos cosh digamma eq erf erf_inv "
        "erfc erfcx exp exp2 expm1 floor fmax fmin fmod frexp gcd ge gt hypot igamma igammac isfinite le lgamma log "
        "log10 log1p log2 lt maximum minimum ndtri ne neg nextafter pow remainder round rsqrt shift_left "
        "shift_right_arithmetic sign signbit sin sinh spherical_bessel_j0 sqrt sub tan tanh trunc where zeta",
        elementwise(1, complex_factor=6): "div mul reciprocal",
        reducing(1): "amax amin prod sum xor_sum",
        reducing(4): "var",
        copies: "as_strided_scatter cat clone conj_physical convert_element_type copy_strided device_put rev reshape "
        "collapse",
        overwrites: "copy_to",
        writes: "fill full full_like iota normal uniform scalar_tensor maximum_value minimum_value",
        nothing: "as_strided broadcast_in_dim collapse_view conj empty empty_permuted empty_strided imag real resize "
        "split_dim squeeze transpose view_of view_of_dtype _make_token _sink_tokens",
    },
    "prims",
)
