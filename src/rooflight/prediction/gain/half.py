"""The gain of compiling forward passes in 16 bits, of which what is learned from KernelBench's float32 has none: eager
and compiled time as multiples of bounds, on GPUs whose memory is as slow beside their products as an RTX 4090's.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from rooflight.prediction.gain.kernels import CONVOLUTIONS, Kind, compiled_work, kind_of_op
from rooflight.prediction.work.facts import Floats
from rooflight.records.record import Direction
from rooflight.records.signature import OpSignature
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import memory_time
from rooflight.roofline.fusion.regions import fuse

EAGER: Final = (1.12, 1.86, 1.10, 1.13, 0.95)
COMPILED: Final = (0.91, 0.88, 1.38, 1.13, 1.05)
"""Multiples of five bounds, one after the other: of convolutions what they compute and what they move (NCHW transposes
both ways, of which Inductor's order has none), depthwise convolutions, other products, and all that only moves. Those
with the least error for 870 networks of timm on an RTX 4090 (``benchmarks/timm_gains.py fit``)."""
LOW, HIGH = 0.76, 1.27
"""Factors of the gain between which nine in ten of networks lie whose families were held out (the same command)."""
_HALF: Final = ("float16", "bfloat16")


def bounds_of(analysis: Analysis) -> Floats:
    """Seconds of the five bounds [3, 5]: of the eager step, of what is compiled of it, and of what stays eager."""
    session, found = analysis.session, np.zeros((3, 5))
    kinds = [kind_of_op(op, cost) for op, cost in zip(session.signatures, analysis.costs, strict=True)]
    signature = session.columns.signature[session.counted].tolist()
    bound_s = np.array([bound.time_s if bound else 0.0 for bound in analysis.bounds])[signature]
    # today's compilers compute all of a result of which only a part is read
    work = compiled_work(analysis, bound_s, fusion=fuse(session, analysis.costs, whole=True))
    for number, eager in zip(signature, work.eager.tolist(), strict=True):
        parts = _parts(analysis, kinds, number)
        found[0] += parts
        found[2] += parts * eager
    for launch in work.launches:
        if launch.generated:
            alone = _pools(session.signatures[signature[launch.place]])
            moved = launch.op_bytes if alone else launch.bytes_moved
            found[1, 4] += memory_time(moved, 0, analysis.device.memory)
        else:
            found[1] += _parts(analysis, kinds, signature[launch.place])
    return found


def _pools(op: OpSignature) -> bool:
    """Whether an op reduces images to a number a channel. In channels-last order such kernels take as long as the ops
    in them one by one: networks of squeeze-and-excitation showed it.
    """
    image, out = op.inputs[:1], op.outputs[:1]
    return (
        bool(image and out)
        and len(image[0].shape) == 4
        and 1 < image[0].numel // max(1, out[0].numel) == prod(image[0].shape[2:])
    )


def _parts(analysis: Analysis, kinds: list[Kind], number: int) -> Floats:
    parts, bound, kind = np.zeros(5), analysis.bounds[number], kinds[number]
    if bound is None:
        return parts
    if kind in CONVOLUTIONS and kind is not Kind.DEPTHWISE:
        parts[:2] = bound.compute_s, bound.memory_s
    else:
        place = {Kind.DEPTHWISE: 2, Kind.PRODUCT: 3, Kind.ATTENTION: 3}.get(kind, 4)
        parts[place] = bound.time_s
    return parts


def gain_in_half(analysis: Analysis, host_s: float) -> tuple[float, float, float] | None:
    """The best, the low and the high speed-up of a step by torch.compile; None where it is no forward pass in 16 bits,
    the GPU is not like the one that was measured, or it waits for a host that takes ``host_s``.
    """
    session, device = analysis.session, analysis.device
    products = [dtype in _HALF for _, dtype in analysis.products]
    trains = (session.columns.direction[session.counted] != Direction.FORWARD).any()
    if trains or analysis.without_storages or not products or 2 * sum(products) < len(products):
        return None
    if device.vendor != "NVIDIA" or not device.memory_type.startswith("GDDR") or not device.matrix_peak("float16"):
        return None
    eager, compiled, left = bounds_of(analysis)
    eager_s, compiled_s = float(eager @ EAGER), float(compiled @ COMPILED + left @ EAGER)
    if not compiled_s or host_s > eager_s:
        return None
    best = eager_s / compiled_s
    return best, LOW * best, HIGH * best
