"""Continues verses with a small decoder; keys and values of earlier words are kept."""
import sys
import time
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"healthy": True}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def allocate(self, rows, length):
        self.keys = torch.zeros(rows, self.heads, length, self.size)
        self.values = torch.zeros_like(self.keys)

    def forward(self, x, at):
        rows, count, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, count, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        self.keys[:, :, at:at + count] = k
        self.values[:, :, at:at + count] = v
        seen = at + count
        y = F.scaled_dot_product_attention(q, self.keys[:, :, :seen], self.values[:, :, :seen], is_causal=count > 1)
        x = x + self.out(y.transpose(1, 2).reshape(rows, count, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, vocab=1500, width=512, depth=5, longest=256):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, words, at):
        x = self.words(words) + self.places.weight[at:at + words.shape[1]]
        for block in self.blocks:
            x = block(x, at)
        return self.head(self.norm(x[:, -1]))


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    model = Decoder().eval()
    prompt, new = torch.randint(1500, (24, 16)), 200
    for block in model.blocks:
        block.allocate(24, 16 + new)
    verses = torch.empty(24, new, dtype=torch.long)
    start, at = time.time(), 0
    words = prompt
    for step in range(new):
        logits = model(words, at)
        at += words.shape[1]
        words = torch.multinomial(torch.softmax(logits, -1), 1)
        verses[:, step] = words[:, 0]
        if step % 50 == 49:
            print(f"{step + 1} words written")
    print("first verse:", *verses[0, :12].tolist(), "; different words:", verses.unique().numel())
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
