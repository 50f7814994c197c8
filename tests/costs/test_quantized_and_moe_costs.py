import pytest
import torch
from builders import cost, op, spec
from hypothesis import given
from hypothesis import strategies as st
from recorded_costs import only_cost

from rooflight.costs.cost import Uncosted
from rooflight.costs.families.quantized import active_experts
from rooflight.costs.registry import cost_of

FP8, FP4 = "float8_e4m3fn", "float4_e2m1fn_x2"


def test_int_mm_runs_on_int8():
    c = cost("aten::_int_mm", [spec((32, 16), "int8"), spec((16, 8), "int8")], [spec((32, 8), "int32")])
    assert c.matrix_flops == 8_192  # 2 * 32 * 16 * 8
    assert c.matrix_dtype == "int8"
    assert (c.bytes_read, c.bytes_written) == (640, 1_024)  # 512 + 128; 4 * 256


def test_scaled_mm_reads_its_scales():
    inputs = {"self": spec((32, 16), FP8), "mat2": spec((16, 8), FP8), "scale_a": spec((32, 1)), "scale_b": spec(())}
    c = cost("aten::_scaled_mm", inputs, [spec((32, 8), "bfloat16")])
    assert (c.matrix_flops, c.matrix_dtype) == (8_192, FP8)
    assert c.bytes_read == 772  # 512 + 128 + 4 * 33
    assert c.bytes_written == 512
    assert (c.vector_flops, c.vector_dtype) == (256, "bfloat16")


def test_packed_float4_contracts_twice_its_shape():
    inputs = {"self": spec((32, 16), FP4), "mat2": spec((16, 8), FP4)}
    inputs |= {"scale_a": spec((32, 2), FP8), "scale_b": spec((8, 2), FP8)}
    c = cost("aten::_scaled_mm", inputs, [spec((32, 8), "bfloat16")])
    assert (c.matrix_flops, c.matrix_dtype) == (16_384, FP4)  # 2 * 32 * 32 * 8
    assert c.bytes_read == 720  # half a byte each: 512 + 128; a scale byte per 16: 64 + 16


def test_scaled_mm_v2_takes_lists_of_scales():
    inputs = {
        "self": spec((32, 16), FP8),
        "mat2": spec((16, 8), FP8),
        "scale_a": [spec((32,))],
        "scale_b": [spec((8,))],
    }
    assert cost("aten::_scaled_mm_v2", inputs, [spec((32, 8), "bfloat16")]).bytes_read == 800


def test_weight_only_int4_runs_at_the_activations_precision():
    x, packed = spec((4, 64), "bfloat16"), spec((2, 1, 32, 4), "int32")  # 32 x 64 weights at 4 bits
    inputs = {"self": x, "mat2": packed, "qScaleAndZeros": spec((1, 32, 2), "bfloat16")}
    c = cost("aten::_weight_int4pack_mm", inputs, [spec((4, 32), "bfloat16")], qGroupSize=64)
    assert (c.matrix_flops, c.matrix_dtype) == (16_384, "bfloat16")  # 2 * 4 * 64 * 32
    assert c.vector_flops == 4_096  # 2 per weight
    assert c.bytes_read == 1_664  # 512 + 1024 + 128


def test_quantized_linear_infers_its_packed_weight():
    c = cost("quantized::linear_dynamic", {"X": spec((4, 64))}, [spec((4, 32))])
    assert (c.matrix_flops, c.matrix_dtype) == (16_384, "int8")
    assert c.bytes_read == 3_072  # 4 * 256 + 64 * 32
    assert c.note


def test_quantized_convolution_hides_its_kernel():
    assert isinstance(cost_of(op("quantized::conv2d", {"qx": spec((1, 3, 8, 8), "quint8")})), Uncosted)


def test_quantize_and_dequantize():
    q = cost("aten::quantize_per_tensor", {"self": spec((4, 6))}, [spec((4, 6), "qint8")])
    assert (q.vector_flops, q.bytes_read, q.bytes_written) == (96, 96, 24)
    d = cost("aten::dequantize", {"self": spec((4, 6), "qint8")}, [spec((4, 6))])
    assert (d.vector_flops, d.bytes_read, d.bytes_written) == (48, 24, 96)


def test_grouped_mm_counts_every_row_once():
    inputs = {"self": spec((12, 16), "bfloat16"), "mat2": spec((4, 16, 8), "bfloat16"), "offs": spec((4,), "int32")}
    c = cost("aten::_grouped_mm", inputs, [spec((12, 8), "bfloat16")])
    assert c.matrix_flops == 3_072  # 2 * 12 * 16 * 8
    assert c.upper
    assert "balanced" in c.note
    # 4 * (1 - 0.75^12) = 3.873 experts of 256 bytes, 384 bytes of rows, 16 of offsets
    assert c.bytes_read == 400 + 991
    assert c.bytes_written == 192


def test_grouped_mm_of_one_token_reads_one_expert():
    inputs = {"self": spec((1, 16), "bfloat16"), "mat2": spec((8, 16, 8), "bfloat16"), "offs": spec((8,), "int32")}
    assert cost("aten::_grouped_mm", inputs, [spec((1, 8), "bfloat16")]).bytes_read == 320  # 256 + 32 + 32


def test_grouped_weight_gradient_contracts_the_rows():
    inputs = {"self": spec((16, 12), "bfloat16"), "mat2": spec((12, 8), "bfloat16"), "offs": spec((4,), "int32")}
    c = cost("aten::_grouped_mm", inputs, [spec((4, 16, 8), "bfloat16")])
    assert c.matrix_flops == 3_072  # 2 * 16 * 12 * 8
    assert c.bytes_written == 1_024


def test_grouped_mm_on_the_other_side_and_batched():
    inputs = {"self": spec((4, 16, 8), "bfloat16"), "mat2": spec((8, 12), "bfloat16"), "offs": spec((4,), "int32")}
    assert cost("aten::_grouped_mm", inputs, [spec((16, 12), "bfloat16")]).matrix_flops == 3_072
    inputs = {"self": spec((4, 3, 16), "bfloat16"), "mat2": spec((4, 16, 8), "bfloat16")}
    c = cost("aten::_grouped_mm", inputs, [spec((4, 3, 8), "bfloat16")])
    assert c.matrix_flops == 3_072  # 2 * 4 * 3 * 16 * 8
    assert not c.upper


def test_scaled_grouped_mm():
    inputs = {"self": spec((12, 16), FP8), "mat2": spec((4, 16, 8), FP8)}
    inputs |= {"scale_a": spec((12,)), "scale_b": spec((4, 8)), "offs": spec((4,), "int32")}
    c = cost("aten::_scaled_grouped_mm", inputs, [spec((12, 8), "bfloat16")])
    assert (c.matrix_flops, c.matrix_dtype) == (3_072, FP8)


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
