"""Trains a small mixer of image patches; an averaged copy of it is kept for evaluation."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The moving average builds the whole state_dict() of both models anew for every single key (quadratic in the number of entries); it should be taken once, or parameters zipped / _foreach_lerp_.",
    "lines": ["for name in self.model.state_dict():", "old = self.model.state_dict()[name]", "new = student.state_dict()[name]",
              "self.average.update(self.student)"],
    "says": ["state_dict", "moving average", r"\bema\b", "Average", "per key|for (each|every) (key|name|entry)", "python", "host", "small op", "update"],
    "remedy": ["once", "outside (of )?the loop", "hoist", "zip", "_foreach", "AveragedModel|swa_utils", "parameters\\(\\)", "cache|keep"],
}


class Block(nn.Module):
    def __init__(self, tokens=16, width=32):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, depth=10):
        super().__init__()
        self.stem = nn.Linear(48, 32)
        self.blocks = nn.Sequential(*[Block() for _ in range(depth)])
        self.out = nn.Linear(32, 10)

    def forward(self, patches):
        return self.out(self.blocks(self.stem(patches)).mean(1))


class Average:
    def __init__(self, model, decay=0.99):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, student):
        for name in self.model.state_dict():
            old = self.model.state_dict()[name]
            new = student.state_dict()[name]
            old.mul_(self.decay).add_(new, alpha=1 - self.decay)


class AverageFixed(Average):
    @torch.no_grad()
    def update(self, student):
        mine, theirs = list(self.model.parameters()), list(student.parameters())
        torch._foreach_lerp_(mine, theirs, 1 - self.decay)


class Trainer:
    def __init__(self, average):
        torch.manual_seed(11)
        self.student = Mixer()
        self.average = average(self.student)
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=1e-3, fused=True)
        self.g = torch.Generator().manual_seed(12)

    def step(self):
        x, y = torch.randn(16, 16, 48, generator=self.g), torch.randint(0, 10, (16,), generator=self.g)
        loss = F.cross_entropy(self.student(x), y)
        self.opt.zero_grad(), loss.backward(), self.opt.step()
        self.average.update(self.student)
        return loss.detach(), self.average.model.out.weight.detach().clone()


def make_step():
    return Trainer(Average).step


def make_step_fixed():
    return Trainer(AverageFixed).step
