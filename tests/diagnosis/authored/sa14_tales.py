"""Trains a small decoder on tales whose tokens lie in one file on disk; windows are cut from it at random."""
import os
import sys
import tempfile
import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Every batch turns the whole corpus (a mapped file of 16-bit tokens) into 64-bit integers before a few windows are cut out of it; only the windows should be converted.",
    "lines": ["tokens = torch.from_numpy(self.tokens.astype(np.int64))", "x, y = corpus.batch(12)"],
    "says": ["astype", "whole (corpus|file|array)|entire", "int64|64.bit", "conver|cast", "memmap|mapped|corpus", "copy|copies", "batch", "repeat|same (operands|result|work)", "slice|discard|unused", "numpy|from_numpy|host"],
    "remedy": ["only the (windows?|slices?|rows)", "(slice|cut|index|window)\\w*.*(first|before)", "after (slicing|cutting|indexing)", "once", "outside", "cache|precomput|keep", "__init__", "window", "needed"],
}


class Corpus:
    def __init__(self, path, length=48):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.length = length
        self.g = torch.Generator().manual_seed(3)

    def starts(self, size):
        return torch.randint(0, len(self.tokens) - self.length - 1, (size,), generator=self.g).tolist()

    def batch(self, size):
        tokens = torch.from_numpy(self.tokens.astype(np.int64))
        rows = torch.stack([tokens[s:s + self.length + 1] for s in self.starts(size)])
        return rows[:, :-1], rows[:, 1:]


class CorpusMended(Corpus):
    def batch(self, size):
        rows = np.stack([self.tokens[s:s + self.length + 1] for s in self.starts(size)])
        rows = torch.from_numpy(rows.astype(np.int64))
        return rows[:, :-1], rows[:, 1:]


class Decoder(nn.Module):
    def __init__(self, vocab=512, width=64, length=48):
        super().__init__()
        self.table, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 128, 0.0, batch_first=True, norm_first=True) for _ in range(2)])
        self.out = nn.Linear(width, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))
        self.register_buffer("places", torch.arange(length))

    def forward(self, ids):
        h = self.table(ids) + self.place(self.places)
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return self.out(h)


def write_tokens(path, count=6_000_000):
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 4, count).cumsum()
    (steps % 512).astype(np.uint16).tofile(path)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tales.bin")
        write_tokens(path)
        corpus = (CorpusMended if "--mended" in sys.argv else Corpus)(path)
        model = Decoder()
        opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
        start = time.perf_counter()
        for step in range(200):
            x, y = corpus.batch(12)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 49:
                print(f"step {step}: loss {loss.item():.4f}")
        print(f"done in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
