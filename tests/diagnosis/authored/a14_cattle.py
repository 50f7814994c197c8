"""Learns to tell cows apart: embeddings of one animal come together, those of others move away."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The hardest triplet of each anchor is searched in a cube of all triplets (batch^3); the farthest of its own and the nearest of the others, each from the square matrix of distances, give the same.",
    "lines": ["cube = dist.unsqueeze(2) - dist.unsqueeze(1)", "valid = alike.unsqueeze(2) & ~alike.unsqueeze(1)", "hardest = cube.masked_fill(~valid, -1e9).flatten(1).amax(1)",
              "loss = triplet_loss(self.net(x), cows, self.hardest_of)", "hardest = hardest_of(dist, alike)"],
    "says": ["triplet", "cub(e|ic)", "broadcast", "masked_fill", "intermediate", "materiali[sz]", "hardest", "all (combinations|pairs)", r"\bsub\b", "amax|max"],
    "remedy": ["farthest|furthest|nearest|hardest (positive|negative)", "(max|min).*(per row|each row|of the (square|distance))", "separate", "without (the|a) cube|avoid.*(cube|cubic|b\\^?3)",
               "distance matrix", "amax.*amin|max.*min", "quadratic|b\\^2|square matrix"],
}


def hardest_triplets(dist, alike):
    cube = dist.unsqueeze(2) - dist.unsqueeze(1)
    valid = alike.unsqueeze(2) & ~alike.unsqueeze(1)
    hardest = cube.masked_fill(~valid, -1e9).flatten(1).amax(1)
    return hardest


def hardest_triplets_fixed(dist, alike):
    far = dist.masked_fill(~alike, -1e9).amax(1)
    near = dist.masked_fill(alike, 1e9).amin(1)
    return far - near


def triplet_loss(z, cows, hardest_of, margin=0.3):
    z = F.normalize(z, dim=1)
    dist = (2 - 2 * z @ z.t()).clamp(min=1e-6).sqrt()
    alike = cows.unsqueeze(0) == cows.unsqueeze(1)
    hardest = hardest_of(dist, alike)
    return F.relu(hardest + margin).mean()


class Learner:
    def __init__(self, hardest_of):
        torch.manual_seed(61)
        self.net = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64))
        self.hardest_of = hardest_of
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.g = torch.Generator().manual_seed(62)
        self.herd = torch.randn(60, 96, generator=self.g)

    def step(self):
        cows = torch.randperm(60, generator=self.g)[:36].repeat_interleave(4)
        x = self.herd[cows] + torch.randn(144, 96, generator=self.g)
        loss = triplet_loss(self.net(x), cows, self.hardest_of)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def make_step():
    return Learner(hardest_triplets).step


def make_step_fixed():
    return Learner(hardest_triplets_fixed).step
