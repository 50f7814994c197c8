"""Products of narrow numbers and of groups, recorded from real calls."""

from __future__ import annotations

import pytest
import torch
from counting import analyse, analyse_training, cost, rand
from torch import nn


def test_int_mm():
    a, b = torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
    found = cost(analyse(lambda: torch._int_mm(a, b)), "aten::_int_mm")
    assert found.matrix_flops == 8192  # 2 * 32 * 8 * 16
    assert found.matrix_dtype == "int8"
    assert (found.bytes_read, found.bytes_written) == (640, 1024)  # 32 * 16 + 16 * 8, 4 B * 32 * 8


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("scales", "scale_bytes"), [("tensor", 8), ("row", 192)])
def test_scaled_mm(device, scales, scale_bytes):
    a = rand(32, 64).to(torch.float8_e4m3fn).to(device)
    b = rand(16, 64).to(torch.float8_e4m3fn).t().to(device)
    shapes = ((), ()) if scales == "tensor" else ((32, 1), (1, 16))
    scale_a, scale_b = (torch.ones(shape, device=device) for shape in shapes)
    analysis = analyse(lambda: torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16))
    found = cost(analysis, "aten::_scaled_mm")
    assert found.matrix_flops == 65536  # 2 * 32 * 16 * 64
    assert found.matrix_dtype == "float8_e4m3fn"
    assert found.bytes_read == 3072 + scale_bytes  # 1 B * (32 * 64 + 64 * 16), scales 4 B * 2 or 4 B * (32 + 16)
    assert found.bytes_written == 1024  # 2 B * 32 * 16


class TestGroupedMm:
    """24 rows of 16 to 32 features by 4 experts, bfloat16: an expert's weight has 16 * 32 * 2 B = 1024 bytes."""

    @staticmethod
    def offsets(*ends: int) -> torch.Tensor:
        return torch.tensor(ends, dtype=torch.int32)

    def test_forward(self):
        x, w = rand(24, 16, dtype=torch.bfloat16), rand(4, 16, 32, dtype=torch.bfloat16)
        offsets = self.offsets(6, 12, 18, 24)
        found = cost(analyse(lambda: nn.functional.grouped_mm(x, w, offs=offsets)), "aten::_grouped_mm")
        assert found.matrix_flops == 24576  # 2 * 24 * 16 * 32, however the rows are routed
        # x 768, offsets 16, and 4 * (1 - (3 / 4) ** 24) = 3.996 experts expected active
        assert found.bytes_read == 768 + 16 + 4091
        assert found.bytes_written == 1536  # 2 B * 24 * 32
        assert found.upper

    def test_one_row_reads_one_expert(self):
        x, w = rand(1, 16, dtype=torch.bfloat16), rand(4, 16, 32, dtype=torch.bfloat16)
        offsets = self.offsets(0, 0, 1, 1)
        found = cost(analyse(lambda: nn.functional.grouped_mm(x, w, offs=offsets)), "aten::_grouped_mm")
        assert found.matrix_flops == 1024  # 2 * 16 * 32
        assert found.bytes_read == 32 + 16 + 1024

    def test_backward(self):
        x = rand(24, 16, dtype=torch.bfloat16, grad=True)
        w = rand(4, 16, 32, dtype=torch.bfloat16, grad=True)
        offsets = self.offsets(6, 12, 18, 24)
        analysis = analyse_training(lambda: nn.functional.grouped_mm(x, w, offs=offsets))
        assert analysis.totals.matrix_flops == 73728  # 3 * 24576


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamically_quantized_linear():
    layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(16, 32)), {nn.Linear}, dtype=torch.qint8)
    x = rand(4, 16)
    analysis = analyse(lambda: layer(x))
    assert analysis.totals.matrix_flops == 4096  # 2 * 4 * 16 * 32
    assert cost(analysis, "quantized::linear_dynamic").matrix_dtype == "int8"
