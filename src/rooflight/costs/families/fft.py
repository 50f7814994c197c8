"""Fourier transforms.

Conventions: 5 N log2 N vector FLOPs for a complex transform of N points (radix 2, as FFT benchmarks count), half for
one that is real on either side; N is the product of the sizes transformed, each batch entry one transform. Split-radix
algorithms do fewer, so counts are ``upper``. torch.stft and istft reach these ops.
"""

from __future__ import annotations

from functools import partial
from math import log2, prod

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import dims, moves
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

formula = partial(registry.formula, error_group="fft")


def _transform(op: OpSignature, points: TensorSpec, flops_per_level: float) -> OpCost:
    size = prod(points.shape[dim] for dim in dims(op, len(points.shape)))
    levels = log2(size) if size > 1 else 0.0
    return moves(op, vector_flops=round(flops_per_level * points.numel * levels), upper=True)


@formula("aten::_fft_c2c", "prims::fft_c2c")
def complex_to_complex(op: OpSignature) -> OpCost:
    """Complex [..., n] to complex [..., n]."""
    return _transform(op, op.inputs[0], 5.0)


@formula("aten::_fft_r2c", "prims::fft_r2c")
def real_to_complex(op: OpSignature) -> OpCost:
    """Real [..., n] to complex [..., n] or its half [..., n // 2 + 1]."""
    return _transform(op, op.inputs[0], 2.5)


@formula("aten::_fft_c2r", "prims::fft_c2r")
def complex_to_real(op: OpSignature) -> OpCost:
    """Complex half [..., n // 2 + 1] to real [..., n]."""
    return _transform(op, op.outputs[0], 2.5)
