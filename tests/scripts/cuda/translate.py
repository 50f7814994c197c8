"""A translator of nn.Transformer after the tutorial: source, target and padding masks, then greedy decoding."""

import math

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAD, vocab, width = 1, 8000, 512


class Embedding(nn.Module):
    def __init__(self, dropout=0.1, longest=500):
        super().__init__()
        den = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        pos = torch.arange(0, longest).reshape(longest, 1)
        table = torch.zeros((longest, width))
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.dropout, self.embedding = nn.Dropout(dropout), nn.Embedding(vocab, width)
        self.register_buffer("table", table.unsqueeze(-2))

    def forward(self, tokens):
        return self.dropout(self.embedding(tokens.long()) * math.sqrt(width) + self.table[: tokens.size(0)])


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(width, 8, 3, 3, 512, 0.1)
        self.source, self.target, self.generator = Embedding(), Embedding(), nn.Linear(width, vocab)

    def forward(self, src, tgt, src_mask, tgt_mask, src_padding, tgt_padding):
        out = self.transformer(
            self.source(src), self.target(tgt), src_mask, tgt_mask, None, src_padding, tgt_padding, src_padding
        )
        return self.generator(out)


def hidden(size):
    mask = (torch.triu(torch.ones((size, size), device=DEVICE)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def batch():
    both = torch.randint(4, vocab, (2, 32, 64))
    for column in range(64):
        both[:, int(torch.randint(16, 32, ())) :, column] = PAD
    return both.to(DEVICE)


model = Translator().to(DEVICE)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=0.0001, betas=(0.9, 0.98), eps=1e-9)
model.train()
losses = 0
for step in range(4):
    src, tgt = batch()
    tgt_input = tgt[:-1, :]
    src_mask = torch.zeros((len(src), len(src)), device=DEVICE).type(torch.bool)
    src_padding, tgt_padding = (src == PAD).transpose(0, 1), (tgt_input == PAD).transpose(0, 1)
    logits = model(src, tgt_input, src_mask, hidden(len(tgt_input)), src_padding, tgt_padding)
    optimizer.zero_grad()
    loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt[1:, :].reshape(-1))
    loss.backward()
    optimizer.step()
    losses += loss.item()
    print(f"step {step}: {losses / (step + 1):.3f}")
model.eval()
ys = torch.ones(1, 1).fill_(2).type(torch.long).to(DEVICE)
memory = model.transformer.encoder(model.source(src[:, :1]), src_mask)
for _ in range(6):
    out = model.transformer.decoder(model.target(ys), memory, hidden(ys.size(0)).type(torch.bool)).transpose(0, 1)
    next_word = torch.max(model.generator(out[:, -1]), dim=1)[1].item()
    ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(next_word)], dim=0)
    if next_word == 3:
        break
