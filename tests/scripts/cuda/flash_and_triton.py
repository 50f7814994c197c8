"""A transformer that packs its sequences for flash-attn, with a linear layer and an activation in Triton."""

import torch
import triton
import triton.language as tl
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input
from torch import nn


@triton.autotune(
    configs=[triton.Config({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=3)],
    key=["M", "N", "K"],
)
@triton.jit
def linear_kernel(x, w, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    columns = tl.cdiv(N, BLOCK_N)
    row, column = tl.program_id(0) // columns, tl.program_id(0) % columns
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(x + m[:, None] * K + (start + k)[None, :], mask=m[:, None] < M, other=0.0)
        b = tl.load(w + n[None, :] * K + (start + k)[:, None])
        total = tl.dot(a, b, total)
    tl.store(y + m[:, None] * N + n[None, :], total.to(tl.bfloat16), mask=m[:, None] < M)


@triton.jit
def relu_squared_kernel(x, y, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.maximum(tl.load(x + place, mask=place < size), 0)
    tl.store(y + place, value * value, mask=place < size)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = x.new_empty(x.shape[0], w.shape[0])
        grid = lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK_M"]) * triton.cdiv(w.shape[0], meta["BLOCK_N"]),)
        linear_kernel[grid](x, w, y, x.shape[0], w.shape[0], x.shape[1])
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w, gradient.T @ x


@torch.library.custom_op("own::relu_squared", mutates_args=())
def relu_squared(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    relu_squared_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


@torch.library.register_fake("own::relu_squared")
def _(x):
    return torch.empty_like(x)


relu_squared.register_autograd(
    lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0].relu(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Parameter(torch.randn(4 * width, width) / 32), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        packed, places, ends, longest, _ = unpad_input(self.norm(x), mask)
        q, k, v = self.qkv(packed).view(-1, 3, self.heads, width // self.heads).unbind(1)
        y = flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, causal=True)
        x = x + pad_input(self.out(y.flatten(1)), places, batch, length)
        q = k = v = x.unflatten(-1, (self.heads, -1))
        x = x + flash_attn_func(q, k, v, causal=True, window_size=(128, 0)).flatten(2)
        hidden = relu_squared(Linear.apply(x.flatten(0, 1), self.up))
        return x + self.down(hidden).view_as(x)


lengths = torch.tensor([512, 256, 384, 128])
mask = (torch.arange(512) < lengths[:, None]).cuda()
model = nn.ModuleList(Block(256, 4) for _ in range(2)).cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    x = torch.randn(4, 512, 256, device="cuda", dtype=torch.bfloat16)
    for block in model:
        x = block(x, mask)
    x.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("ended")
