"""Blocks: kernels that give each row to one block of threads, which is slow where rows are few and long.

A fact of kernels as they are written (torch's LayerNorm, GroupNorm and BatchNorm on CUDA): the mean and variance of a
row, a group or a channel are computed by one block, whose loads wait for each other. A block reads about as fast on
all devices: 2.6 GB/s on an A100, 4.3 on an H100 and 3.3 on a B200 in group norms (8 groups of 16 images of 64 x 256 x
256), 4 to 10 in batch norms of the same (64 channels), as KernelBench measured them. Where there are enough rows, the
device's bandwidth is the limit instead, and this adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import FACTS, Floats, WorkKind

_BYTES_PER_S: Final[Mapping[str, float]] = {
    "aten::native_layer_norm": 4e9,
    "aten::native_group_norm": 4e9,
    "aten::native_batch_norm": 7e9,
}
"""What one block reads, by kind of work."""


def least_by_blocks_s(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Seconds that blocks of threads need for rows of facts [works, facts]; 0 for other kinds of work, and on CPUs.

    Half of the bytes are read to normalize, by one block a row; the other half is written at the bandwidth of all.
    """
    rate = _BYTES_PER_S.get(key)
    if rate is None or device.kind == "cpu":
        return np.zeros(len(facts))
    fact = dict(zip(FACTS[WorkKind.ROWS], facts.T, strict=True))
    return np.asarray(fact["bytes"] / 2 / np.maximum(1.0, fact["rows"]) / rate)
