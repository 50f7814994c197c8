from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st


def conv(x, w, y, **attributes):
    return cost("aten::convolution", {"input": spec(x), "weight": spec(w)}, [spec(y)], **attributes)


@given(*[st.integers(1, 8)] * 5)
def test_a_pointwise_convolution_is_a_matrix_product(batch, channels, features, height, width):
    x, w = (batch, channels, height, width), (features, channels, 1, 1)
    c = conv(x, w, (batch, features, height, width), groups=1, transposed=False)
    assert c.matrix_flops == 2 * batch * height * width * channels * features
    t = conv(x, (channels, features, 1, 1), (batch, features, height, width), transposed=True, groups=1)
    assert t.matrix_flops == c.matrix_flops


test_costs = costs(
    """
    # forward: 2 * B 2 * Cout 4 * 64 * Cin 3 * 9; 4 * (2 * 3 * 64 + 4 * 3 * 9); 4 * 2 * 4 * 64
    convolution input=2x3x8x8 weight=4x3x3x3 -> 2x4x8x8 | groups=1 transposed=False = matrix 27648, read 1968, written
        2048
    # groups come with the weight: 2 * 2 * 4 * 64 * 1 * 9: depthwise
    convolution input=2x4x8x8 weight=4x1x3x3 -> 2x4x8x8 | groups=4 transposed=False = matrix 9216
    # bias is a vector addition: 4 * (48 + 36 + 4)
    convolution input=2x3x8 weight=4x3x3 bias=4 -> 2x4x8 | groups=1 transposed=False = vector 64, read 352
    # transposed counts the input side: 2 * B 2 * Cin 4 * 25 * Cout 8 * 9, not the 4x larger output side
    convolution input=2x4x5x5 weight=4x8x3x3 -> 2x8x11x11 | groups=1 transposed=True stride=(2,2) = matrix 28800
    # transposed by name
    slow_conv_transpose2d 2x4x5x5 4x8x3x3 -> 2x8x11x11 = matrix 28800
    # backward is one forward for each gradient: 27648 each; 4 * (512 + 384 + 108)
    convolution_backward grad_output=2x4x8x8 input=2x3x8x8 weight=4x3x3x3 -> 2x3x8x8 4x3x3x3 |
        output_mask=(True,True,False) transposed=False groups=1 = matrix 55296, read 4016, written 1968
    convolution_backward grad_output=2x4x8x8 input=2x3x8x8 weight=4x3x3x3 -> 4x3x3x3 | output_mask=(False,True,False)
        transposed=False groups=1 = matrix 27648, read 3584, written 432
    convolution_backward grad_output=2x4x8x8 input=2x3x8x8 weight=4x3x3x3 -> 2x3x8x8 | output_mask=(True,False,False)
        transposed=False groups=1 = matrix 27648, read 2480, written 1536
    # strided one by one reads a quarter: 4 * (2 * 4 * 4 + 4 * 2)
    convolution input=1x2x8x8 weight=4x2x1x1 -> 1x4x4x4 | groups=1 transposed=False stride=(2,2) = read 160
    # grouped backward is two forwards too: 2 * 9216, where torch's counter has 17 times the forward; the bias gradient
    #   adds up dy
    convolution_backward grad_output=2x4x8x8 input=2x4x8x8 weight=4x1x3x3 -> 2x4x8x8 4x1x3x3 4 |
        output_mask=(True,True,True) transposed=False groups=4 = matrix 18432, vector 512
    # fused relu and addend
    cudnn_convolution_relu self=2x3x8 weight=4x3x3 bias=4 -> 2x4x8 = vector 128
    cudnn_convolution_add_relu self=2x3x8 weight=4x3x3 z=2x4x8 bias=4 -> 2x4x8 = vector 192
    # time batch channel: 2 * 40 * 3 * 3
    conv_tbc 7x2x3 3x3x4 4 -> 5x2x4 = matrix 720
    conv_tbc_backward 5x2x4 7x2x3 3x3x4 4 -> 7x2x3 3x3x4 4 = matrix 1440
    """
)
