"""Random numbers and dropout.

Conventions: drawing a number is 0 FLOPs, since the integer work of a generator is no arithmetic of the program;
results are written, and only parameters given as tensors are read. Dropout is 2 FLOPs per element (select, scale),
its mask written in training and read in backward.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import (
    copies,
    in_place,
    moves,
    overwrites,
    per_input,
    register,
    writes,
)
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="random", fusable=True)


def draws(op: OpSignature) -> OpCost:
    """Parameters read, numbers written; a tensor drawn into in place, or beside a probability, is not read."""
    return moves(op, unread=("self",) if in_place(op) or op.attribute("p") is True else ())


register(
    formula,
    {
        writes: "rand randn randint randperm rand_like randn_like randint_like",
        overwrites: "uniform exponential cauchy geometric log_normal random normal_functional",
        draws: "bernoulli normal multinomial poisson binomial _standard_gamma _sample_dirichlet",
        per_input(2): "_standard_gamma_grad _dirichlet_grad",
        copies: "_philox_key_split _philox_key_fold_in _sobol_engine_draw _sobol_engine_ff_ "
        "_sobol_engine_initialize_state_ _sobol_engine_scramble_",
    },
)
register(
    partial(formula, needs=Needs.ELEMENTS),
    {
        per_input(2): "native_dropout dropout alpha_dropout feature_dropout feature_alpha_dropout _fused_dropout "
        "native_dropout_backward _masked_scale",
    },
)
register(formula, {writes: "philox_rand"}, "rngprims")
register(formula, {overwrites: "_philox_uniform _philox_normal"})
