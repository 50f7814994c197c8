import pytest
from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st


def conv(x, w, y, **attributes):
    return cost("aten::convolution", {"input": spec(x), "weight": spec(w)}, [spec(y)], **attributes)


def test_forward():
    c = conv((2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 8, 8), groups=1, transposed=False)
    assert c.matrix_flops == 27_648  # 2 * B 2 * Cout 4 * 64 * Cin 3 * 9
    assert c.bytes_read == 1_968  # 4 * (2 * 3 * 64 + 4 * 3 * 9)
    assert c.bytes_written == 2_048  # 4 * 2 * 4 * 64


def test_groups_come_with_the_weight():
    c = conv((2, 4, 8, 8), (4, 1, 3, 3), (2, 4, 8, 8), groups=4, transposed=False)
    assert c.matrix_flops == 9_216  # 2 * 2 * 4 * 64 * 1 * 9: depthwise


def test_bias_is_a_vector_addition():
    inputs = {"input": spec((2, 3, 8)), "weight": spec((4, 3, 3)), "bias": spec((4,))}
    c = cost("aten::convolution", inputs, [spec((2, 4, 8))], groups=1, transposed=False)
    assert c.vector_flops == 64
    assert c.bytes_read == 352  # 4 * (48 + 36 + 4)


def test_transposed_counts_the_input_side():
    c = conv((2, 4, 5, 5), (4, 8, 3, 3), (2, 8, 11, 11), groups=1, transposed=True, stride=(2, 2))
    assert c.matrix_flops == 28_800  # 2 * B 2 * Cin 4 * 25 * Cout 8 * 9, not the 4x larger output side


def test_transposed_by_name():
    c = cost("aten::slow_conv_transpose2d", [spec((2, 4, 5, 5)), spec((4, 8, 3, 3))], [spec((2, 8, 11, 11))])
    assert c.matrix_flops == 28_800


def test_strided_one_by_one_reads_a_quarter():
    c = conv((1, 2, 8, 8), (4, 2, 1, 1), (1, 4, 4, 4), groups=1, transposed=False, stride=(2, 2))
    assert c.bytes_read == 160  # 4 * (2 * 4 * 4 + 4 * 2)


@pytest.mark.parametrize(
    ("mask", "worth", "read", "written"),
    [
        ((True, True, False), 2, 4 * (512 + 384 + 108), 4 * (384 + 108)),
        ((False, True, False), 1, 4 * (512 + 384), 4 * 108),
        ((True, False, False), 1, 4 * (512 + 108), 4 * 384),
    ],
)
def test_backward_is_one_forward_for_each_gradient(mask, worth, read, written):
    x, w, y = spec((2, 3, 8, 8)), spec((4, 3, 3, 3)), spec((2, 4, 8, 8))
    outputs = [t for t, wanted in zip((x, w), mask, strict=False) if wanted]
    c = cost(
        "aten::convolution_backward",
        {"grad_output": y, "input": x, "weight": w},
        outputs,
        output_mask=mask,
        transposed=False,
        groups=1,
    )
    assert c.matrix_flops == worth * 27_648
    assert (c.bytes_read, c.bytes_written) == (read, written)


def test_grouped_backward_is_two_forwards_too():
    x, w, y = spec((2, 4, 8, 8)), spec((4, 1, 3, 3)), spec((2, 4, 8, 8))
    c = cost(
        "aten::convolution_backward",
        {"grad_output": y, "input": x, "weight": w},
        [x, w, spec((4,))],
        output_mask=(True, True, True),
        transposed=False,
        groups=4,
    )
    assert c.matrix_flops == 18_432  # 2 * 9216, where torch's counter has 17 times the forward
    assert c.vector_flops == 512  # the bias gradient adds up dy


def test_fused_relu_and_addend():
    x, w, y = spec((2, 3, 8)), spec((4, 3, 3)), spec((2, 4, 8))
    assert cost("aten::cudnn_convolution_relu", {"self": x, "weight": w, "bias": spec((4,))}, [y]).vector_flops == 128
    inputs = {"self": x, "weight": w, "z": y, "bias": spec((4,))}
    assert cost("aten::cudnn_convolution_add_relu", inputs, [y]).vector_flops == 192


def test_time_batch_channel():
    x, w, y = spec((7, 2, 3)), spec((3, 3, 4)), spec((5, 2, 4))
    assert cost("aten::conv_tbc", [x, w, spec((4,))], [y]).matrix_flops == 720  # 2 * 40 * 3 * 3
    assert cost("aten::conv_tbc_backward", [y, x, w, spec((4,))], [x, w, spec((4,))]).matrix_flops == 1_440


@given(*[st.integers(1, 8)] * 5)
def test_a_pointwise_convolution_is_a_matrix_product(batch, channels, features, height, width):
    x, w = (batch, channels, height, width), (features, channels, 1, 1)
    c = conv(x, w, (batch, features, height, width), groups=1, transposed=False)
    assert c.matrix_flops == 2 * batch * height * width * channels * features
    t = conv(x, (channels, features, 1, 1), (batch, features, height, width), transposed=True, groups=1)
    assert t.matrix_flops == c.matrix_flops
