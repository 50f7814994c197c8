"""Arithmetic element by element: pointwise ops, activations, torch's primitive ops and random numbers.

Conventions: one FLOP per element for each addition, multiplication, division, comparison, selection, logical or
bitwise operation and call of an elementary or special function, integers and booleans alike; ``addcmul``, ``addcdiv``
and ``lerp`` are 3, ``clamp`` to a range 2. Signs are free: instructions take operands negated and absolute. On complex
numbers a multiplication or division is 6 and anything else 2 for each. Broadcast operands are read once, at their own
size; where all operands repeat, one result is computed.

Activations and their gradients, FLOPs per element: relu and threshold 1, hardtanh 2, tanh 1, leaky relu 2, sigmoid 3
(exponential, add, divide; the sign is free), silu 4, hardsigmoid 4, hardswish 5, elu 3, softplus 4, mish 6, gelu 8
(either approximation). Gradients: tanh and sigmoid 3, gelu 12, silu 8.

torch's primitive ops, which decompositions trace to, are counted as the aten op of the same name: 1 FLOP per element
for pointwise ops and reductions, bytes only for copies, nothing for views.

Random numbers and dropout: drawing a number is 0 FLOPs, since the integer work of a generator is no arithmetic of the
program; results are written, and only parameters given as tensors are read. Dropout is 2 FLOPs per element (select,
scale), its mask written in training and read in backward.
"""

from __future__ import annotations

from dataclasses import replace

from rooflight.costs.cost import Needs, OpCost
from rooflight.costs.families.reduction import reducing
from rooflight.costs.registry import Formula
from rooflight.costs.rules import (
    Family,
    all_but_one,
    copies,
    first_input,
    first_output,
    in_place,
    moves,
    names,
    nothing,
    overwrites,
    per_input,
    writes,
)
from rooflight.records.signature import NUMBER, AttributeValue, OpSignature

pointwise_ops = Family("pointwise", fusable=True, needs=Needs.ELEMENTS)


def elementwise(flops: int, complex_factor: int = 2) -> Formula:
    """A formula: so many FLOPs per element of the result, ``complex_factor`` times as many on complex numbers."""

    def cost(op: OpSignature) -> OpCost:
        if op.attribute("alpha") == 0:  # x + 0 y
            return added_nothing(op)
        if (number := op.attribute(NUMBER)) is not None:
            return by_number(op, number)
        factor = complex_factor if any(tensor.dtype.startswith("complex") for tensor in op.inputs) else 1
        return moves(op, vector_flops=flops * factor * _points(op))

    return cost


def _points(op: OpSignature) -> int:
    """Elements of the largest result, those once that all operands repeat."""
    out = max(op.outputs, key=lambda each: each.numel, default=None)
    if out is None:
        return 0
    points = out.numel
    if any(tensor.strides is not None and 0 in tensor.strides for tensor in op.inputs):
        for dim in range(-len(out.shape), 0):
            known = [tensor for tensor in op.inputs if len(tensor.shape) >= -dim]
            if out.shape[dim] > 1 and all(tensor.shape[dim] in (1, tensor.repeats(dim)) for tensor in known):
                points //= out.shape[dim]
    return points


def by_number(op: OpSignature, number: AttributeValue) -> OpCost:
    """x^0 is 1 and 0 x is 0, whatever finite x is; x^1, 1 x and x / 1 are x, a copy of it or, in place, nothing."""
    if number == 0 and "div" not in op.name:
        return writes(op)
    return OpCost() if in_place(op) else moves(op)


def added_nothing(op: OpSignature) -> OpCost:
    """x + 0 y, a copy of x: y is not read, and nothing moves in place. ``rsub`` has y as the one that counts."""
    if op.name.startswith("aten::rsub"):
        return moves(op, unread=("self",))
    return OpCost() if in_place(op) else moves(op, unread=("other",))


MULTIPLICATIVE: dict[int, str] = {1: "mul multiply div divide true_divide reciprocal square", 3: "addcmul addcdiv"}
"""FLOPs per element of the ops that multiply or divide."""

ELEMENTWISE: dict[int, str] = {
    0: "positive neg negative abs absolute conj_physical _conj_physical resolve_conj resolve_neg complex",
    1: "add sub subtract rsub sign sgn signbit sqrt rsqrt "
    "exp exp2 expm1 log log2 log10 log1p "
    "sin cos tan asin acos atan arcsin arccos arctan sinh cosh asinh acosh atanh arcsinh arccosh arctanh "
    "atan2 arctan2 hypot angle deg2rad rad2deg "
    "pow float_power ceil floor round trunc fix frac fmod remainder floor_divide "
    "eq ne lt le gt ge less less_equal greater greater_equal not_equal "
    "logical_and logical_or logical_xor logical_not "
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift "
    "__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ "
    "maximum minimum fmax fmin clamp_max clamp_min isnan isinf isfinite isposinf isneginf isreal nan_to_num "
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
    pointwise_ops(_ops)(elementwise(_flops, complex_factor=6))
for _flops, _ops in ELEMENTWISE.items():
    pointwise_ops(_ops)(elementwise(_flops))
pointwise_ops(SPECIAL)(elementwise(1))


@pointwise_ops("masked_fill")
def masked_fill(op: OpSignature) -> OpCost:
    """x with ``value`` where mask: one selection per element. In place only masked elements need writing, elsewhere
    only those that are not masked need reading.
    """
    cost = moves(op, vector_flops=op.outputs[0].numel, unread=("self",) if in_place(op) else (), upper=True)
    x = op.inputs[0]
    if in_place(op):
        return replace(cost, avoidable_written=all_but_one(cost.bytes_written, x))
    return replace(cost, avoidable_read=all_but_one(x.nbytes, x))


@pointwise_ops("where")
def where(op: OpSignature) -> OpCost:
    """An element of one of two for each of a mask: all can be of the one that is less to read."""
    cost = moves(op, vector_flops=op.outputs[0].numel, upper=True)
    larger = max(op.inputs[1:], key=lambda tensor: tensor.nbytes)
    return replace(cost, avoidable_read=all_but_one(larger.nbytes, larger))


activation_ops = Family("activation", fusable=True, needs=Needs.ELEMENTS)

ACTIVATIONS: dict[int, str] = {
    1: "relu tanh threshold hardshrink softshrink threshold_backward hardtanh_backward hardshrink_backward "
    "softshrink_backward",
    2: "relu6 hardtanh leaky_relu prelu _prelu_kernel leaky_relu_backward hardsigmoid_backward rrelu_with_noise "
    "rrelu_with_noise_functional rrelu_with_noise_backward _add_relu",
    3: "sigmoid special_expit elu selu celu tanh_backward sigmoid_backward _prelu_kernel_backward",
    4: "silu hardsigmoid softplus log_sigmoid log_sigmoid_forward logit_backward elu_backward softplus_backward",
    5: "hardswish log_sigmoid_backward hardswish_backward",
    6: "mish",
    8: "gelu silu_backward",
    12: "gelu_backward infinitely_differentiable_gelu_backward mish_backward",
}

_PIECEWISE = frozenset(names("threshold_backward hardtanh_backward leaky_relu_backward"))
"""These need to know of each element only on which side of the kinks it lay."""

for _flops, _ops in ACTIVATIONS.items():
    for _name in names(_ops):
        activation_ops(_name, mask_input="self" if _name in _PIECEWISE else None)(elementwise(_flops))
activation_ops.having(needs=Needs.SHARE).rows(
    {
        first_output(4): "glu",  # x [..., 2 n] to a sigmoid(b) [..., n]: sigmoid 3, multiply 1
        first_input(8): "glu_backward",  # dy [..., n], x to dx: sigmoid 3, its gradient 3, products 2
        first_output(8): "glu_jvp glu_backward_jvp",  # the forward-mode derivative of either: about twice its work
    }
)


primitive_ops = Family("prims", fusable=True)

primitive_ops.rows(
    {
        elementwise(0): "abs neg",
        elementwise(1): "acos acosh add asin asinh atan atan2 atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e "
        "bessel_j0 bessel_j1 bitwise_and bitwise_not bitwise_or bitwise_xor cbrt ceil cos cosh digamma eq erf erf_inv "
        "erfc erfcx exp exp2 expm1 floor fmax fmin fmod frexp gcd ge gt hypot igamma igammac isfinite le lgamma log "
        "log10 log1p log2 lt maximum minimum ndtri ne nextafter pow remainder round rsqrt shift_left "
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


random_ops = Family("random", fusable=True)


def draws(op: OpSignature) -> OpCost:
    """Parameters read, numbers written; a tensor drawn into in place, or beside a probability, is not read."""
    return moves(op, unread=("self",) if in_place(op) or op.attribute("p") is True else ())


random_ops.rows(
    {
        writes: "rand randn randint randperm rand_like randn_like randint_like rngprims::philox_rand",
        overwrites: "uniform exponential cauchy geometric log_normal random normal_functional _philox_uniform "
        "_philox_normal",
        draws: "bernoulli normal multinomial poisson binomial _standard_gamma _sample_dirichlet",
        per_input(2): "_standard_gamma_grad _dirichlet_grad",
        copies: "_philox_key_split _philox_key_fold_in _sobol_engine_draw _sobol_engine_ff_ "
        "_sobol_engine_initialize_state_ _sobol_engine_scramble_",
    }
)


@random_ops("native_dropout", needs=Needs.ELEMENTS)
def native_dropout(op: OpSignature) -> OpCost:
    """Select and scale, but of all, which leaves zeros, or of none."""
    number = op.attribute(NUMBER)
    if number is not None:
        return writes(op) if number else moves(op)
    return moves(op, vector_flops=2 * op.inputs[0].numel)


random_ops.having(needs=Needs.ELEMENTS).rows(
    {
        per_input(2): "dropout alpha_dropout feature_dropout feature_alpha_dropout _fused_dropout "
        "native_dropout_backward _masked_scale"
    }
)
