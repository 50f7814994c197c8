"""The attention block of an image autoencoder: every latent pixel looks at every other."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("memory", "compute"), "remedy": "sdpa"}


class AttentionBlock(nn.Module):
    def __init__(self, channels=64, heads=4):
        super().__init__()
        self.heads, self.scale = heads, (channels // heads) ** -0.5
        self.norm = nn.GroupNorm(16, channels)
        self.to_q, self.to_k, self.to_v, self.proj = (nn.Linear(channels, channels) for _ in range(4))

    def heads_to_batch(self, x):
        b, n, c = x.shape
        return x.view(b, n, self.heads, c // self.heads).transpose(1, 2).reshape(b * self.heads, n, c // self.heads)

    def forward(self, image):
        b, c, h, w = image.shape
        x = self.norm(image).flatten(2).transpose(1, 2)
        q, k, v = (self.heads_to_batch(to(x)) for to in (self.to_q, self.to_k, self.to_v))
        x = self.attend(q, k, v).view(b, self.heads, h * w, -1).transpose(1, 2).reshape(b, h * w, c)
        return image + self.proj(x).transpose(1, 2).view(b, c, h, w)

    def attend(self, q, k, v):
        empty = torch.empty(q.shape[0], q.shape[1], k.shape[1])
        scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=self.scale)
        return torch.bmm(scores.float().softmax(-1), v)


class NewAttentionBlock(AttentionBlock):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)).squeeze(0)


def _step(kind):
    torch.manual_seed(0)
    block, latents = kind().eval(), torch.randn(2, 64, 28, 28)
    return torch.no_grad()(lambda: block(latents))


def make_step():
    return _step(AttentionBlock)


def make_step_fixed():
    return _step(NewAttentionBlock)
