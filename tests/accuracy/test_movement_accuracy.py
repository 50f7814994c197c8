"""Ops that move bytes more than they compute: pointwise, views, copies, reductions, look-ups, losses, normalizations.

x and y are [4, 10] floats, 160 bytes.
"""

from __future__ import annotations

import pytest
import torch
from counting import analyse, analyse_training, bytes_of, cost, moved, rand
from torch import nn
from torch.nn import functional


def vector_flops(run) -> int:
    return analyse(run).totals.vector_flops


class TestPointwise:
    def test_binary(self):
        x, y = rand(4, 10), rand(4, 10)
        assert moved(lambda: x + y) == (320, 160)
        assert vector_flops(lambda: x + y) == 40

    def test_in_place_reads_and_writes(self):
        x, y = rand(4, 10), rand(4, 10)
        assert moved(lambda: x.add_(y)) == (320, 160)
        assert moved(x.relu_) == (160, 160)
        assert moved(lambda: x.mul_(2)) == (160, 160)

    def test_in_place_on_a_slice_touches_only_it(self):
        x = rand(4, 10)
        assert moved(lambda: x[:2].add_(1)) == (80, 80)

    def test_same_tensor_twice_is_read_once(self):
        x = rand(4, 10)
        assert moved(lambda: x * x) == (160, 160)

    def test_expanded_operand_is_read_once(self):
        x, y = rand(4, 10), rand(1, 10)
        assert moved(lambda: x + y.expand(4, 10)) == (200, 160)  # 160 + 40
        assert moved(lambda: x + y) == (200, 160)  # broadcast

    def test_out_is_only_written(self):
        x, y, out = rand(4, 10), rand(4, 10), rand(4, 10)
        assert moved(lambda: torch.add(x, y, out=out)) == (320, 160)

    def test_comparison_writes_a_byte_an_element(self):
        x, y = rand(4, 10), rand(4, 10)
        assert moved(lambda: x > y) == (320, 40)

    def test_where(self):
        x, y, mask = rand(4, 10), rand(4, 10), torch.ones(4, 10, dtype=torch.bool)
        assert moved(lambda: torch.where(mask, x, y)) == (360, 160)  # 40 + 160 + 160

    def test_mixed_precision(self):
        x, y = rand(4, 10), rand(4, 10).bfloat16()
        assert moved(lambda: x + y) == (240, 160)  # 160 + 80

    def test_gelu_backward(self):
        x = rand(4, 10, grad=True)
        analysis = analyse_training(lambda: functional.gelu(x))
        assert bytes_of(analysis, "aten::gelu_backward") == (320, 160)  # dy, x; dx


class TestViewsAndCopies:
    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x.view(40),
            lambda x: x.reshape(10, 4),
            lambda x: x.t(),
            lambda x: x[1:3],
            lambda x: x[:, 2],
            lambda x: x.expand(3, 4, 10),
            lambda x: x.unsqueeze(0).squeeze(0),
            lambda x: x.split(2),
            lambda x: x.detach(),
            lambda x: x.contiguous(),
            lambda x: x.to(torch.float32),
            lambda x: x.permute(1, 0).unflatten(0, (2, 5)),
            torch.empty_like,
        ],
    )
    def test_views_move_nothing(self, view):
        x = rand(4, 10)
        assert moved(lambda: view(x)) == (0, 0)

    def test_copies(self):
        x, y = rand(4, 10), rand(4, 10)
        assert moved(x.clone) == (160, 160)
        assert moved(lambda: x.t().contiguous()) == (160, 160)
        assert moved(lambda: x.t().reshape(40)) == (160, 160)
        assert moved(lambda: x.copy_(y)) == (160, 160)  # what is overwritten is not read
        assert moved(lambda: x.copy_(y[0])) == (40, 160)

    def test_conversion(self):
        x = rand(4, 10)
        assert moved(lambda: x.to(torch.bfloat16)) == (160, 80)
        assert moved(x.double) == (160, 320)

    def test_concatenation(self):
        x, y = rand(4, 10), rand(2, 10)
        assert moved(lambda: torch.cat([x, y])) == (240, 240)
        assert moved(lambda: torch.stack([x, x])) == (160, 320)  # the same tensor twice

    def test_fills_read_nothing(self):
        x = rand(4, 10)
        assert moved(x.zero_) == (0, 160)
        assert moved(lambda: x.fill_(1)) == (0, 160)
        assert moved(lambda: torch.zeros(4, 10)) == (0, 160)


class TestReductions:
    def test_whole(self):
        x = rand(4, 10)
        assert moved(x.sum) == (160, 4)
        assert vector_flops(x.sum) == 40

    def test_along_a_dimension(self):
        x = rand(4, 10)
        assert moved(lambda: x.mean(1)) == (160, 16)
        assert moved(lambda: x.max(1)) == (160, 48)  # 4 values of 4 B, 4 indices of 8 B

    def test_of_an_expanded_gradient(self):
        x = rand(4, 10, grad=True)
        backward = {g.name: g for g in analyse(lambda: x.sum().backward()).by("direction")}["backward"]
        assert backward.bytes_moved == 164  # a one is read, its expansion is a view; x.grad, 160, is written

    def test_cumulative_sum(self):
        x = rand(4, 10)
        assert moved(lambda: x.cumsum(0)) == (160, 160)

    def test_top_k(self):
        x = rand(4, 10)
        assert moved(lambda: x.topk(2)) == (160, 96)  # 8 values of 4 B, 8 indices of 8 B


class TestLookUps:
    """A table of 1000 rows of 16 floats, 64 bytes a row; 3 x 5 indices of 8 bytes."""

    def test_embedding_reads_the_rows_it_picks(self):
        table, indices = rand(1000, 16), torch.arange(15).view(3, 5)
        analysis = analyse(lambda: functional.embedding(indices, table))
        assert bytes_of(analysis, "aten::embedding") == (1080, 960)  # 15 * 8 + 15 * 64, 15 * 64
        assert analysis.totals.flops == 0

    def test_embedding_of_a_small_table_reads_each_row_once(self):
        table, indices = rand(4, 16), torch.zeros(3, 5, dtype=torch.long)
        assert moved(lambda: functional.embedding(indices, table)) == (376, 960)  # 15 * 8 + 4 * 64

    def test_dense_gradient_writes_the_whole_table(self):
        table, indices = rand(1000, 16, grad=True), torch.arange(15).view(3, 5)
        analysis = analyse_training(lambda: functional.embedding(indices, table))
        assert bytes_of(analysis, "aten::embedding_dense_backward") == (1080, 64000)  # 15 * (64 + 8), 1000 * 64

    def test_index(self):
        x, rows = rand(4, 10), torch.tensor([0, 1])
        assert moved(lambda: x[rows]) == (96, 80)  # 2 rows of 40 B + 2 * 8 B

    def test_gather(self):
        x, picks = rand(4, 10), torch.zeros(4, 2, dtype=torch.long)
        assert moved(lambda: x.gather(1, picks)) == (96, 32)  # 8 * 4 B + 8 * 8 B


class TestLosses:
    def test_cross_entropy(self):
        """6 rows over 50 classes, 1200 bytes of logits: torch's chain materialises the log-softmax."""
        logits, target = rand(6, 50, grad=True), torch.zeros(6, dtype=torch.long)
        analysis = analyse(lambda: functional.cross_entropy(logits, target).backward())
        assert bytes_of(analysis, "aten::_log_softmax") == (1200, 1200)
        # target 6 * 8 B, one logit a row; the loss and the total weight
        assert bytes_of(analysis, "aten::nll_loss_forward") == (72, 8)
        # the loss's gradient 4 B, target 48, total weight 4
        assert bytes_of(analysis, "aten::nll_loss_backward") == (56, 1200)
        assert bytes_of(analysis, "aten::_log_softmax_backward_data") == (2400, 1200)
        assert analysis.totals.matrix_flops == 0
        assert cost(analysis, "aten::_log_softmax").vector_flops == 1500  # 5 * 6 * 50

    def test_mean_squared_error(self):
        x, y = rand(4, 10, grad=True), rand(4, 10)
        analysis = analyse(lambda: functional.mse_loss(x, y).backward())
        assert bytes_of(analysis, "aten::mse_loss") == (320, 4)
        assert bytes_of(analysis, "aten::mse_loss_backward") == (324, 160)  # dy 4 B


class TestSoftmax:
    def test_forward_and_backward(self):
        x = rand(4, 10, grad=True)
        analysis = analyse_training(lambda: x.softmax(-1))
        assert bytes_of(analysis, "aten::_softmax") == (160, 160)
        assert bytes_of(analysis, "aten::_softmax_backward_data") == (320, 160)
        assert cost(analysis, "aten::_softmax").vector_flops == 200  # 5 * 40
        assert cost(analysis, "aten::_softmax_backward_data").vector_flops == 160  # 4 * 40

    def test_exponentials_never_run_at_the_matrix_peak(self):
        x = rand(4, 10).bfloat16()
        assert analyse(lambda: x.log_softmax(-1)).totals.matrix_flops == 0


class TestNormalizations:
    """Layer norm on [4, 16] (256 bytes), group and batch norm on [2, 4, 5, 5] (800 bytes, 4 channels)."""

    def test_layer_norm(self):
        layer, x = nn.LayerNorm(16), rand(4, 16, grad=True)
        analysis = analyse_training(lambda: layer(x))
        # x 256 + weight and bias 128; y 256 + mean and 1/std 2 * 16
        assert bytes_of(analysis, "aten::native_layer_norm") == (384, 288)
        # dy 256 + x 256 + mean and 1/std 32 + weight 64, not the bias; dx 256 + dw and db 128
        assert bytes_of(analysis, "aten::native_layer_norm_backward") == (608, 384)
        assert cost(analysis, "aten::native_layer_norm").vector_flops == 512  # 8 * 64
        assert cost(analysis, "aten::native_layer_norm_backward").vector_flops == 1024

    def test_layer_norm_in_place_of_statistics_under_no_grad(self):
        layer, x = nn.LayerNorm(16), rand(4, 16)
        assert analyse(lambda: layer(x)).totals.bytes_read == 384

    def test_group_norm(self):
        layer, x = nn.GroupNorm(2, 4), rand(2, 4, 5, 5, grad=True)
        analysis = analyse_training(lambda: layer(x))
        # x 800 + weight and bias 32; y 800 + 2 * 2 groups * 2 rows * 4 B
        assert bytes_of(analysis, "aten::native_group_norm") == (832, 832)
        # dy, x, statistics 32, weight 16; dx, dw, db
        assert bytes_of(analysis, "aten::native_group_norm_backward") == (1648, 832)

    def test_batch_norm(self):
        layer, x = nn.BatchNorm2d(4), rand(2, 4, 5, 5, grad=True)
        with torch.no_grad():
            gradient = torch.ones_like(layer(x))
        analysis = analyse(lambda: layer(x).backward(gradient))
        forward = {group.name: group for group in analysis.by("direction")}["forward"]
        # x 800 + weight, bias, running mean and variance 64 read; y 800 + saved 32 + running 32 written; a count of
        # batches, 8 bytes, read and written
        assert forward.bytes_moved == 864 + 864 + 16
        assert forward.vector_flops == 1601  # 8 * 200, and the count
        # dy, x, weight 16, saved 32; dx, dw, db
        assert bytes_of(analysis, "aten::native_batch_norm_backward") == (1648, 832)

    def test_batch_norm_in_evaluation(self):
        layer, x = nn.BatchNorm2d(4).eval(), rand(2, 4, 5, 5)
        assert moved(lambda: layer(x)) == (864, 800)  # statistics fixed: not written
        assert vector_flops(lambda: layer(x)) == 800  # 4 * 200

    def test_root_mean_square_norm_flops(self):
        layer, x = nn.RMSNorm(16), rand(4, 16)
        assert vector_flops(lambda: layer(x)) == 320  # 5 * 64

    def test_root_mean_square_norm_is_one_op(self):
        layer, x = nn.RMSNorm(16), rand(4, 16)
        assert moved(lambda: layer(x)) == (320, 272)  # x 256 + weight 64; y 256 + 1/rms 16

    def test_root_mean_square_norm_backward_is_one_op(self):
        layer, x = nn.RMSNorm(16), rand(4, 16, grad=True)
        analysis = analyse(lambda: layer(x).sum().backward())
        # dy 256, x 256, 1/rms 16, weight 64; dx 256, dweight 64
        assert bytes_of(analysis, "aten::_fused_rms_norm_backward") == (592, 320)


class TestDropout:
    def test_is_one_op(self):
        x = rand(4, 10, grad=True)
        assert moved(lambda: functional.dropout(x)) == (160, 200)  # x; y and a mask of one byte an element

    def test_backward_reads_gradient_and_mask(self):
        x = rand(4, 10, grad=True)
        analysis = analyse(lambda: functional.dropout(x).sum().backward())
        assert bytes_of(analysis, "aten::native_dropout_backward") == (200, 160)

    def test_in_evaluation_moves_nothing(self):
        x = rand(4, 10)
        assert moved(lambda: functional.dropout(x, training=False)) == (0, 0)
