"""A larger computation than its result needs: each rule on a program that has it, and on the mended one."""

from __future__ import annotations

import pytest
import torch
from findings_of import findings_of as found
from torch import nn


def test_products_in_the_order_that_computes_more() -> None:
    q, k, v = (torch.randn(2, 512, 32) for _ in range(3))
    assert "product-order" in found(lambda: torch.bmm(torch.bmm(q, k.transpose(1, 2)), v))
    assert "product-order" in found(lambda: torch.einsum("bts,bse->bte", torch.einsum("btd,bsd->bts", q, k), v))
    assert "product-order" in found(lambda: v[0].T @ (k[0] @ q[0].T))
    assert "product-order" not in found(lambda: torch.bmm(q, torch.bmm(k.transpose(1, 2), v)))
    assert "product-order" not in found(lambda: torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v))


def test_a_result_that_others_read_stays() -> None:
    q, k, v = (torch.randn(2, 512, 32) for _ in range(3))

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.bmm(q, k.transpose(1, 2))
        return torch.bmm(scores, v), scores.relu()

    assert "product-order" not in found(step)


@pytest.mark.parametrize("dims", [1, 2])
def test_complex_transforms_of_real_numbers(dims: int) -> None:
    x, last = torch.randn(8, 64, 64), tuple(range(-dims, 0))
    assert "real-fft" in found(lambda: torch.fft.ifftn(torch.fft.fftn(x.to(torch.complex64), dim=last), dim=last).real)
    assert "real-fft" in found(lambda: torch.fft.ifftn(torch.fft.fftn(x, dim=last), dim=last).real)
    assert "real-fft" not in found(lambda: torch.fft.irfftn(torch.fft.rfftn(x, dim=last), s=x.shape[-dims:], dim=last))
    z = torch.randn(8, 64, 64, dtype=torch.complex64)
    assert "real-fft" not in found(lambda: torch.fft.fftn(z, dim=last))


def test_decompositions_of_gradients_and_not_of_data() -> None:
    net, x = nn.Linear(64, 64), torch.randn(8, 64)

    def step(of_gradient: bool) -> None:
        net.zero_grad()
        net(x).sum().backward()
        with torch.no_grad():
            torch.linalg.svd(net.weight.grad if of_gradient else x)

    assert "decompositions" in found(lambda: step(True))
    assert "decompositions" not in found(lambda: step(False))


def test_dropout_without_a_backward_pass() -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64)), torch.randn(512, 64)

    def step(mode: bool) -> torch.Tensor:
        net.train(mode)
        with torch.no_grad():
            return net(x)

    assert "training-mode" in found(lambda: step(True))
    assert "training-mode" not in found(lambda: step(False))
    net.train()
    assert "training-mode" not in found(lambda: net(x).sum().backward())


def test_filters_so_long_that_transforms_do_less() -> None:
    x = torch.randn(2, 4, 4096)
    long, short = nn.Conv1d(4, 4, 512, padding=256), nn.Conv1d(4, 4, 7)
    assert "long-filter" in found(lambda: long(x))
    assert "long-filter" not in found(lambda: short(x))


def test_a_sort_for_a_few_values_and_a_sort_of_which_all_is_read() -> None:
    x = torch.randn(64, 4096)
    assert "sorted" in found(lambda: x.sort(-1).values[:, -1].mul(2))
    assert "sorted" in found(lambda: x.sort(-1, descending=True).values[:, :8] * 2)
    assert "sorted" not in found(lambda: x.sort(-1).values.mul(2))
    assert "sorted" not in found(lambda: x.topk(8).values * 2)


def test_elements_that_are_picked_and_put_back() -> None:
    x = torch.randn(256, 256)

    def puts_back() -> torch.Tensor:
        out = x * 1
        mask = out > 0
        out[mask] = out[mask].sqrt()
        return out.sum()

    assert "picked-and-put-back" in found(puts_back)
    assert "picked-and-put-back" not in found(lambda: torch.where(x > 0, x.abs().sqrt(), x).sum())
    assert "picked-and-put-back" not in found(lambda: (x * 1)[x > 0] * 2)


def test_pairs_that_are_only_reduced_and_pairs_that_are_used() -> None:
    a, b = torch.randn(2048), torch.randn(1024)
    assert "all-pairs" in found(lambda: (a[:, None] > b[None, :]).float().mean())
    assert "all-pairs" in found(lambda: ((a[:, None] - b[None, :]) ** 2).sum(1))
    assert "all-pairs" not in found(lambda: (-((a[:, None] - b[None, :]) ** 2)).exp() @ b)
    assert "all-pairs" not in found(lambda: (a[:1000] - b[:1000]).abs().mean())


def test_gradients_that_are_computed_again_and_again() -> None:
    trunk, heads = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), [nn.Linear(64, 4) for _ in range(5)]
    x = torch.randn(32, 64)

    def one_by_one() -> None:
        y = trunk(x)
        for head in heads:
            head(y).square().sum().backward(retain_graph=True)

    def together() -> None:
        y = trunk(x)
        sum(head(y).square().sum() for head in heads).backward()

    def in_turns() -> None:
        for _ in range(4):
            heads[0](trunk(x)).square().sum().backward()

    assert "many-backwards" in found(one_by_one)
    assert "many-backwards" not in found(together)
    assert "many-backwards" not in found(in_turns)


def test_a_product_of_which_the_diagonal_is_read() -> None:
    x = torch.randn(512, 64)
    assert "unread" in found(lambda: (x @ x.T).diagonal().sqrt())
    assert "unread" not in found(lambda: (x @ x.T) * 2)
