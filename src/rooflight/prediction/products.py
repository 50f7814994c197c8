"""Facts of many products of matrices at once, for questions by the hundred thousand."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.devices.spec import DeviceSpec
from rooflight.operators import registry
from rooflight.prediction.facts import FACTS, Floats, WorkKind, facts_of_shapes
from rooflight.records.dtypes import tensor_dtype

_LARGEST: Final = 2.0**53  # from here on a float no longer distinguishes integers


def product_facts(
    m: Floats, n: Floats, k: Floats, dtype: str, device: DeviceSpec, *, batch: Floats | float = 1.0
) -> Floats:
    """Facts [products, facts] of [batch, m, k] @ [batch, k, n], as ``facts_of`` has them of contiguous operands.

    Raises ValueError for an unknown dtype, one without a peak on the device, and sizes that are not positive integers.
    """
    sizes = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (batch, m, n, k)))
    if not all(((each >= 1) & (each < _LARGEST) & (each == np.floor(each))).all() for each in sizes):
        raise ValueError("sizes of products must be positive integers")
    name = tensor_dtype(dtype)
    if device.matrix_peak(name) is None or device.dram_bytes_per_s is None:
        raise ValueError(f"{device.name} has no known {name} matrix peak or memory bandwidth")
    columns = {size: each.astype(np.int64) for size, each in zip("bmnk", sizes, strict=True)}
    operator = registry.find("batched_mm")
    facts = np.zeros((len(sizes[0]), len(FACTS[WorkKind.PRODUCT])))
    for found in facts_of_shapes(operator, columns, name, operator.directions[0], device):
        facts[found.rows] = found.values
    return facts
