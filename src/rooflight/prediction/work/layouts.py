"""What the layout of images is worth to a convolution in half precision on NVIDIA's GPUs.

The matrix units take images channels-last (NHWC). Of images in torch's default layout (NCHW), in which what is taught
was measured, cuDNN transposes what a kernel reads and writes: each element is moved twice more. A channels-last
convolution takes as much less time as the least time of its work is below that with the transposes. A convolution of 1
x 1 is a product of matrices in both layouts, whose rows are the pixels in NCHW: it needs none where they are aligned to
16 bytes. Nor do those of one channel a group and of few channels: that was seen on networks of the RTX 3090
(``benchmarks/convolution_layouts.py``); nothing else is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of, traits_of
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.work.facts import FACTS, Floats, kind_of
from rooflight.records.estimate import Estimate
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

_HALF: Final = ("float16", "bfloat16")
_FEW_CHANNELS: Final = 8
_ALIGNED: Final = 8  # elements in 16 bytes
_FASTER: Final = 1.5  # than the vector lanes are matrix units, on all devices that have any
_BALANCE: Final = 76
"""FLOPs that a GPU does in the time in which it moves a byte: of the RTX 3090, where layouts were measured. Others have
more, and gain more. With their own, a chip with more bandwidth would be predicted to be slower channels-last.
"""


def in_default_layout(key: str, facts: Floats) -> Floats:
    """Facts [works, facts] of the same work on contiguous images, as models learned that saw no other."""
    names = FACTS[kind_of(key)]
    if "channels last" not in names:
        return facts
    plain = facts.copy()
    plain[:, names.index("channels last")] = 0.0
    return plain


def in_its_layout(found: Estimate, ops: Sequence[OpSignature], device: DeviceSpec) -> Estimate:
    """The estimate of an op that was predicted as if in the default layout, in its own. Its high end is kept: kernels
    for this layout may be missing.
    """
    if len(ops) != 1 or not _takes_layouts(device):
        return found
    share = channels_last_share(ops[0])
    time_s = max(found.bound_s, found.kernels_s, found.time_s * share)
    return found if share == 1 else replace(found, time_s=time_s, low_s=min(found.low_s * share, time_s))


def channels_last_share(op: OpSignature) -> float:
    """Time of a channels-last convolution over that of the same in the default layout; 1 of all else."""
    weight = op.input("weight")
    if not traits_of(op).convolution or weight is None or len(weight.shape) != 4 or weight.dtype not in _HALF:
        return 1.0
    images = [each for each in (*op.inputs, *op.outputs) if len(each.shape) == 4 and each.shape != weight.shape]
    pixels = {each.shape[2:] for each in images}
    is_product = prod(weight.shape[2:]) == len(pixels) == 1 and prod(*pixels) % _ALIGNED == 0
    if is_product or weight.shape[1] == 1 or any(each.shape[1] < _FEW_CHANNELS for each in images):
        return 1.0
    # cuDNN's rule: one of them is enough
    if not any(map(_is_channels_last, (op.input("input") or op.input("self"), weight))):
        return 1.0
    cost = cost_of(op)
    if isinstance(cost, Uncosted):
        return 1.0
    least = max(cost.matrix_flops, _BALANCE * cost.bytes_moved)
    return least / (least + 2 * _BALANCE * sum(each.nbytes for each in images if prod(each.shape[2:]) > 1))


def _takes_layouts(device: DeviceSpec) -> bool:
    peak, lanes = device.matrix_peak("float16"), device.vector_peak("float16")
    return device.vendor == "NVIDIA" and bool(peak and lanes and peak > _FASTER * lanes)


def _is_channels_last(tensor: TensorSpec | None) -> bool:
    return tensor is not None and tensor.strides is not None and len(tensor.shape) == 4 and tensor.strides[1] == 1
