"""Ops that move bytes more than they compute: pointwise, views, copies, reductions, look-ups, losses, norms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from counting import analyse, analyse_training, bytes_of, cost, moved, rand
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[Tensor, Tensor], Any]

MASK = torch.ones(4, 10, dtype=torch.bool)
OUT, ROW, SHORT, SMALL_TABLE = rand(4, 10), rand(1, 10), rand(2, 10), rand(4, 16)
WORDS, PICKS = torch.arange(15).view(3, 5), torch.zeros(4, 2, dtype=torch.long)
FIRST, PAIR = torch.zeros(3, 5, dtype=torch.long), torch.tensor([0, 1])

MOVED: dict[str, tuple[Step, int, int]] = {
    # bytes read and written; x and y are [4, 10] floats, 160 bytes
    "binary": (lambda x, y: x + y, 320, 160),
    "in place": (lambda x, y: x.add_(y), 320, 160),
    "in place, unary": (lambda x, y: x.relu_(), 160, 160),
    "in place, of a number": (lambda x, y: x.mul_(2), 160, 160),
    "in place on a slice touches only it": (lambda x, y: x[:2].add_(1), 80, 80),
    "the same tensor twice is read once": (lambda x, y: x * x, 160, 160),
    "an expanded operand is read once": (lambda x, y: x + ROW.expand(4, 10), 200, 160),  # 160 + 40
    "broadcast": (lambda x, y: x + ROW, 200, 160),
    "out is only written": (lambda x, y: torch.add(x, y, out=OUT), 320, 160),
    "comparison writes a byte an element": (lambda x, y: x > y, 320, 40),
    "where": (lambda x, y: torch.where(MASK, x, y), 360, 160),  # 40 + 160 + 160
    "clone": (lambda x, y: x.clone(), 160, 160),
    "transposed": (lambda x, y: x.t().contiguous(), 160, 160),
    "transposed and reshaped": (lambda x, y: x.t().reshape(40), 160, 160),
    "what is overwritten is not read": (lambda x, y: x.copy_(y), 160, 160),
    "copy of a row": (lambda x, y: x.copy_(y[0]), 40, 160),
    "to bfloat16": (lambda x, y: x.to(torch.bfloat16), 160, 80),
    "to double": (lambda x, y: x.double(), 160, 320),
    "cat": (lambda x, y: torch.cat([x, SHORT]), 240, 240),
    "stack of the same tensor twice": (lambda x, y: torch.stack([x, x]), 160, 320),
    "zero": (lambda x, y: x.zero_(), 0, 160),
    "fill": (lambda x, y: x.fill_(1), 0, 160),
    "zeros": (lambda x, y: torch.zeros(4, 10), 0, 160),
    "sum": (lambda x, y: x.sum(), 160, 4),
    "mean of rows": (lambda x, y: x.mean(1), 160, 16),
    "maxima of rows": (lambda x, y: x.max(1), 160, 48),  # 4 values of 4 B, 4 indices of 8 B
    "cumulative sum": (lambda x, y: x.cumsum(0), 160, 160),
    "top k": (lambda x, y: x.topk(2), 160, 96),  # 8 values of 4 B, 8 indices of 8 B
    # 4 rows of 64 B, 15 indices of 8 B: each row is read once
    "embedding of a small table": (lambda x, y: functional.embedding(FIRST, SMALL_TABLE), 376, 960),
    "index": (lambda x, y: x[PAIR], 96, 80),  # 2 rows of 40 B + 2 * 8 B
    "gather": (lambda x, y: x.gather(1, PICKS), 96, 32),  # 8 * 4 B + 8 * 8 B
    "dropout": (lambda x, y: functional.dropout(x), 160, 200),  # x; y and a mask of one byte an element
    "dropout in evaluation": (lambda x, y: functional.dropout(x, training=False), 0, 0),
}

VIEWS: tuple[Callable[[Tensor], Any], ...] = (
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
)


def vector_flops(run: Callable[[], Any]) -> int:
    return analyse(run).totals.vector_flops


@pytest.mark.parametrize("name", MOVED)
def test_bytes_moved(name: str) -> None:
    step, read, written = MOVED[name]
    x, y = rand(4, 10), rand(4, 10)
    assert moved(lambda: step(x, y)) == (read, written)


def test_views_move_nothing() -> None:
    x = rand(4, 10)
    assert [moved(lambda view=view: view(x)) for view in VIEWS] == [(0, 0)] * len(VIEWS)


def test_an_element_of_sum_and_add_is_a_flop() -> None:
    x, y = rand(4, 10), rand(4, 10)
    assert (vector_flops(lambda: x + y), vector_flops(x.sum)) == (40, 40)


def test_mixed_precision() -> None:
    x, y = rand(4, 10), rand(4, 10).bfloat16()
    assert moved(lambda: x + y) == (240, 160)  # 160 + 80


CROSS_ENTROPY = partial(functional.cross_entropy, target=torch.zeros(6, dtype=torch.long))
TRAINED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], dict[str, tuple[int, int]], dict[str, int]]] = {
    # the shape of what is trained, bytes read and written by an op, and its vector FLOPs
    "gelu": (functional.gelu, (4, 10), {"aten::gelu_backward": (320, 160)}, {}),  # dy, x; dx
    "dropout": (functional.dropout, (4, 10), {"aten::native_dropout_backward": (200, 160)}, {}),  # gradient and mask
    # of 1000 rows of 64 bytes those that 3 x 5 indices of 8 bytes pick: 15 * 8 + 15 * 64, 15 * 64; a dense gradient
    # writes the whole table: 15 * (64 + 8), 1000 * 64
    "embedding": (
        partial(functional.embedding, WORDS),
        (1000, 16),
        {"aten::embedding": (1080, 960), "aten::embedding_dense_backward": (1080, 64000)},
        {},
    ),
    # 6 rows over 50 classes, 1200 bytes of logits: torch's chain materialises the log-softmax. Target 6 * 8 B, a logit
    # for each row; the loss and the total weight. The loss's gradient 4 B, target 48, total weight 4. 5 * 6 * 50 FLOPs
    "cross entropy": (
        CROSS_ENTROPY,
        (6, 50),
        {
            "aten::_log_softmax": (1200, 1200),
            "aten::nll_loss_forward": (72, 8),
            "aten::nll_loss_backward": (56, 1200),
            "aten::_log_softmax_backward_data": (2400, 1200),
        },
        {"aten::_log_softmax": 1500},
    ),
    "mean squared error": (
        partial(functional.mse_loss, target=OUT),
        (4, 10),
        {"aten::mse_loss": (320, 4), "aten::mse_loss_backward": (324, 160)},  # dy 4 B
        {},
    ),
    "softmax": (
        partial(functional.softmax, dim=-1),
        (4, 10),
        {"aten::_softmax": (160, 160), "aten::_softmax_backward_data": (320, 160)},
        {"aten::_softmax": 200, "aten::_softmax_backward_data": 160},  # 5 * 40, 4 * 40
    ),
    # x 256 + weight and bias 128; y 256 + mean and 1/std 2 * 16. dy 256 + x 256 + mean and 1/std 32 + weight 64, but no
    # bias; dx 256 + dw and db 128. 8 * 64 FLOPs
    "layer norm": (
        nn.LayerNorm(16),
        (4, 16),
        {"aten::native_layer_norm": (384, 288), "aten::native_layer_norm_backward": (608, 384)},
        {"aten::native_layer_norm": 512, "aten::native_layer_norm_backward": 1024},
    ),
    # x 800 + weight and bias 32; y 800 + 2 * 2 groups * 2 rows * 4 B. dy, x, statistics 32, weight 16; dx, dw, db
    "group norm": (
        nn.GroupNorm(2, 4),
        (2, 4, 5, 5),
        {"aten::native_group_norm": (832, 832), "aten::native_group_norm_backward": (1648, 832)},
        {},
    ),
    # dy 256, x 256, 1/rms 16, weight 64; dx 256, dweight 64
    "root mean square norm": (nn.RMSNorm(16), (4, 16), {"aten::_fused_rms_norm_backward": (592, 320)}, {}),
}


@pytest.mark.parametrize("name", TRAINED)
def test_bytes_moved_in_training(name: str) -> None:
    step, shape, moved_by, flops_of = TRAINED[name]
    x = rand(*shape, grad=True)
    analysis = analyse_training(lambda: step(x))
    assert {op: bytes_of(analysis, op) for op in moved_by} == moved_by
    assert {op: cost(analysis, op).vector_flops for op in flops_of} == flops_of
    assert analysis.totals.matrix_flops == 0


def test_exponentials_never_run_at_the_matrix_peak():
    x = rand(4, 10).bfloat16()
    assert analyse(lambda: x.log_softmax(-1)).totals.matrix_flops == 0


def test_sum_of_an_expanded_gradient() -> None:
    x = rand(4, 10, grad=True)
    backward = {g.name: g for g in analyse(lambda: x.sum().backward()).by("direction")}["backward"]
    assert backward.bytes_moved == 164  # a one is read, its expansion is a view; x.grad, 160, is written


class TestNormalizations:
    """Layer norm on [4, 16] (256 bytes), batch norm on [2, 4, 5, 5] (800 bytes, 4 channels)."""

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

    def test_root_mean_square_norm(self):
        layer, x = nn.RMSNorm(16), rand(4, 16)
        assert moved(lambda: layer(x)) == (320, 272)  # x 256 + weight 64; y 256 + 1/rms 16
        assert vector_flops(lambda: layer(x)) == 320  # 5 * 64
