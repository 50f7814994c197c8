"""Advice that would change results is not given, and what is advised works with what the program has."""

from __future__ import annotations

import torch
from findings_of import findings_of
from torch import nn
from torch.nn.functional import dropout as drop


def test_what_the_step_writes_into_is_made_anew() -> None:
    rows, points = torch.randint(0, 256, (64,)), torch.randn(64, 512)

    def scatters() -> torch.Tensor:
        grid = torch.zeros(256, 512)
        grid.index_add_(0, rows, points)
        return grid.sum()

    def in_a_view() -> torch.Tensor:
        grid = torch.zeros(256, 512)
        grid[:64].copy_(points)
        return grid.sum()

    def masks() -> torch.Tensor:
        return (points * torch.ones(512, 512).tril()[:64]).sum()

    assert "constant-work" not in findings_of(scatters)
    assert "constant-work" not in findings_of(in_a_view)
    assert "constant-work" in findings_of(masks)


def test_an_average_that_the_next_step_reads_is_read() -> None:
    net = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    average = {name: each.detach().clone() for name, each in net.named_parameters()}
    seen: list[torch.Tensor] = []
    x = torch.randn(2, 256)

    def step() -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        for name, each in net.named_parameters():
            average[name] = average[name] * 0.99 + each.detach() * 0.01

    def with_statistics() -> None:
        step()
        seen.append((net.weight.detach() * 2).abs())

    assert "unread" not in findings_of(step)
    assert "unread" in findings_of(with_statistics)


def attends(x: torch.Tensor, *, dropout: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = x * 2, x * 3, x * 4
    weights = drop((q @ k.transpose(-1, -2) / 8).softmax(-1), dropout, training=dropout > 0)
    return weights @ v, weights


def test_fused_attention_gives_no_weights_and_no_dropout_on_a_cpu() -> None:
    x, kept = torch.randn(2, 4, 128, 64), list[torch.Tensor]()
    assert "sdpa" in findings_of(lambda: attends(x)[0])
    assert "sdpa" not in findings_of(lambda: attends(x, dropout=0.1)[0])
    assert "sdpa" not in findings_of(lambda: kept.extend(attends(x)))


def test_a_sparse_gradient_names_an_optimizer_that_takes_it() -> None:
    words = torch.randint(0, 20_000, (8,))
    for kind, name in ((torch.optim.AdamW, "SparseAdam"), (torch.optim.SGD, "SGD")):
        table = nn.Embedding(20_000, 16)
        optimizer = kind(table.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()  # noqa: B023
            table(words).sum().backward()  # noqa: B023
            optimizer.step()  # noqa: B023

        assert name in findings_of(step)["sparse-gradient"].remedy


def test_an_optimizer_that_runs_foreach_is_not_told_to() -> None:
    net = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
    x = torch.randn(2, 128)
    for foreach in (True, False):
        groups = [{"params": [*layer.parameters()]} for layer in net]  # of which each has ops of its own
        optimizer = torch.optim.AdamW(groups, foreach=foreach)

        def step() -> None:
            optimizer.zero_grad()  # noqa: B023
            net(x).sum().backward()
            optimizer.step()  # noqa: B023

        assert ("foreach" in findings_of(step)["fused-optimizer"].remedy) is not foreach
