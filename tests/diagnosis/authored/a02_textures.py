"""Trains an autoencoder of textures whose codes are rounded to the entries of a learned book."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Distances between all codes and all entries are computed from a broadcast difference (codes x entries x width in memory); |a|^2 - 2ab + |b|^2 with one matrix product, or cdist, gives them.",
    "lines": ["return (codes[:, None, :] - book[None, :, :]).pow(2).sum(-1)", "nearest = self.distances(flat, self.book.weight).argmin(1)"],
    "says": ["broadcast", "distance", r"\bsub\b", r"\bpow\b", "intermediate", "materiali[sz]", "difference", "temporar", "memory", "three.dimension|3-?d"],
    "remedy": ["cdist", "matmul|matrix (product|multipl)|addmm|gemm|\\bmm\\b", "expand(ed|ing)? the square", "inner product|dot product", r"\|a\|"],
}


class Book(nn.Module):
    def __init__(self, entries=256, width=48):
        super().__init__()
        self.book = nn.Embedding(entries, width)
        nn.init.normal_(self.book.weight, std=0.5)

    def distances(self, codes, book):
        return (codes[:, None, :] - book[None, :, :]).pow(2).sum(-1)

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        with torch.no_grad():
            nearest = self.distances(flat, self.book.weight).argmin(1)
        q = self.book(nearest)
        loss = F.mse_loss(q, flat.detach()) + 0.25 * F.mse_loss(flat, q.detach())
        q = flat + (q - flat).detach()
        return q.view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2), loss


class BookFixed(Book):
    def distances(self, codes, book):
        return torch.addmm(book.square().sum(1), codes, book.t(), alpha=-2)


class Autoencoder(nn.Module):
    def __init__(self, book):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 4, 2, 1))
        self.book = book()
        self.decode = nn.Sequential(nn.ConvTranspose2d(48, 24, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(24, 3, 4, 2, 1))

    def forward(self, x):
        q, loss = self.book(self.encode(x))
        return self.decode(q), loss


def build(book):
    torch.manual_seed(31)
    model = Autoencoder(book)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(32)

    def step():
        x = torch.rand(8, 3, 64, 64, generator=g)
        y, commit = model(x)
        loss = F.mse_loss(y, x) + commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()
    return step


def make_step():
    return build(Book)


def make_step_fixed():
    return build(BookFixed)
