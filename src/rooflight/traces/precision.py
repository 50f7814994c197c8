"""At which precision float32 products ran, by the names of their kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from rooflight.traces.ownership import Ownership
from rooflight.traces.trace import UNKNOWN, Trace

TF32: Final = "tfloat32"
FLOAT32: Final = "float32"

_ON_TENSOR_CORES: Final = re.compile(r"tf32|xf32|s1688(?!6)|nvjet|Cijk_\w+_S_MX_", re.IGNORECASE)
"""Kernels that multiply float32 numbers as TF32: "s1688" is the shape of NVIDIA's product of such. cuBLAS's "nvjet"
kernels are all of tensor cores. AMD's Tensile names its kernels Cijk_..._S_MX_... where the math is XF32."""

_ON_VECTOR_UNITS: Final = re.compile(r"sgemm|scudnn|simt|ffma|gemv|gemmk1_kernel<float|Cijk_\w+_S_B_", re.IGNORECASE)
"""Kernels that keep float32's precision. On AMD, matrix units have float32 too."""

_PRODUCTS: Final = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "addbmm")
)


def precision_of_kernel(name: str) -> str:
    """The precision at which a kernel multiplies float32 numbers, empty where its name does not tell."""
    if _ON_TENSOR_CORES.search(name):
        return TF32
    return FLOAT32 if _ON_VECTOR_UNITS.search(name) else ""


def precisions_of(trace: Trace, owned: Ownership) -> Mapping[int, str]:
    """The precision by op: TF32 if one of its kernels computed so. Attention in float32 has a rule of its own
    (``roofline.float32``), so that of it only TF32 is told.
    """
    kernels = [precision_of_kernel(name) for name in trace.names]
    ops = [2 if _multiplies(name) else int("::" in name and "attention" in name) for name in trace.names]
    found: dict[int, str] = {}
    pairs = np.unique(np.stack([owned.accounted, trace.work.name]), axis=1)
    for op, kernel in pairs.T.tolist():
        precision = kernels[kernel]
        if op != UNKNOWN and precision and ops[trace.ops.name[op]] > (precision == FLOAT32):
            found[op] = TF32 if precision == TF32 else found.get(op, FLOAT32)
    return found


def multiplies_by_tf32(trace: Trace, precisions: Mapping[int, str]) -> bool:
    """Whether a product of matrices ran in TF32, so that torch's setting allows it; convolutions may use it anyway."""
    products = {number for number, name in enumerate(trace.names) if name in _PRODUCTS}
    return any(precision == TF32 and int(trace.ops.name[op]) in products for op, precision in precisions.items())


def _multiplies(op: str) -> bool:
    return op in _PRODUCTS or ("::" in op and "conv" in op)
