"""Questions about a long archive, whose keys and values were computed before."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("memory",), "remedy": "repeat-kv"}


def answer(q, keys, values):
    times = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(times, dim=1), values.repeat_interleave(times, dim=1)
    return F.scaled_dot_product_attention(q, keys, values)


def answer_by_group(q, keys, values):
    b, heads, n, size = q.shape
    grouped = q.reshape(b, keys.shape[1], -1, size)
    return F.scaled_dot_product_attention(grouped, keys, values).view(b, heads, n, size)


def _step(attend):
    torch.manual_seed(0)
    to_q, out = nn.Linear(256, 256), nn.Linear(256, 256)
    questions, keys, values = torch.randn(2, 2, 256), torch.randn(2, 1, 3000, 32), torch.randn(2, 1, 3000, 32)

    @torch.inference_mode()
    def step():
        x = questions
        for _ in range(4):
            q = to_q(x).unflatten(-1, (8, 32)).transpose(1, 2)
            x = x + out(attend(q, keys, values).transpose(1, 2).flatten(2))
        return x

    return step


def make_step():
    return _step(answer)


def make_step_fixed():
    return _step(answer_by_group)
