"""Steps of a few hundred calls of random ops on random shapes, the same on every machine for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as f

Call = Callable[[], object]
Families = tuple[Callable[["Chance"], Call], ...]
_LARGEST = 1 << 26  # elements of a tensor
_NORMS = (f.layer_norm, f.rms_norm)


class Chance(random.Random):
    """Random shapes, dtypes and tensors on a device."""

    def __init__(self, seed: int, device: str) -> None:
        super().__init__(seed)
        self.device = device

    def size(self, low: int, high: int) -> int:
        """Log-uniform; two in three are multiples of 64, as in most models."""
        found = round(low * (high / low) ** self.random())
        return max(64, found // 64 * 64) if self.random() < 2 / 3 and found > 64 else found

    def dtype(self) -> torch.dtype:
        return self.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype())

    def matrix(self, lowest: int = 64) -> Tensor:
        rows, columns = self.size(1, 65536), self.size(lowest, 16384)
        return self.tensor(min(rows, _LARGEST // columns), columns)

    def images(self) -> Tensor:
        batch, side = self.size(1, 64), self.choice([7, 8, 14, 16, 28, 32, 56, 64, 112])
        channels = self.choice([16, 32, 64, 96, 128, 192, 256, 384, 512, 1024])
        layout = self.choice([torch.contiguous_format, torch.channels_last])
        batch = max(1, min(batch, _LARGEST // (channels * side * side)))
        x = self.tensor(batch, channels, side, side, dtype=self.choice([torch.bfloat16, torch.float16, torch.float32]))
        return x.to(memory_format=layout)


def make_step(device: str = "cuda", calls: int = 216, seed: int = 7, families: Families | None = None) -> Call:
    """All calls that run here, one after the other. Half of those that have a backward run it too."""
    chance = Chance(seed, device)
    families = families or FAMILIES
    chosen = []
    for family in families * max(1, calls // len(families)):
        call = family(chance)
        try:
            call()
        except RuntimeError as error:
            print(f"{family.__name__}: {str(error)[:120]}")
        else:
            chosen.append(call)
    chance.shuffle(chosen)

    def step() -> None:
        for call in chosen:
            call()

    return step


def trained(chance: Chance, call: Callable[[], Tensor], *inputs: Tensor) -> Call:
    """``call``, with its backward half of the times."""
    if chance.random() < 0.5:
        return call
    for each in inputs:
        each.requires_grad_()
    with torch.no_grad():
        gradient = torch.ones_like(call())

    def both() -> None:
        torch.autograd.grad(call(), inputs, gradient)

    return both


def mm(chance: Chance) -> Call:
    m, n, k = chance.size(1, 16384), chance.size(32, 16384), chance.size(32, 16384)
    n = min(n, (1 << 37) // (m * k))
    left = chance.tensor(m, k)
    right = (
        chance.tensor(n, k, dtype=left.dtype).t() if chance.random() < 0.6 else chance.tensor(k, n, dtype=left.dtype)
    )
    return lambda: torch.mm(left, right)


def vocabulary(chance: Chance) -> Call:
    """Logits and the loss, often of an odd vocabulary."""
    rows, width, vocab = (
        chance.size(1, 4096),
        chance.size(128, 4096),
        chance.choice([50257, 50304, 32000, 32003, 30522]),
    )
    x, weight = chance.tensor(rows, width, dtype=torch.bfloat16), chance.tensor(vocab, width, dtype=torch.bfloat16)
    target = torch.randint(0, vocab, (rows,), device=chance.device)
    return trained(chance, lambda: f.cross_entropy(f.linear(x, weight).float(), target), x, weight)


def bmm(chance: Chance) -> Call:
    b, m, n, k = chance.size(2, 256), chance.size(16, 1024), chance.size(16, 1024), chance.size(16, 512)
    left = chance.tensor(b, m, k)
    right = chance.tensor(b, k, n, dtype=left.dtype)
    return lambda: torch.bmm(left, right)


def linear(chance: Chance) -> Call:
    x = chance.tensor(chance.size(1, 8192), chance.size(64, 8192))
    weight = chance.tensor(chance.size(64, 8192), x.shape[1], dtype=x.dtype)
    bias = chance.tensor(weight.shape[0], dtype=x.dtype) if chance.random() < 0.5 else None
    return trained(chance, lambda: f.linear(x, weight, bias), x, weight)


def attention(chance: Chance) -> Call:
    heads, dim = chance.choice([8, 16, 32]), chance.choice([64, 128])
    batch, keys = chance.size(1, 16), chance.size(64, 4096)
    queries = keys if chance.random() < 0.7 else chance.choice([1, 1, 8])
    kind = chance.choice([torch.bfloat16, torch.float16])
    shared = chance.choice([1, 1, 4])
    q = chance.tensor(batch, heads, queries, dim, dtype=kind)
    k, v = (chance.tensor(batch, heads // shared, keys, dim, dtype=kind) for _ in range(2))
    causal = queries == keys and chance.random() < 0.6
    gqa = shared > 1
    return trained(chance, lambda: f.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa), q, k, v)


def pointwise(chance: Chance) -> Call:
    x = chance.matrix()
    y = torch.randn_like(x)
    return chance.choice(
        [lambda: x + y, lambda: x * y, lambda: x / y, x.float, x.exp, lambda: x.add_(y), lambda: x > y, x.neg,
         lambda: torch.where(x > 0, x, y), lambda: x * 2.0, x.tanh, x.rsqrt, lambda: x.pow(2), lambda: x.clamp(-1, 1)]
    )  # fmt: skip


def activation(chance: Chance) -> Call:
    x = chance.matrix()
    name = chance.choice([f.gelu, f.silu, f.relu, torch.tanh, torch.sigmoid, f.leaky_relu, f.softplus, f.hardswish])
    return trained(chance, lambda: name(x), x)


def dropout(chance: Chance) -> Call:
    x = chance.matrix()
    return trained(chance, lambda: f.dropout(x, 0.1), x)


def reduction(chance: Chance) -> Call:
    x = chance.matrix()
    return chance.choice(
        [x.sum, lambda: x.sum(-1), lambda: x.sum(0), lambda: x.mean(-1), lambda: x.amax(-1), lambda: x.var(-1),
         lambda: x.argmax(-1), lambda: x.cumsum(-1), x.norm, lambda: x.topk(8, -1), lambda: x.logsumexp(-1)]
    )  # fmt: skip


def normalization(chance: Chance) -> Call:
    x = chance.matrix()
    weight = chance.tensor(x.shape[1], dtype=x.dtype)
    if chance.random() < 0.4:
        return trained(chance, lambda: torch.softmax(x, -1), x)
    name = chance.choice(_NORMS)
    return trained(chance, lambda: name(x, x.shape[1:], weight), x, weight)


def movement(chance: Chance) -> Call:
    x = chance.matrix()
    rows = torch.randint(0, x.shape[0], (chance.size(16, 16384),), device=chance.device)
    rows = rows[: _LARGEST // x.shape[1]]
    picked = x[rows]
    return chance.choice(
        [x.clone, lambda: x.t().contiguous(), lambda: torch.cat([x, x]), lambda: torch.cat([x, x], -1), x.zero_,
         lambda: x[rows], lambda: f.embedding(rows, x), lambda: x.to(torch.float16), lambda: torch.stack([x, x]),
         lambda: x.index_add_(0, rows, picked), lambda: f.pad(x, (1, 1)), lambda: torch.roll(x, 1, -1),
         lambda: x.masked_fill(x > 0, 0.0), lambda: torch.gather(x, 0, rows[:, None])]
    )  # fmt: skip


def lookup(chance: Chance) -> Call:
    table = chance.tensor(chance.size(1000, 60000), chance.size(64, 1024))
    rows = torch.randint(0, table.shape[0], (chance.size(1, 16384),), device=chance.device)
    return trained(chance, lambda: f.embedding(rows, table), table)


def convolution(chance: Chance) -> Call:
    x, kernel, out = chance.images(), chance.choice([1, 1, 3, 3, 3, 5, 7]), chance.choice([16, 32, 64, 128, 256, 512])
    channels = x.shape[1]
    groups = channels if chance.random() < 0.2 else 1
    if groups > 1:
        out = channels
    weight = chance.tensor(out, channels // groups, kernel, kernel, dtype=x.dtype)
    if x.is_contiguous(memory_format=torch.channels_last):
        weight = weight.to(memory_format=torch.channels_last)
    stride = chance.choice([1, 1, 2])
    return trained(chance, lambda: f.conv2d(x, weight, None, stride, kernel // 2, 1, groups), x, weight)


def other_convolution(chance: Chance) -> Call:
    """The first layer of a network, patches, one and three dimensions, transposed."""
    kind = chance.choice([torch.bfloat16, torch.float16, torch.float32])
    batch, channels, out = chance.size(1, 32), chance.choice([32, 64, 128]), chance.choice([32, 64, 128, 256])
    which = chance.choice(["stem", "patches", "1d", "3d", "transposed"])
    if which == "stem":
        x, w = chance.tensor(batch, 3, 224, 224, dtype=kind), chance.tensor(64, 3, 7, 7, dtype=kind)
        return trained(chance, lambda: f.conv2d(x, w, None, 2, 3), w)
    if which == "patches":
        x, w = chance.tensor(batch, 3, 224, 224, dtype=kind), chance.tensor(out * 4, 3, 16, 16, dtype=kind)
        return trained(chance, lambda: f.conv2d(x, w, None, 16), w)
    if which == "1d":
        x = chance.tensor(batch, channels, chance.size(64, 8192), dtype=kind)
        w = chance.tensor(out, channels, 3, dtype=kind)
        return trained(chance, lambda: f.conv1d(x, w, None, 1, 1), x, w)
    if which == "3d":
        x = chance.tensor(min(batch, 4), channels, 16, 28, 28, dtype=kind)
        w = chance.tensor(out, channels, 3, 3, 3, dtype=kind)
        return trained(chance, lambda: f.conv3d(x, w, None, 1, 1), x, w)
    x, w = chance.tensor(batch, channels, 28, 28, dtype=kind), chance.tensor(channels, out, 4, 4, dtype=kind)
    return trained(chance, lambda: f.conv_transpose2d(x, w, None, 2, 1), x, w)


def image_norm(chance: Chance) -> Call:
    x = chance.images()
    weight, bias, mean = (chance.tensor(x.shape[1], dtype=x.dtype) for _ in range(3))
    variance = torch.ones_like(mean)
    if chance.random() < 0.2:
        return trained(chance, lambda: f.group_norm(x, 8, weight, bias), x, weight)
    return trained(chance, lambda: f.batch_norm(x, mean, variance, weight, bias, training=True), x, weight, bias)


def image_op(chance: Chance) -> Call:
    x = chance.images()
    name: Callable[[Tensor], Tensor] = chance.choice(
        [lambda y: f.max_pool2d(y, 3, 2, 1), lambda y: f.avg_pool2d(y, 2), lambda y: f.adaptive_avg_pool2d(y, 1),
         f.relu, lambda y: f.interpolate(y, scale_factor=2.0), lambda y: y + y, lambda y: y.mean((2, 3))]
    )  # fmt: skip
    return trained(chance, lambda: name(x), x)


def optimizer(chance: Chance) -> Call:
    kind = chance.choice([torch.float32, torch.bfloat16])
    width = chance.size(64, 2048)
    shapes = [(width, width), (width,), (4 * width, width)] * chance.randint(1, 12)
    weights = [chance.tensor(*shape, dtype=kind).requires_grad_() for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    make: Callable[..., torch.optim.Optimizer] = chance.choice([torch.optim.AdamW, torch.optim.AdamW, torch.optim.SGD])
    chosen = make(weights, lr=1e-6, **chance.choice([{"fused": True}, {"foreach": True}]))
    if chance.random() < 0.3:
        return lambda: torch.nn.utils.clip_grad_norm_(weights, 1e9)
    return chosen.step


def odd_product(chance: Chance) -> Call:
    """A large product, one of whose sizes (of the output, or summed over) is no multiple of 8, most often."""
    odd = chance.choice(
        [50257, 50265, 32003, 30522, 28996, 10001, chance.size(512, 65536), chance.size(512, 16384) | 1]
    )
    m, other = chance.size(256, 16384), chance.size(256, 8192) // 64 * 64 or 64
    n, k = (odd, other) if chance.random() < 0.6 else (other, odd)
    m = max(8, min(m, (1 << 38) // (n * k), (1 << 28) // max(n, k)))
    kind = chance.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
    x, weight = chance.tensor(m, k, dtype=kind), chance.tensor(n, k, dtype=kind)
    return trained(chance, lambda: f.linear(x, weight), x, weight)


def permuted(chance: Chance) -> Call:
    """An op on a tensor whose dimensions are turned, as heads and channels are."""
    heads, width, kind = chance.choice([4, 8, 12, 16, 32]), chance.choice([32, 64, 80, 128]), chance.dtype()
    rows = chance.size(64, 4096)
    batch = max(1, min(chance.size(1, 64), _LARGEST // (rows * heads * width)))
    x = chance.tensor(batch, rows, heads, width, dtype=kind)
    y, turned = chance.tensor(batch, heads, rows, width, dtype=kind), x.transpose(1, 2)
    return chance.choice(
        [turned.contiguous, lambda: turned + y, lambda: turned * 2.0, lambda: turned + turned, turned.float,
         lambda: f.gelu(turned), lambda: turned.reshape(batch, heads, -1), lambda: turned.sum(-1),
         lambda: turned.mean(2), lambda: torch.softmax(turned, -1),
         lambda: f.layer_norm(turned, (width,)), lambda: torch.cat([turned, y], 2),
         lambda: turned.permute(0, 1, 3, 2).contiguous(), lambda: f.silu(turned), lambda: y.add_(turned),
         lambda: torch.stack([turned, turned]), lambda: x.permute(3, 0, 1, 2).contiguous()]
    )  # fmt: skip


def repeated(chance: Chance) -> Call:
    """A few layers one after the other, whose tensors are still in the cache."""
    rows, width, kind = chance.size(1, 4096), chance.choice([256, 512, 768, 1024, 2048]), chance.dtype()
    x = chance.tensor(rows, width, dtype=kind)
    layers = [
        (chance.tensor(4 * width, width, dtype=kind), chance.tensor(width, 4 * width, dtype=kind)) for _ in range(2)
    ]
    scale = chance.tensor(width, dtype=kind)

    def call() -> Tensor:
        y = x
        for up, down in layers:
            y = y + f.linear(f.gelu(f.linear(f.rms_norm(y, (width,), scale), up)), down)
        return y

    return trained(chance, call, x, scale)


FAMILIES: Families = (
    mm, mm, bmm, linear, linear, vocabulary, attention, attention, pointwise, pointwise, activation, dropout, reduction,
    normalization, normalization, movement, movement, lookup, convolution, convolution, convolution, other_convolution,
    image_norm, image_norm, image_op, optimizer
)  # fmt: skip

# Larger products of odd widths, turned dimensions, layers that follow each other: what the others show too little of.
WIDE: Families = (
    (odd_product,) * 8
    + (permuted,) * 10
    + (repeated,) * 2
    + (vocabulary, bmm, image_norm, image_op, other_convolution, reduction)
)
