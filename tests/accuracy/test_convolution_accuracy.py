"""Convolutions, recorded from real calls. x is [2, 4, 8, 8] or [2, 8, 8, 8]; 6 channels out, 3 x 3 taps."""

from __future__ import annotations

import pytest
from counting import analyse, analyse_training, bytes_of, cost, flops, rand, training_flops
from torch import nn

CONVOLUTION = "aten::convolution"
BACKWARD = "aten::convolution_backward"


def test_convolution():
    layer, x = nn.Conv2d(4, 6, 3), rand(2, 4, 8, 8)
    found = cost(analyse(lambda: layer(x)), CONVOLUTION)
    assert found.matrix_flops == 31104  # 2 * 2 * 6 * (6 * 6) * 4 * 9
    assert found.vector_flops == 432  # bias: 2 * 6 * 6 * 6
    assert found.bytes_read == 2936  # 4 B * (2 * 4 * 64 + 6 * 4 * 9 + 6)
    assert found.bytes_written == 1728  # 4 B * 2 * 6 * 36


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 8, 8), 55296),  # 2 * 2 * 6 * (8 * 8) * 4 * 9, padded taps too
        (nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 8, 8), 13824),  # 2 * 2 * 6 * (4 * 4) * 4 * 9
        (nn.Conv1d(4, 6, 3), (2, 4, 8), 1728),  # 2 * 2 * 6 * 6 * 4 * 3
        (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 2592),  # 2 * 1 * 3 * 27 * 2 * 8
        (nn.Conv2d(8, 8, 3, groups=4, bias=False), (2, 8, 8, 8), 20736),  # 2 * 2 * 8 * 36 * (8 / 4) * 9
        (nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False), (2, 8, 8, 8), 18432),  # 2 * 2 * 8 * 64 * 1 * 9
        (nn.Conv2d(8, 16, 3, groups=8, bias=False), (2, 8, 8, 8), 20736),  # 2 * 2 * 16 * 36 * 1 * 9
        (nn.ConvTranspose2d(4, 6, 3, stride=2, bias=False), (2, 4, 8, 8), 55296),  # 2 * 2 * 4 * 64 * 6 * 9
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5), 10800),  # 2 * 2 * 4 * 25 * (6 / 2) * 9
        (nn.ConvTranspose1d(4, 6, 4, stride=4), (2, 4, 8), 3072),  # 2 * 2 * 4 * 8 * 6 * 4
    ],
)
def test_each_gradient_costs_one_forward(layer, shape, expected):
    x, with_gradient = rand(*shape), rand(*shape, grad=True)
    assert flops(lambda: layer(x)) == expected
    assert training_flops(lambda: layer(with_gradient)) == 3 * expected
    assert training_flops(lambda: layer(x)) == 2 * expected  # an input that wants none


@pytest.mark.parametrize(
    ("grad", "moved"),
    [
        (True, (4640, 2936)),  # 4 B * (dy 432 + x 512 + w 216), 4 B * (dx 512 + dw 216 + db 6)
        (False, (3776, 888)),  # the first layer's does not read the weight: 4 B * (dy 432 + x 512), (dw 216 + db 6)
    ],
)
def test_backward_bytes(grad, moved):
    layer, x = nn.Conv2d(4, 6, 3), rand(2, 4, 8, 8, grad=grad)
    assert bytes_of(analyse_training(lambda: layer(x)), BACKWARD) == moved


def test_stride_leaves_input_unread():
    layer, x = nn.Conv2d(4, 6, 1, stride=2, bias=False), rand(2, 4, 8, 8)
    found = cost(analyse(lambda: layer(x)), CONVOLUTION)
    assert found.matrix_flops == 1536  # 2 * 2 * 6 * (4 * 4) * 4
    assert found.bytes_read == 608  # 4 B * (2 * 4 * 16, a quarter of the input, + 6 * 4)


def test_unfold_is_movement_only():
    x = rand(1, 4, 8, 8)
    totals = analyse(lambda: nn.functional.unfold(x, 3)).totals
    assert totals.flops == 0
    assert (totals.bytes_read, totals.bytes_written) == (1024, 5184)  # 4 B * 256, 4 B * (4 * 9) * 36
