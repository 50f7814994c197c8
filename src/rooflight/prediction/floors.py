"""Floors: the shortest kernel, times that include a launch, and what these leave for the device."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec

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
    if launch_s < INSIDE * LEAST_S:
        return seconds
    low = np.full(len(seconds), _NEAR * launch_s / INSIDE)
    high = low + launch_s + seconds
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = without_launch(middle, launch_s) < seconds
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high
