"""Steps on which the predicted gain of torch.compile on a CPU is scored: ``python -m rooflight compile-bench
benchmarks/gain_workloads.py:NAME``.

``SEEN`` were looked at while the model was made. ``KEPT_BACK`` were not: this file was committed before there was a
model, and the times of ``KEPT_BACK`` were first read when that, as committed, was scored.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

SEEN = (
    "simple-matmul-chain",
    "mlp-training-step",
    "few_elements",
    "many_elements",
    "feed_forward",
    "norm_and_residual",
    "convolution_block",
    "rows_softmax",
    "rotary",
    "adam_by_hand",
    "gpt2 forward",
    "small_transformer_training",
    "statistics",
)
KEPT_BACK = (
    "attention-block",
    "mixed-operations",
    "residual_network",
    "recurrent_cell",
    "group_norm_silu",
    "classifier_loss",
    "bert-large forward",
    "embeddings_and_towers",
    "depthwise_convolution",
    "mixture_training",
    "distances",
    "gated_blocks",
    "polynomial",
)
PRESETS = {"gpt2 forward": ("gpt2", "forward"), "bert-large forward": ("bert-large", "forward")}
"""Presets in their reduced form, and the step of each."""


def few_elements():
    x, y = torch.randn(2, 1024).unbind()

    def step():
        out = x
        for _ in range(6):
            out = torch.tanh(out * y + 0.5) - out.abs()
        return out

    return step


def many_elements():
    x, y = torch.randn(2, 1 << 21).unbind()

    def step():
        return ((x * y + 1.0).relu() - y * 0.5).square() + x.clamp(-1.0, 1.0)

    return step


def feed_forward():
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)).eval()
    x = torch.randn(64, 512)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def norm_and_residual():
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(768) for _ in range(4))

        def forward(self, x):
            for norm in self.norms:
                x = x + F.silu(norm(x)) * 0.5
            return x

    model, x = Blocks().eval(), torch.randn(512, 768)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def convolution_block():
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    ).eval()
    x = torch.randn(8, 16, 32, 32)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def rows_softmax():
    x, mask = torch.randn(64, 128, 128), torch.rand(64, 128, 128) > 0.1

    def step():
        return torch.softmax((x * 0.125).masked_fill(~mask, -1e9), dim=-1).sum(dim=1)

    return step


def rotary():
    x, angle = torch.randn(4, 8, 128, 64), torch.randn(128, 32)

    def step():
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        turned = torch.cat([-x[..., 32:], x[..., :32]], dim=-1)
        out = x * cos + turned * sin
        return out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6)

    return step


def adam_by_hand():
    weights, grads, means, squares = (
        [torch.rand(256, 256) for _ in range(8)],
        [torch.rand(256, 256) for _ in range(8)],
        [torch.zeros(256, 256) for _ in range(8)],
        [torch.zeros(256, 256) for _ in range(8)],
    )

    def step():
        for weight, grad, mean, square in zip(weights, grads, means, squares, strict=True):
            mean.mul_(0.9).add_(grad, alpha=0.1)
            square.mul_(0.99).addcmul_(grad, grad, value=0.01)
            weight.sub_(1e-4 * mean / (square.sqrt() + 1e-8))

    return step


def small_transformer_training():
    model = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(8, 64, 128)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


def statistics():
    x = torch.randn(1024, 512)

    def step():
        centred = x - x.mean(0)
        scaled = centred / (centred.var(0) + 1e-5).sqrt()
        return scaled.abs().amax(1), scaled.exp().sum(), scaled.clamp(-3, 3).std()

    return step


def residual_network():
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
            self.norm, self.other = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x):
            return F.relu(x + self.other(self.second(F.relu(self.norm(self.first(x))))))

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), Block(32), Block(32), nn.AdaptiveAvgPool2d(1)
    ).eval()
    x = torch.randn(4, 3, 64, 64)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def recurrent_cell():
    into, within = torch.randn(64, 256) / 8, torch.randn(64, 256) / 8
    xs = torch.randn(16, 8, 64)

    def step():
        h, c = torch.zeros(8, 64), torch.zeros(8, 64)
        for x in xs:
            i, f, g, o = (x @ into + h @ within).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h

    return step


def group_norm_silu():
    model = nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.GroupNorm(8, 64), nn.SiLU()).eval()
    x = torch.randn(4, 64, 32, 32)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def classifier_loss():
    x, labels = torch.randn(256, 2000), torch.randint(0, 2000, (256,))

    def step():
        return F.cross_entropy(x * 0.7, labels, label_smoothing=0.1)

    return step


def embeddings_and_towers():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(6))
            self.up, self.down = nn.Linear(6 * 32, 256), nn.Linear(256, 1)

        def forward(self, ids):
            seen = torch.cat([table(ids[:, place]) for place, table in enumerate(self.tables)], dim=-1)
            return torch.sigmoid(self.down(F.relu(self.up(seen))))

    model, ids = Towers().eval(), torch.randint(0, 1000, (256, 6))

    def step():
        with torch.no_grad():
            return model(ids)

    return step, model


def depthwise_convolution():
    model = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64), nn.Hardswish(), nn.Conv2d(64, 64, 1)
    ).eval()
    x = torch.randn(4, 64, 28, 28)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def mixture_training():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(64, 4)
            self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            shares = torch.softmax(self.gate(x), -1)
            return sum(shares[:, place, None] * F.gelu(each(x)) for place, each in enumerate(self.experts))

    model, x = Mixture(), torch.randn(128, 64)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = F.huber_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


def distances():
    x, y = torch.randn(256, 1, 64), torch.randn(1, 256, 64)

    def step():
        return ((x - y) ** 2).sum(-1).sqrt().topk(5, largest=False).values

    return step


def gated_blocks():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(256)
            self.gate, self.up, self.down = nn.Linear(256, 704), nn.Linear(256, 704), nn.Linear(704, 256)

        def forward(self, x):
            y = self.norm(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    model, x = nn.Sequential(*(Gated() for _ in range(4))).eval(), torch.randn(1, 16, 256)

    def step():
        with torch.no_grad():
            return model(x)

    return step, model


def polynomial():
    x = torch.rand(1 << 16)

    def step():
        out = torch.zeros_like(x)
        for factor in (0.1, -0.3, 0.7, 0.2, -0.5, 0.9):
            out = out * x + factor
        return torch.erf(out)

    return step
