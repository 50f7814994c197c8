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
from rooflight.prediction.facts import FACTS, OTHER_REDUCTIONS_KEY, Floats, WorkKind, key_of_others, kind_of
from rooflight.prediction.floors import with_launch

_BYTES_PER_S: Final[Mapping[str, float]] = {
    "aten::native_layer_norm": 4e9,
    "aten::native_group_norm": 4e9,
    "aten::native_batch_norm": 7e9,
}
"""What one block reads, by kind of work."""
_SMALL_S: Final[tuple[Mapping[str, float], Mapping[str, float]]] = (
    {"rows": 2.0e-6, "reduction": 4.0e-6, "product": 6.5e-6, "attention": 9e-6, "convolution": 8e-6},
    {"rows": 4.0e-6, "reduction": 9.0e-6, "product": 7.0e-6, "attention": 27e-6, "convolution": 20e-6},
)
"""Of a small op on NVIDIA's GPUs and on AMD's."""
_REACHED: Final = 0.85
_READS: Final = frozenset({"aten::_local_scalar_dense", "aten::item"})
_READ_S: Final = 2.2e-6
"""A copy of one number to the host: 1 to 3 µs, 24 of them in a profile of an A100, 2.2 and 2.4 on an H100, 0.8 and 2.4
on an MI300X.
"""


def least_by_blocks_s(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Seconds that blocks of threads need for rows of facts [works, facts]; 0 for other kinds of work, and on CPUs.

    Half of the bytes are read to normalize, by one block a row; the other half is written at the bandwidth of all.
    """
    rate = _BYTES_PER_S.get(key)
    if rate is None or device.kind == "cpu":
        return np.zeros(len(facts))
    fact = dict(zip(FACTS[WorkKind.ROWS], facts.T, strict=True))
    return np.asarray(fact["bytes"] / 2 / np.maximum(1.0, fact["rows"]) / rate)


def small_kernel_s(key: str, device: DeviceSpec) -> float:
    """Seconds that the kernels of a small op usually take on a GPU, however small it is; 0 on others.

    A reduction waits for its blocks one after the other, and a product fills the pipelines of its unit first. Medians
    of the ops with a bound below 1 µs in profiles of an A100, an H100 and a B200, and of an MI300X.
    """
    if device.kind != "cuda":
        return 0.0
    if key in _READS:
        return max(device.least_kernel_s or 0.0, _READ_S)
    kind = kind_of(key)
    name = "reduction" if kind is WorkKind.ROWS and key_of_others(key) == OTHER_REDUCTIONS_KEY else kind.value
    return max(device.least_kernel_s or 0.0, _SMALL_S[device.vendor == "AMD"].get(name, 0.0))


def usual_slowdown(key: str, facts: Floats, device: DeviceSpec, launch_s: float = 0.0) -> Floats:
    """log(time / bound) of works of a kind without products, of facts [works, facts], if they are as others are: a
    small one's time, and the bound at the share of the bandwidth that kernels reach. ``launch_s``: as a source measures
    them whose times include a launch.
    """
    bound_s = facts[:, 0]
    time_s = bound_s / _REACHED + small_kernel_s(key, device)
    return np.asarray(np.log(np.maximum(1.0, with_launch(time_s, launch_s) / bound_s)))


def beyond_read(key: str, facts: Floats, device: DeviceSpec, slowdown: Floats) -> Floats:
    """By how much, as a logarithm, answers log(time / bound) [works] from ops of other names are too slow for reading
    one number from a GPU, of facts [works, facts]: that is a copy and no kernel. 0 for other kinds of work.
    """
    if key not in _READS or device.kind != "cuda":
        return np.zeros(len(facts))
    copy_s = np.maximum(facts[:, 0], small_kernel_s(key, device))
    return np.asarray(np.maximum(0.0, slowdown - np.log(copy_s / facts[:, 0])))
