"""Ops on images: pooling, resampling, and torchvision's, recorded: its own or, where it lacks, of its schemas."""

import importlib.util

import pytest
import torch
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st
from recorded_costs import only_cost

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def kept_first(dets, scores, iou_threshold):
    """Non-maximum suppression, plainly."""
    kept = []
    for index in scores.argsort(descending=True).tolist():
        box = dets[index]
        for other in (dets[number] for number in kept):
            low, high = torch.maximum(box[:2], other[:2]), torch.minimum(box[2:], other[2:])
            inside = (high - low).clamp(min=0).prod()
            areas = (box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod()
            if inside / (areas - inside) > iou_threshold:
                break
        else:
            kept.append(index)
    return torch.tensor(kept)


def shapes_only(name):
    """The results' shapes are all that a cost depends on."""

    def run(*args):
        if name == "nms":
            return kept_first(*args)
        if name in ("roi_align", "roi_pool"):
            out = torch.zeros(args[1].shape[0], args[0].shape[1], args[3], args[4])
            return out if name == "roi_align" else (out, torch.zeros_like(out, dtype=torch.int32))
        if name == "_roi_align_backward":
            return torch.zeros(args[5:9])
        if name == "_roi_pool_backward":
            return torch.zeros(args[6:10])
        if name == "deform_conv2d":
            return torch.zeros(args[0].shape[0], args[1].shape[0], *args[2].shape[2:])
        return tuple(torch.zeros_like(each) for each in args[1:6])

    return run


@pytest.fixture(scope="module")
def ops():
    if importlib.util.find_spec("torchvision"):
        yield pytest.importorskip("torchvision") and torch.ops.torchvision
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, shapes_only(name), "CPU")
    yield torch.ops.torchvision
    library._destroy()


def test_boxes_that_were_kept_were_compared_with_each_other(ops):
    # three boxes far apart, and two that lie nearly on the first
    boxes = torch.tensor(
        [[0.0, 0, 10, 10], [50, 50, 60, 60], [90, 90, 99, 99], [0, 0, 10, 9.9], [0, 0, 9.9, 10]],
    )
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    c = only_cost(lambda: ops.nms(boxes, scores, 0.5), "torchvision::nms")
    assert c.vector_flops == 12 * (3 + 2)
    assert (c.bytes_read, c.bytes_written) == (5 * 16 + 5 * 4, 3 * 8)
    assert not c.upper  # how many were kept is known


REGIONS = torch.tensor([[0.0, 0, 0, 8, 8], [1, 4, 4, 12, 12]])


def test_roi_align(ops):
    x = torch.zeros(2, 3, 16, 16)
    c = only_cost(lambda: ops.roi_align(x, REGIONS, 1.0, 4, 4, 2, True), "torchvision::roi_align")
    # 2 regions, 3 channels, 16 bins of 2 x 2 samples, 4 taps of a multiply and an add
    assert c.vector_flops == 2 * 3 * 16 * 4 * 8
    # 1536 taps of 4 bytes are all of x, which has 1536 elements
    assert (c.bytes_read, c.bytes_written) == (40 + 6_144, 2 * 3 * 16 * 4)
    assert c.upper
    few = only_cost(lambda: ops.roi_align(x, REGIONS[:1], 1.0, 2, 2, 1, True), "torchvision::roi_align")
    assert few.bytes_read == 20 + 3 * 4 * 4 * 4
    adaptive = only_cost(lambda: ops.roi_align(x, REGIONS, 1.0, 4, 4, -1, True), "torchvision::roi_align")
    assert adaptive.vector_flops == 2 * 3 * 16 * 8
    assert "least" in adaptive.note


def test_roi_align_backward(ops):
    grad = torch.zeros(2, 3, 4, 4)
    c = only_cost(
        lambda: ops._roi_align_backward(grad, REGIONS, 1.0, 4, 4, 2, 3, 16, 16, 2, True),
        "torchvision::_roi_align_backward",
    )
    assert c.vector_flops == 96 * 4 * 8
    assert (c.bytes_read, c.bytes_written) == (384 + 40, 6_144)


def test_roi_pool_and_its_backward(ops):
    x = torch.zeros(2, 3, 16, 16)
    c = only_cost(lambda: ops.roi_pool(x, REGIONS, 1.0, 4, 4), "torchvision::roi_pool")
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (96, 40 + 384, 384 + 384)
    grad, argmax = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4, dtype=torch.int32)
    back = only_cost(
        lambda: ops._roi_pool_backward(grad, REGIONS, argmax, 1.0, 4, 4, 2, 3, 16, 16),
        "torchvision::_roi_pool_backward",
    )
    assert (back.vector_flops, back.bytes_read, back.bytes_written) == (96, 384 + 40 + 384, 6_144)


@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolution(ops, masked):
    x, weight, bias = torch.zeros(2, 4, 8, 8), torch.zeros(6, 4, 3, 3), torch.zeros(6)
    offset = torch.zeros(2, 18, 8, 8)
    mask = torch.zeros(2, 9, 8, 8) if masked else torch.zeros(2, 1)
    settings = (1, 1, 1, 1, 1, 1, 1, 1, masked)
    c = only_cost(lambda: ops.deform_conv2d(x, weight, offset, mask, bias, *settings), "torchvision::deform_conv2d")
    plain = 2 * 2 * 6 * 64 * 4 * 9  # as of a convolution
    samples = 2 * 4 * 9 * 64
    assert c.matrix_flops == plain
    assert c.vector_flops == (8 + masked) * samples + 2 * 6 * 64
    assert c.bytes_read == 4 * (512 + 216 + 2_304 + 6 + (1_152 if masked else 0))
    assert c.bytes_written == 4 * 768
    grad = torch.zeros(2, 6, 8, 8)
    back = only_cost(
        lambda: ops._deform_conv2d_backward(grad, x, weight, offset, mask, bias, *settings),
        "torchvision::_deform_conv2d_backward",
    )
    assert back.matrix_flops == 2 * plain
    assert back.bytes_written == 4 * (512 + 216 + 2_304 + mask.numel() + 6)


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 4))
def test_pooling_never_reads_more_than_its_input(size, steps, window):
    x, y = spec((1, 2, size)), spec((1, 2, steps))
    assert cost("aten::avg_pool1d", {"self": x}, [y], kernel_size=(window,)).bytes_read <= x.nbytes


test_costs = costs(
    """
    # average pooling adds its taps: 96 * 4
    avg_pool2d self=2x3x8x8 -> 2x3x4x4 | kernel_size=(2,2) stride=(2,2) = vector 384, read 1536, written 384
    # one size stands for all dimensions: 96 * 9
    avg_pool2d self=2x3x8x8 -> 2x3x4x4 | kernel_size=(3,) = vector 864
    # gaps between windows are not read
    avg_pool2d self=2x3x8x8 -> 2x3x4x4 | kernel_size=(1,1) stride=(2,2) = read 384
    # max pooling writes its indices: 96 * (4 + 8)
    max_pool2d_with_indices self=2x3x8x8 -> 2x3x4x4 2x3x4x4:int64 | kernel_size=(2,2) = written 1152
    # max pooling backward needs no input
    max_pool2d_with_indices_backward grad_output=2x3x4x4 self=2x3x8x8 indices=2x3x4x4:int64 -> 2x3x8x8 |
        kernel_size=(2,2) = vector 96, read 1152, written 1536
    # adaptive pooling visits the input once
    _adaptive_avg_pool2d self=2x3x8x8 -> 2x3x1x1 = vector 384
    _adaptive_avg_pool2d_backward grad_output=2x3x1x1 self=2x3x8x8 -> 2x3x8x8 = read 24, written 1536
    # upsampling to 384 elements, of 1, 4 and 16 taps each
    upsample_nearest2d self=2x3x4x4 -> 2x3x8x8 = vector 0, read 384, written 1536
    upsample_bilinear2d self=2x3x4x4 -> 2x3x8x8 = vector 2688, read 384, written 1536
    upsample_bicubic2d self=2x3x4x4 -> 2x3x8x8 = vector 11904, read 384, written 1536
    upsample_nearest2d_backward grad_output=2x3x8x8 -> 2x3x4x4 = vector 768
    upsample_bilinear2d_backward grad_output=2x3x8x8 -> 2x3x4x4 = vector 3072
    upsample_bicubic2d_backward grad_output=2x3x8x8 -> 2x3x4x4 = vector 12288
    # nearest downsampling reads what it keeps
    upsample_nearest2d self=2x3x8x8 -> 2x3x4x4 = read 384
    # grid sampling: 7 * 96; 64 coordinates and 4 taps for each of 96
    grid_sampler_2d input=2x3x8x8 grid=2x4x4x2 -> 2x3x4x4 | interpolation_mode=0 = vector 672, read 1792
    grid_sampler_2d input=2x3x8x8 grid=2x4x4x2 -> 2x3x4x4 | interpolation_mode=1 = read 640
    # reflection padding
    reflection_pad2d self=2x3x8x8 -> 2x3x10x10 = vector 0
    reflection_pad2d_backward grad_output=2x3x10x10 self=2x3x8x8 -> 2x3x8x8 = vector 600, read 2400
    # points of a grid may coincide
    grid_sampler_2d input=1x2x8x8 grid=1x4x4x2 -> 1x2x4x4 | interpolation_mode=0 = upper True
    """
)
