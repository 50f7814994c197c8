"""FlexAttention over documents of a packed batch, the mask made from token ids in each step."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

flex = torch.compile(flex_attention, dynamic=False)
width, heads, length, vocab = 768, 6, 8192, 50257


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x, mask):
        y = nn.functional.rms_norm(x, (width,))
        q, k, v = (z.view(1, length, heads, -1).transpose(1, 2) for z in self.qkv(y).chunk(3, -1))
        x = x + self.out(flex(q, k, v, block_mask=mask).transpose(1, 2).reshape(1, length, width))
        return x + self.mlp(nn.functional.rms_norm(x, (width,)))


embed = nn.Embedding(vocab, width).cuda().bfloat16()
layers = nn.ModuleList(Layer() for _ in range(4)).cuda().bfloat16()
head = nn.Linear(width, vocab, bias=False).cuda().bfloat16()
optimizer = torch.optim.Adam([*embed.parameters(), *layers.parameters(), *head.parameters()], lr=1e-3, fused=True)
for step in range(6):
    tokens = torch.randint(vocab - 1, (length,))
    tokens[:: 600 + step] = 50256
    tokens = tokens.to("cuda", torch.int32)
    documents = (tokens == 50256).cumsum(0)

    def same_document(b, h, q, kv):
        return (documents[q] == documents[kv]) & (q >= kv) & (q - kv < 1024)

    mask = create_block_mask(same_document, None, None, length, length, device="cuda")
    x = embed(tokens)[None]
    for layer in layers:
        x = layer(x, mask)
    loss = nn.functional.cross_entropy(head(x[0, :-1]).float(), tokens[1:].long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.4f}, {mask.sparsity():.1f} % of blocks left out")
