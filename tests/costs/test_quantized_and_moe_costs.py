import pytest
import torch
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st
from recorded_costs import only_cost

from rooflight.costs.families.quantized import active_experts

FP8, FP4 = "float8_e4m3fn", "float4_e2m1fn_x2"


def test_quantized_linear_infers_its_packed_weight():
    c = cost("quantized::linear_dynamic", {"X": spec((4, 64))}, [spec((4, 32))])
    assert (c.matrix_flops, c.matrix_dtype) == (16_384, "int8")
    assert c.bytes_read == 3_072  # 4 * 256 + 64 * 32
    assert c.note


def test_grouped_mm_counts_every_row_once():
    inputs = {"self": spec((12, 16), "bfloat16"), "mat2": spec((4, 16, 8), "bfloat16"), "offs": spec((4,), "int32")}
    c = cost("aten::_grouped_mm", inputs, [spec((12, 8), "bfloat16")])
    assert c.matrix_flops == 3_072  # 2 * 12 * 16 * 8
    assert c.upper
    assert "of G experts alike" in c.note
    # 4 * (1 - 0.75^12) = 3.873 experts of 256 bytes, 384 bytes of rows, 16 of offsets
    assert c.bytes_read == 400 + 991
    assert c.bytes_written == 192


@given(st.integers(1, 256), st.integers(0, 10_000))
def test_active_experts_are_no_more_than_experts_or_rows(experts, rows):
    active = active_experts(experts, rows)
    assert 0 <= active <= min(experts, rows) + 1e-6
    assert active == pytest.approx(1) if rows == 1 else True


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_recurrent_networks_with_packed_weights(dtype):
    network = torch.nn.LSTM(8, 16, 2, bidirectional=True)
    packed = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(network), dtype=dtype)
    x = torch.randn(3, 2, 8)
    c = only_cost(lambda: packed(x), "quantized_lstm")
    # two directions of 4 gates of 16 units: of 8 + 16 inputs and states, then of 32 + 16
    weights = 2 * 64 * 24 + 2 * 64 * 48
    assert weights == sum(each.numel() for each in network.parameters() if each.dim() == 2)
    assert c.matrix_flops == 2 * 6 * weights
    size = 2 if dtype is torch.float16 else 1
    assert (c.matrix_dtype, c.bytes_read) == (
        ("float16" if size == 2 else "int8"),
        192 + 512 + size * weights,
    )  # one zero state for both


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_gru_and_cells_with_packed_weights():
    kinds = {torch.nn.GRU, torch.nn.LSTMCell, torch.nn.RNNCell}
    modules = torch.nn.ModuleList([torch.nn.GRU(8, 16), torch.nn.LSTMCell(8, 16), torch.nn.RNNCell(8, 16)])
    gru, lstm_cell, rnn_cell = torch.ao.quantization.quantize_dynamic(modules, kinds, dtype=torch.qint8)
    x = torch.randn(3, 2, 8)
    assert only_cost(lambda: gru(x), "quantized_gru").matrix_flops == 2 * 6 * 48 * 24
    name = "quantized::quantized_lstm_cell_dynamic"
    assert only_cost(lambda: lstm_cell(x[0]), name).matrix_flops == 2 * 2 * 64 * 24
    name = "quantized::quantized_rnn_tanh_cell_dynamic"
    assert only_cost(lambda: rnn_cell(x[0]), name).matrix_flops == 2 * 2 * 16 * 24


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_packing_reads_and_writes_the_weight():
    weight = torch.quantize_per_tensor(torch.randn(4, 8), 0.1, 0, torch.qint8)
    c = only_cost(lambda: torch.ops.quantized.linear_prepack(weight, torch.zeros(4)), "quantized::linear_prepack")
    assert (c.bytes_read, c.bytes_written) == (32 + 16, 32)


test_costs = costs(
    """
    # int mm runs on int8: 2 * 32 * 16 * 8; 512 + 128; 4 * 256
    _int_mm 32x16:int8 16x8:int8 -> 32x8:int32 = matrix 8192, on int8, read 640, written 1024
    # scaled mm reads its scales: 512 + 128 + 4 * 33
    _scaled_mm self=32x16:float8_e4m3fn mat2=16x8:float8_e4m3fn scale_a=32x1 scale_b=() -> 32x8:bfloat16 = matrix 8192,
        on float8_e4m3fn, read 772, written 512, vector 256, vector_on bfloat16
    # scaled mm v2 takes lists of scales
    _scaled_mm_v2 self=32x16:float8_e4m3fn mat2=16x8:float8_e4m3fn scale_a=32 scale_b=8 -> 32x8:bfloat16 = read 800
    # weight only int4 runs at the activations precision: 32 x 64 weights at 4 bits; 2 * 4 * 64 * 32; 2 per weight; 512
    #   + 1024 + 128
    _weight_int4pack_mm self=4x64:bfloat16 mat2=2x1x32x4:int32 qScaleAndZeros=1x32x2:bfloat16 -> 4x32:bfloat16 |
        qGroupSize=64 = matrix 16384, on bfloat16, vector 4096, read 1664
    # quantize and dequantize
    quantize_per_tensor self=4x6 -> 4x6:qint8 = vector 96, read 96, written 24
    dequantize self=4x6:qint8 -> 4x6 = vector 48, read 24, written 96
    # grouped mm of one token reads one expert: 256 + 32 + 32
    _grouped_mm self=1x16:bfloat16 mat2=8x16x8:bfloat16 offs=8:int32 -> 1x8:bfloat16 = read 320
    # 8 tokens, 2 of 8 experts each: 8 (1 - 0.75^8) = 7.199 of 256 bytes are active; 544 besides
    _grouped_mm self=16x16:bfloat16 mat2=8x16x8:bfloat16 offs=8:int32 -> 16x8:bfloat16 | experts_per_token=2 =
        read 2386, least_read 1056, matrix 4096
    # one token: 2 experts, whichever
    _grouped_mm self=2x16:bfloat16 mat2=8x16x8:bfloat16 offs=8:int32 -> 2x8:bfloat16 | experts_per_token=2 = read 608,
        least_read 608
    # grouped weight gradient contracts the rows: 2 * 16 * 12 * 8
    _grouped_mm self=16x12:bfloat16 mat2=12x8:bfloat16 offs=4:int32 -> 4x16x8:bfloat16 = matrix 3072, written 1024
    # grouped mm on the other side and batched: 2 * 4 * 3 * 16 * 8
    _grouped_mm self=4x16x8:bfloat16 mat2=8x12:bfloat16 offs=4:int32 -> 16x12:bfloat16 = matrix 3072
    _grouped_mm self=4x3x16:bfloat16 mat2=4x16x8:bfloat16 -> 4x3x8:bfloat16 = matrix 3072, upper False
    # packed float4 contracts twice its shape: 2 * 32 * 32 * 8; half a byte each: 512 + 128; a scale byte per 16: 64 +
    #   16
    _scaled_mm self=32x16:float4_e2m1fn_x2 mat2=16x8:float4_e2m1fn_x2 scale_a=32x2:float8_e4m3fn
        scale_b=8x2:float8_e4m3fn -> 32x8:bfloat16 = matrix 16384, on float4_e2m1fn_x2, read 720
    # quantized convolution hides its kernel
    quantized::conv2d qx=1x3x8x8:quint8 -> = uncosted
    # scaled grouped mm
    _scaled_grouped_mm self=12x16:float8_e4m3fn mat2=4x16x8:float8_e4m3fn scale_a=12 scale_b=4x8 offs=4:int32 ->
        12x8:bfloat16 = matrix 3072, on float8_e4m3fn
    """
)
