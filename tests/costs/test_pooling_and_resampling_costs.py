import pytest
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st

X, Y = spec((2, 3, 8, 8)), spec((2, 3, 4, 4))


@pytest.mark.parametrize(("name", "taps"), [("nearest2d", 1), ("bilinear2d", 4), ("bicubic2d", 16)])
def test_upsampling(name, taps):
    c = cost(f"aten::upsample_{name}", {"self": Y}, [X])
    assert c.vector_flops == (2 * taps - 1 if taps > 1 else 0) * 384
    assert (c.bytes_read, c.bytes_written) == (384, 1_536)
    assert cost(f"aten::upsample_{name}_backward", {"grad_output": X}, [Y]).vector_flops == 2 * taps * 384


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
