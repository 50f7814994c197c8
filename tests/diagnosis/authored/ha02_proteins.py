"""Trains a masked model of protein families: a share of the positions is hidden and these are scored; the whole chain tells its family."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"healthy": True}

VOCAB, WIDTH, HEADS, HIDE = 2000, 320, 5, 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.down(F.relu(self.up(self.norm2(x)), inplace=True))


class Model(nn.Module):
    def __init__(self, length=96):
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Parameter(torch.randn(length, WIDTH) * 0.02)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.family = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40)

    def forward(self, ids, hidden):
        h = self.norm(self.blocks(self.table(ids) + self.place))
        return F.linear(h[hidden], self.table.weight), self.family(h.mean(1))


class Trainer:
    def __init__(self):
        torch.manual_seed(75)
        self.model = Model()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, fused=True)
        self.g = torch.Generator().manual_seed(76)
        self.count, self.shown = 0, []

    def step(self):
        ids = torch.randint(2, VOCAB, (8, 96), generator=self.g)
        hidden = torch.rand(8, 96, generator=self.g) < 0.15
        family = ids[:, 0] % 40
        out, guess = self.model(ids.masked_fill(hidden, HIDE), hidden)
        loss = F.cross_entropy(out, ids[hidden]) + 0.2 * F.cross_entropy(guess, family)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.count += 1
        if self.count % 100 == 0:
            self.shown.append(loss.item())
        return loss.detach()


def make_step():
    return Trainer().step
