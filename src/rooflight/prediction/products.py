"""Facts of many products of matrices at once, for questions by the hundred thousand."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import FACTS, PRODUCT_KEY, Floats, kind_of
from rooflight.records.dtypes import dtype_name, item_bytes

_LARGEST: Final = 2.0**53  # from here on a float no longer tells integers apart


def product_facts(
    m: Floats, n: Floats, k: Floats, dtype: str, device: DeviceSpec, *, batch: Floats | float = 1.0
) -> Floats:
    """Facts [products, facts] of [batch, m, k] @ [batch, k, n], as ``facts_of`` has them of contiguous operands.

    Raises ValueError for an unknown dtype, one without a peak on the device, and sizes that are not positive integers.
    """
    sizes = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (batch, m, n, k)))
    if not all(((each >= 1) & (each < _LARGEST) & (each == np.floor(each))).all() for each in sizes):
        raise ValueError("sizes of products must be positive integers")
    b, rows, columns, depth = sizes
    name = dtype_name(dtype)
    peak = device.matrix_peak(name)
    if peak is None or device.dram_bytes_per_s is None:
        raise ValueError(f"{device.name} has no known {name} matrix peak or memory bandwidth")
    item = float(item_bytes(name))
    # a multiply-add of complex numbers is four real ones
    flops = (8.0 if name.startswith("complex") else 2.0) * b * rows * columns * depth
    read, written = item * b * depth * (rows + columns), item * b * rows * columns
    compute_s, memory_s = flops / peak, _memory_s(read, written, device)
    one, zero = np.ones(len(b)), np.zeros(len(b))
    fact = {
        "bound_s": np.maximum(compute_s, memory_s),
        "compute_s": compute_s,
        "memory_s": memory_s,
        "bytes": read + written,
        "matrix": flops,
        "vector": zero,
        "ops": one,
        "products": one,
        "item": item * one,
        "b": b,
        "m": rows,
        "n": columns,
        "k": depth,
        "other b": b,
        "other m": rows,
        "other n": columns,
        "left": zero,
        "right": zero,
    }
    return np.stack([fact[name] for name in FACTS[kind_of(PRODUCT_KEY)]], axis=1)


def _memory_s(read: Floats, written: Floats, device: DeviceSpec) -> Floats:
    """``roofline.bound.memory_time`` of arrays."""
    slowest, held = np.zeros(len(read)), 0
    for level in device.memory:
        if level.bytes_per_s is None:
            continue
        crossing = np.maximum(0.0, read - held) + np.maximum(0.0, written - held)
        slowest = np.maximum(slowest, crossing / level.bytes_per_s)
        held = max(held, level.capacity_bytes or 0)
    return slowest
