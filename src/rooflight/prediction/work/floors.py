"""Floors: what bounds leave out: launches, shortest kernels, blocks of threads, and what caches and FFT save.

A fact of kernels as they are written (torch's LayerNorm, GroupNorm and BatchNorm on CUDA): the mean and variance of a
row, a group or a channel are computed by one block of threads, whose loads wait for each other. A block reads about as
fast on all devices: 2.6 GB/s on an A100, 4.3 on an H100 and 3.3 on a B200 in group norms (8 groups of 16 images of 64 x
256 x 256), 4 to 10 in batch norms of the same (64 channels), as KernelBench measured them. Where there are enough rows,
the device's bandwidth is the limit instead, and this adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.work.facts import (
    FACTS,
    OTHER_REDUCTIONS_KEY,
    PRODUCT_KEY,
    Floats,
    WorkKind,
    key_of_others,
    kind_of,
)
from rooflight.roofline.bound import UNLISTED_CACHE_BYTES

INSIDE: Final = 0.55
"""Of the least time of a source that times launches, what larger work takes beyond its own time: 0.50 to 0.63 on five
GPUs, the intercept of time over bytes of NeuSight's relu.
"""
LEAST_S: Final = 20e-6
"""Lower floors may be the device's own: NeuSight's of MI100 and MI210, 14 and 17 µs, are as long as the norms of an
MI300X in a trace, which has no launches in its times. Of the NVIDIA parts they are 25 to 58 µs.
"""
SHORTEST_KERNEL_S: Final = 0.64e-6
"""No kernel in a profile of any GPU took less (MI300X): the least time where a device's file lists none."""
_NEAR: Final = 1.1
_DECAY: Final = 2.0
_HALVINGS: Final = 50


def has_launch(launch_s: float) -> bool:
    """Whether times with ``launch_s`` in them include a host's launch, rather than what kernels take at least."""
    return launch_s >= INSIDE * LEAST_S


def least_kernel_s(device: DeviceSpec) -> float:
    """Seconds of a device's shortest kernel; 0 of what is no GPU."""
    return device.least_kernel_s or SHORTEST_KERNEL_S if device.kind == "cuda" else 0.0


def without_launch(seconds: NDArray[np.float64], launch_s: float) -> NDArray[np.float64]:
    """What the device takes of times [rows] that include a launch, 0 at least. At the floor, up to a tenth above
    ``launch_s`` / ``INSIDE``, that is nothing, since the host took all of it; far above it all but ``launch_s``.
    """
    if not has_launch(launch_s):
        return seconds
    floor = _NEAR * launch_s / INSIDE
    hidden = (floor - launch_s) * np.exp(-_DECAY * np.maximum(0.0, seconds / floor - 1))
    return np.asarray(np.maximum(0.0, seconds - launch_s - hidden))


def with_launch(seconds: NDArray[np.float64], launch_s: float) -> NDArray[np.float64]:
    """What a source whose times include a launch would measure of work that takes the device ``seconds`` [rows]: the
    inverse of ``without_launch``, the floor at least.
    """
    if not has_launch(launch_s):
        return seconds
    low = np.full(len(seconds), _NEAR * launch_s / INSIDE)
    high = low + launch_s + seconds
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = without_launch(middle, launch_s) < seconds
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high


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


_COLLECTIVE_S: Final[Mapping[str, tuple[float, float]]] = {"all-reduce": (5.9e-6, 0.7), "send": (5.1e-6, 0.0)}
_OTHER_COLLECTIVE_S: Final = (5.1e-6, 0.5)
"""Among two ranks, and the power of further ones: all-reduces 5.9, 9.3 and 15.5 µs among 2, 4 and 8 ranks, all-gathers
and reduce-scatters 5.1, 7.0 and 10.3; a send as long as the latter among two."""


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


def small_collective_s(key: str, ranks: Floats, device: DeviceSpec) -> Floats:
    """Seconds [works] that a collective of a few bytes takes at least among ranks [works] of a node: the fastest of
    NCCL's in aiconfigurator's tables of A100 to GB200, launched from graphs. On what is no GPU, 0.
    """
    least_s, power = _COLLECTIVE_S.get(key, _OTHER_COLLECTIVE_S)
    found = least_s * (np.clip(ranks, 2, 8) / 2) ** power
    return np.asarray(found if device.kind == "cuda" else np.zeros(len(ranks)))


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


FEWEST_PRODUCTS: Final = 1.5
"""Multiplications for each number of a convolution's result and each of its input channels where FFT does it over a
large image: half a spectrum of complex numbers, three real ones each. Winograd's tiles need more (2.25 of 3x3's 9)."""
FASTEST: Final = -1.0
"""The least log(time / bound) that a row teaches, and that is ever expected: a cache makes work faster than its bound,
but not e times."""


def least_slowdown(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """The least log(time / bound) of rows of facts [rows, facts], 0 of most.

    Below 0 where the last cache can have held what an op reads, and can keep what it writes, as far as both fit; and of
    convolutions, which need fewer products than they have FLOPs. A bound assumes neither.
    """
    kind = kind_of(key)
    if kind is WorkKind.NETWORK:
        return np.zeros(len(facts))
    fact = dict(zip(FACTS[kind], facts.T, strict=True))
    moved = np.maximum(1.0, fact["bytes"])
    uncached = np.maximum(0.0, moved - 2 * fact["ops"] * cache_bytes(device)) / moved
    needed = np.minimum(1.0, FEWEST_PRODUCTS / fact["taps"]) if kind is WorkKind.CONVOLUTION else 1.0
    least_s = np.maximum(fact["compute_s"] * needed, fact["memory_s"] * uncached)
    return np.asarray(np.log(np.clip(least_s / fact["bound_s"], np.exp(FASTEST), 1.0)))


def cache_bytes(device: DeviceSpec) -> int:
    """What the last cache holds; on a part of which none is listed, what it may hold."""
    return max((level.capacity_bytes or 0 for level in device.memory[:-1]), default=0) or UNLISTED_CACHE_BYTES


def takes_a_launch(key: str) -> bool:
    """Whether a tiny one takes as long whatever it computes: products, and ops on elements."""
    return key == PRODUCT_KEY or (kind_of(key) is WorkKind.ROWS and key_of_others(key) != OTHER_REDUCTIONS_KEY)


def kernels_s(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Seconds [works] of as many of the device's shortest kernels as works of facts [works, facts] have ops."""
    kind = kind_of(key)
    ops = np.ones(len(facts)) if kind is WorkKind.NETWORK else facts[:, FACTS[kind].index("ops")]
    return np.asarray(ops * least_kernel_s(device))


def shortest_of_s(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Seconds [works] below which no work is: its bound, and its kernels."""
    return np.maximum(facts[:, 0], kernels_s(key, facts, device))


def small_s(key: str, facts: Floats, device: DeviceSpec) -> Floats:
    """Seconds [works] that works of facts [works, facts] usually take at least that are unlike what was measured."""
    shortest = kernels_s(key, facts, device)
    if kind_of(key) is WorkKind.NETWORK:
        ranks, nodes = facts[:, -2:].T
        return np.maximum(shortest, small_collective_s(key, ranks / nodes, device))
    return np.maximum(shortest, small_kernel_s(key, device))
