"""Ops on images: pooling, resampling, and torchvision's on boxes and regions.

Pooling: one FLOP (addition or comparison) per tap of each window, padded taps included; adaptive pooling, whose windows
cover the input once, one per input element. Backward one addition per gradient put back. Max pooling's backward needs
its indices, not its input. Of the input no more is read than lies under a window.

Resampling: a result made of t neighbours takes 2 t - 1 FLOPs (multiply, add; nearest 0), its backward 2 t per gradient
(multiply, add). Weights, shared by all channels, are not counted. Of the input no more is read than t elements per
result. Antialiasing widens the window to cover the whole input, so the larger side is counted.

Boxes and regions: an intersection over union of two boxes is 12 FLOPs, the least of rotated ones, too; a bilinear
sample 8 per channel (4 taps, a multiply and an add each; weights, which channels share, are not counted), its backward
as many. Of the feature map no more is read than the taps of all samples, at the most all of it:
regions that overlap need less, so such counts are ``upper``.
"""

from __future__ import annotations

from math import prod

from rooflight.costs.cost import Needs, OpCost
from rooflight.costs.families.convolution import direct_multiply_adds
from rooflight.costs.families.matmul import product
from rooflight.costs.registry import Formula
from rooflight.costs.rules import (
    Family,
    copies,
    first_input,
    first_output,
    integer,
    integers,
    largest,
    moves,
    moving,
    per_input,
    picked_bytes,
    picking,
    tensor_bytes,
)
from rooflight.costs.windows import windows_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

pooling_ops = Family("pooling", fusable=True)


def _window(op: OpSignature) -> tuple[int, ...]:
    """Sizes of a window; one given stands for all dimensions, whose number is in the op's name."""
    sizes = integers(op, "kernel_size")
    rank = next((int(digit) for digit in op.name.partition("pool")[2] if digit.isdigit()), len(sizes))
    return sizes if len(sizes) == rank else (sizes[:1] or (1,)) * rank


def _window_taps(op: OpSignature) -> int:
    return prod(_window(op))


@pooling_ops(
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices "
    "max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool1d "
    "quantized_max_pool2d quantized_max_pool3d fractional_max_pool2d fractional_max_pool3d quantized::max_pool1d "
    "quantized::max_pool2d"
)
def pool(op: OpSignature) -> OpCost:
    """x [B, C, in...] to y [B, C, out...], and indices where asked for. Where fractional windows lie is data: apart, or
    side by side.
    """
    x, out, taps = op.inputs[0], op.outputs[0], _window(op)
    sizes, steps = x.shape[-len(taps) :], out.shape[-len(taps) :]
    if "fractional" in op.name:
        touched = prod(min(n, t * s) for n, t, s in zip(sizes, taps, steps, strict=True))
    else:
        touched = prod(each.touched for each in windows_of(op, sizes, taps, steps, stride=taps))
    return picking(op, prod(x.shape[: -len(taps)]) * touched, vector_flops=out.numel * prod(taps))


_put_back = pooling_ops.having(needs=Needs.JOINED)
_put_back.having(mask_input="indices").rows(
    {first_input(1, "self"): "max_pool2d_with_indices_backward max_pool3d_with_indices_backward"}
)
_put_back.rows(
    {
        # dy and indices to dx, zero but where a maximum was
        first_input(1, "self"): "adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward",
        # dy [B, C, out...] spread over each window of dx; dy and x to dx, where the maxima are found again
        moving(lambda op: op.inputs[0].numel * _window_taps(op), "self"): "avg_pool2d_backward avg_pool3d_backward",
        moving(lambda op: op.inputs[0].numel * _window_taps(op)): "max_pool2d_backward mkldnn_max_pool2d_backward "
        "mkldnn_max_pool3d_backward",
        # dy spread over dx: one division per element of dx
        first_output(1, "self"): "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "adaptive_avg_pool3d_backward mkldnn_adaptive_avg_pool2d_backward",
        copies: "max_unpool2d max_unpool3d",
    }
)
pooling_ops.rows(
    {
        per_input(1): "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
    }
)

resampling_ops = Family("resampling", fusable=True)

NEIGHBOURS: dict[int, str] = {
    1: "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d",
    2: "upsample_linear1d",
    4: "upsample_bilinear2d",
    8: "upsample_trilinear3d",
    16: "upsample_bicubic2d",
}

ANTIALIASED: dict[int, str] = {4: "_upsample_bilinear2d_aa", 16: "_upsample_bicubic2d_aa", 36: "_upsample_lanczos2d_aa"}


def blend_flops(taps: int) -> int:
    """FLOPs of a weighted sum of so many neighbours; a single one is only copied."""
    return 2 * taps - 1 if taps > 1 else 0


def upsampling(taps: int) -> Formula:
    """A formula: each result blends ``taps`` elements of the first input, as many along each dimension."""

    def cost(op: OpSignature) -> OpCost:
        x, out = op.inputs[0], op.outputs[0]
        spatial = len(x.shape) - 2
        each, aligned = round(taps ** (1 / spatial)), bool(op.attribute("align_corners"))
        sizes = zip(x.shape[2:], out.shape[2:], strict=True)
        seen = prod(_blended(size, steps, each, aligned=aligned) for size, steps in sizes)
        return picking(op, prod(x.shape[:2]) * seen, vector_flops=blend_flops(taps) * out.numel)

    return cost


def _blended(size: int, steps: int, taps: int, *, aligned: bool) -> int:
    """Elements along a dimension that results are made of. Those that lie on an element are made of that one. A scale
    given as a float is not known: it may be a little larger than the sizes say.
    """
    if taps == 1:
        return steps if steps <= size else min(size, (steps - 1) * size // (steps + 1) + 1)
    on_elements = (size - 1) % max(1, steps - 1) == 0 if aligned else size % steps == 0 and size // steps % 2 == 1
    return min(size, steps * (1 if on_elements else taps))


def antialiased(taps: int) -> Formula:
    """A formula: a blend per element of the larger side."""
    return moving(lambda op: blend_flops(taps) * largest((*op.inputs, *op.outputs)))


def _backward(ops: str) -> str:
    return " ".join(f"{name}_backward" for name in ops.split())


for _taps, _ops in NEIGHBOURS.items():
    resampling_ops.rows({upsampling(_taps): _ops, per_input(2 * _taps): _backward(_ops)})
for _taps, _ops in ANTIALIASED.items():
    resampling_ops.rows({antialiased(_taps): f"{_ops} {_backward(_ops)}"})


def _grid_taps(op: OpSignature) -> int:
    """interpolation_mode 0 (bi- or trilinear), 1 nearest, 2 bicubic."""
    linear = 8 if "3d" in op.name else 4
    return {1: 1, 2: 16}.get(integer(op, "interpolation_mode", 0), linear)


@resampling_ops("grid_sampler grid_sampler_2d grid_sampler_3d cudnn_grid_sampler _grid_sampler_2d_cpu_fallback")
def grid_sampler(op: OpSignature) -> OpCost:
    """x [B, C, in...] at the points of a grid [B, out..., d] to y [B, C, out...]."""
    taps, points = _grid_taps(op), op.outputs[0].numel
    note = "points may share what they read, or lie outside"
    return picking(op, taps * points, vector_flops=blend_flops(taps) * points, note=note)


_PADS = "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
resampling_ops.having(needs=Needs.JOINED).rows({copies: _PADS})
resampling_ops.rows(
    {
        first_input(1, "self"): _backward(_PADS),  # dy to dx: what was repeated is added up
        # dy, x and the grid to dx and dgrid: each gradient meets its taps twice
        moving(lambda op: 4 * _grid_taps(op) * op.inputs[0].numel): "grid_sampler_2d_backward grid_sampler_3d_backward "
        "cudnn_grid_sampler_backward _grid_sampler_2d_cpu_fallback_backward",
        # theta [B, d, d + 1] to grid [B, points..., d], d + 1 multiply-adds per coordinate, and back
        moving(lambda op: 2 * op.outputs[0].numel * op.inputs[0].shape[-1]): "affine_grid_generator "
        "cudnn_affine_grid_generator",
        moving(lambda op: 2 * op.inputs[0].numel * (op.inputs[0].shape[-1] + 1)): "affine_grid_generator_backward "
        "cudnn_affine_grid_generator_backward",
    }
)


detection_ops = Family("detection")

OVERLAP_FLOPS = 12
SAMPLE_TAPS = 4
SAMPLE_FLOPS = 2 * SAMPLE_TAPS

DROPPED_NOTE = "overlaps among the boxes kept, and one of each box dropped"
REGIONS_NOTE = "regions taken not to overlap"
OFFSETS_NOTE = "offsets taken to reach different elements"


@detection_ops("torchvision::nms torchvision::qnms")
def nms(op: OpSignature) -> OpCost:
    """boxes [N, 4], scores [N] to the K kept, all compared with each other, and each dropped one with one of them."""
    boxes, found = op.inputs[0].shape[0], op.outputs[0].numel
    compared = found * (found - 1) // 2 + boxes - found
    return moves(op, vector_flops=OVERLAP_FLOPS * compared, note=DROPPED_NOTE)


def _samples(op: OpSignature) -> int:
    """Samples of a bin; with a ratio of 0 or less they follow from the region's size, which is data: at least one."""
    return max(1, integer(op, "sampling_ratio", 0)) ** 2


@detection_ops("torchvision::roi_align torchvision::ps_roi_align torchvision::qroi_align")
def roi_align(op: OpSignature) -> OpCost:
    """x [B, C, H, W], regions [K, 5] to the means of each bin's samples [K, C, h, w]; ``ps_``: C / (h w) channels."""
    sampled = _samples(op) * op.outputs[0].numel
    note = REGIONS_NOTE if integer(op, "sampling_ratio", 0) > 0 else f"one sample a bin, the least; {REGIONS_NOTE}"
    return picking(op, SAMPLE_TAPS * sampled, vector_flops=SAMPLE_FLOPS * sampled, note=note)


@detection_ops("torchvision::roi_pool torchvision::ps_roi_pool")
def roi_pool(op: OpSignature) -> OpCost:
    """x [B, C, H, W], regions [K, 5] to each bin's maximum or mean [K, C, h, w]: at least one element of x each."""
    elements = op.outputs[0].numel
    return picking(op, elements, vector_flops=elements, note=f"one element a bin, the least; {REGIONS_NOTE}")


detection_ops.rows(
    {
        # boxes [N, 5] and [M, 5] to their overlaps [N, M]; how many corners meet is data, so the least is counted
        first_output(OVERLAP_FLOPS): "box_iou_rotated",
        # gradients [K, C, h, w], added where they came from to zeros [B, C, H, W]: at the taps of samples, or picked
        moving(lambda op: SAMPLE_FLOPS * _samples(op) * op.inputs[0].numel): "_roi_align_backward "
        "_ps_roi_align_backward",
        first_input(1): "_roi_pool_backward _ps_roi_pool_backward",
    },
    "torchvision",
)


@detection_ops("torchvision::deform_conv2d", epilogue=True)
def deform_conv2d(op: OpSignature) -> OpCost:
    """x [B, C, H, W] sampled at each tap's offset [B, 2 groups k, h, w], maybe masked, then convolved."""
    x, weight, offset = op.inputs[:3]
    mask, bias = op.input("mask") if op.attribute("use_mask") else None, op.input("bias")
    out = op.outputs[0]
    sampled = _sampled(op, x, out)
    count = direct_multiply_adds(x, weight, out, transposed=False)
    flops = (SAMPLE_FLOPS + (mask is not None)) * sampled + out.numel
    read = picked_bytes(x, SAMPLE_TAPS * sampled) + tensor_bytes(weight, offset, mask, bias)
    return product(op, count, x, vector_flops=flops, read=read, upper=True, note=OFFSETS_NOTE)


@detection_ops("torchvision::_deform_conv2d_backward")
def deform_conv2d_backward(op: OpSignature) -> OpCost:
    """dy [B, Cout, h, w] to the gradients of input, weight, offset, mask and bias.

    The two products of a convolution's backward; samples are taken again, their gradients go to 4 taps each and to the
    two coordinates of their offset.
    """
    grad, x, weight, offset = op.inputs[:4]
    mask = op.input("mask") if op.attribute("use_mask") else None
    sampled = _sampled(op, x, grad)
    count = 2 * direct_multiply_adds(x, weight, grad, transposed=False)
    flops = 4 * SAMPLE_FLOPS * sampled + grad.numel
    read = picked_bytes(x, SAMPLE_TAPS * sampled) + tensor_bytes(grad, weight, offset, mask)
    return product(op, count, x, vector_flops=flops, read=read, upper=True, note=OFFSETS_NOTE)


def _sampled(op: OpSignature, x: TensorSpec, out: TensorSpec) -> int:
    """Samples of x [B, C, H, W] for the taps of each place of [B, Cout, h, w]."""
    weight = op.input("weight")
    taps = weight.shape[2] * weight.shape[3] if weight else 1
    return x.numel // max(1, x.shape[2] * x.shape[3]) * taps * out.shape[2] * out.shape[3]
