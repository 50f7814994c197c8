"""Work that no kernel can do without, beside the work that is counted."""

from itertools import product

import pytest
import torch
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st
from recorded_costs import only_cost

from rooflight.costs.cost import OpCost
from rooflight.costs.windows import Windows
from rooflight.devices import get
from rooflight.roofline.bound import bound_of

F = torch.nn.functional
SMALL = st.integers(1, 5)


@given(st.integers(1, 12), SMALL, st.integers(0, 9), SMALL, st.integers(0, 7), SMALL)
def test_windows_are_as_counted_one_by_one(size, taps, steps, stride, padding, dilation):
    places = [(i, t, i * stride + t * dilation - padding) for i in range(steps) for t in range(taps)]
    inside = [each for each in places if 0 <= each[2] < size]
    found = Windows(size, taps, steps, stride, padding, dilation)
    assert found.pairs == len(inside)
    by_step, by_tap, by_place = (len({each[part] for each in inside}) for part in range(3))
    assert (found.steps_used, found.taps_used, found.touched) == (by_step, by_tap, by_place)


test_costs = costs(
    """
    # y @ y^T: 2 * 4 * 4 * 8 counted, 2 * 8 * 4 * 5 / 2 of one triangle; 4 * 32 bytes
    mm 4x8@0 8x4~1,8@0 = matrix 256, avoidable 96, read 128
    mm 8x4~1,8@0 4x8@0 = matrix 512, avoidable 224
    addmm self=4x4 mat1=4x8@0 mat2=8x4~1,8@0 = matrix 256, avoidable 96
    bmm 3x4x8@0 3x8x4~32,1,8@0 = matrix 768, avoidable 288
    linear 4x8@0 4x8@0 -> 4x4 = matrix 256, avoidable 96
    # the same memory is not the transpose: y @ y
    mm 4x4@0 4x4@0 = matrix 128, avoidable 0
    # both sides expanded: of 64 products one; one side alone saves none
    bmm 64x4x8~0,8,1 64x8x3~0,3,1 -> 64x4x3 = matrix 12288, avoidable 12096
    bmm 64x4x8~0,8,1 64x8x3 -> 64x4x3 = matrix 12288, avoidable 0
    # equal rows, equal columns, equal terms of one side (those of the other are summed first)
    mm 4x8~0,1 8x3 = matrix 192, avoidable 144
    mm 4x8 8x3~1,0 = matrix 192, avoidable 128
    mm 4x8~1,0 8x3 = matrix 192, avoidable 168
    mv 4x8~0,1 8 -> 4 = matrix 64, avoidable 48
    linear 2x4x8~0,8,1 3x8 -> 2x4x3 = matrix 384, avoidable 192
    # A [100, 10]: 4 * 100 * (100 - 10 / 3) counted; QR first: half of it, and 8 / 3 * 1000
    _linalg_svd 100x10 -> 100x10 10 10x10 = matrix 38667, avoidable 16667
    # A^T A: 100 * 100, and 4 / 3 * 1000; a square one has nothing to save
    _linalg_svd 100x10 -> 100x10 10 10x10 | driver='gesvda' = matrix 38667, avoidable 27333
    _linalg_svd 10x10 -> 10x10 10 10x10 = matrix 2667, avoidable 0
    # one image in a batch of 4; one channel given three times; blurring each channel by one kernel saves nothing
    convolution input=4x3x5x5~0,25,5,1 weight=2x3x3x3 -> 4x2x3x3 = matrix 3888, avoidable 2916
    convolution input=1x3x5x5~25,0,5,1 weight=2x3x3x3 -> 1x2x3x3 = matrix 972, avoidable 648
    convolution input=1x3x5x5 weight=3x1x3x3~0,9,3,1 -> 1x3x3x3 = matrix 486, avoidable 0
    convolution input=1x3x5x5 weight=4x3x3x3~0,9,3,1 -> 1x4x3x3 = matrix 1944, avoidable 1458
    # one pixel under 3 x 3: of 9 taps one meets it; 4 * 2 * (1 + 3) bytes
    convolution input=1x2x1x1 weight=3x2x3x3 -> 1x3x1x1 | padding=(1,1) = matrix 108, avoidable 96, read 32
    # of two gradients each; dy is read to the last for db alone
    convolution_backward grad_output=1x3x1x1 input=1x2x1x1 weight=3x2x3x3 -> 1x2x1x1 3x2x3x3 | padding=(1,1)
        output_mask=(True,True,False) = matrix 216, avoidable 192, read 44
    convolution_backward grad_output=1x3x3x3 input=1x2x1x1 weight=3x2x1x1 -> 1x2x1x1 | padding=(1,1)
        output_mask=(True,False,False) = read 36
    # 2 x 2 pixels, padded: per dimension 4 of 6 taps
    convolution input=1x1x2x2 weight=1x1x3x3 -> 1x1x2x2 | padding=(1,1) = matrix 72, avoidable 40
    # at every second place, both strides and taps: a quarter, 4 * (9 + 4)
    convolution input=1x1x7x7 weight=1x1x2x2 -> 1x1x3x3 | stride=(2,2) dilation=(2,2) = read 80
    # transposed: of x [3] at stride 2 with one tap, cropped by 2 either side, the middle one ends inside
    convolution input=1x1x3 weight=1x1x1 -> 1x1x1 | stride=(2,) padding=(2,) transposed=True = read 8, avoidable 4
    # windows of 3 x 1 at every fourth column: 6 rows of them lie side by side, 8 * 2 of 8 * 8
    max_pool2d_with_indices 1x2x8x8 -> 1x2x6x2 | kernel_size=(3,1) stride=(1,4) = read 128
    # windows of 3 leave the last of 10 out
    avg_pool1d 1x1x10 -> 1x1x3 | kernel_size=(3,) stride=() = read 36
    # unfold(1, stride=4): 4 of 64; of padded windows only what is there
    im2col 1x1x8x8 -> 1x1x4 | kernel_size=(1,1) stride=(4,4) = read 16
    im2col 1x1x2x2 -> 1x9x4 | kernel_size=(3,3) padding=(1,1) = read 16
    # half as high and twice as wide: 4 rows of 8
    upsample_nearest2d 1x1x8x8 -> 1x1x4x16 = read 128
    # two neighbours along each dimension, one where results lie on elements
    upsample_bilinear2d 1x1x12x12 -> 1x1x3x3 | align_corners=False = read 144
    upsample_bilinear2d 1x1x9x9 -> 1x1x3x3 | align_corners=False = read 36
    upsample_bilinear2d 1x1x9x9 -> 1x1x3x3 | align_corners=True = read 36
    # 16 - 12 columns are kept, in 2 rows more
    constant_pad_nd 4x16 -> 6x4 | pad=(-6,-6,1,1) = read 64
    # [4, 2] at strides 1 and 1 is 5 elements, windows of 3 at every second place 9
    as_strided_copy 20 -> 4x2 | size=(4,2) stride=(1,1) = read 20
    unfold_copy 10 -> 4x3 | dimension=0 size=3 step=2 = read 36
    # the scores of 2 * 3 * 16 pairs: 2 * 8 each
    rooflight::scaled_dot_product_attention_backward 2x3x4x8 2x3x4x8 2x3x4x8 2x3x4x8 -> 2x3x4x8 2x3x4x8 2x3x4x8 =
        matrix 7680, recomputed 1536
    """
)


@given(*[SMALL] * 3, st.tuples(*[st.booleans()] * 6))
def test_a_product_needs_each_distinct_result_once(batch, m, n, still):
    """[b, m, k] @ [b, k, n] with k 3: what makes a result is an entry and a row of the one, an entry and a column of
    the other; terms with a factor in common are one.
    """
    left, right = _expanded((batch, m, 3), still[:3]), _expanded((batch, 3, n), still[3:])
    found = cost("aten::bmm", [left, right], [spec((batch, m, n))])
    results = {
        (entry * (not still[0]), row * (not still[1]), entry * (not still[3]), column * (not still[5]))
        for entry, row, column in product(range(batch), range(m), range(n))
    }
    terms = 1 if still[2] or still[4] else 3
    assert found.matrix_flops - found.avoidable_flops == 2 * len(results) * terms


def _expanded(shape, still):
    strides = [0 if flag else step for flag, step in zip(still, (shape[1] * shape[2], shape[2], 1), strict=True)]
    return spec(shape, strides=strides)


def test_bounds_leave_out_what_is_avoidable():
    device = get("A100-SXM4-80GB")
    counted = OpCost(matrix_flops=10**12, matrix_dtype="bfloat16")
    half = OpCost(matrix_flops=10**12, matrix_dtype="bfloat16", avoidable_flops=5 * 10**11)
    assert bound_of(half, device).compute_s == bound_of(counted, device).compute_s / 2
    with pytest.raises(ValueError, match="avoidable"):
        OpCost(matrix_flops=1, avoidable_flops=2)


def test_recorded_products_show_what_is_avoidable():
    y, w = torch.randn(6, 4), torch.randn(3, 1, 3, 3)
    assert only_cost(lambda: y @ y.t(), "mm").avoidable_flops == 2 * 4 * 6 * 5 // 2
    assert only_cost(lambda: F.linear(y, y), "mm").avoidable_flops == 2 * 4 * 6 * 5 // 2
    grey = torch.randn(1, 1, 5, 5).expand(1, 3, 5, 5)
    assert only_cost(lambda: F.conv2d(grey, w[:1].expand(2, 3, 3, 3)), "convolution").avoidable_flops > 0


@pytest.mark.parametrize(("mode", "taps"), [("nearest", 1), ("bilinear", 2), ("bicubic", 4)])
@pytest.mark.parametrize("sizes", [(8, 4), (9, 3), (6, 6), (4, 9), (7, 2), (5, 3)])
def test_resampling_reads_no_more_than_has_a_gradient(mode, taps, sizes):
    """What a result depends on has a gradient that is not zero."""
    size, steps = sizes
    x = torch.rand(1, 1, size, 2 * size, requires_grad=True)
    y = F.interpolate(x, (steps, 2 * steps), mode=mode)
    y.backward(torch.rand_like(y))
    read = only_cost(lambda: F.interpolate(x.detach(), (steps, 2 * steps), mode=mode), f"upsample_{mode}2d").bytes_read
    assert read <= 4 * int((x.grad != 0).sum())
    assert taps > 1 or steps > size or read == 4 * int((x.grad != 0).sum())
