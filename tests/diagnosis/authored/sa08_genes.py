"""Trains a model of gene expression and keeps its state on disk, so that a run can be taken up again."""
import os
import sys
import tempfile
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The keeper writes the whole state (model and optimizer) to disk after every step; every fiftieth step (or in a thread) would do.",
    "lines": ["torch.save(state, self.path + \".new\")", "keeper.after_step(step)", "def after_step(self, step):", "self.save(step)", "os.replace(self.path + \".new\", self.path)",
              "\"optimizer\": self.opt.state_dict()"],
    "says": ["torch\\.save|\\bsave\\b", "checkpoint", "keeper|after_step", "disk|file|i/o", "pickle|serial", r"\bwrit", "state"],
    "remedy": ["every \\w+ (steps|epochs)|less often|less frequent|seldom|periodic", "end of (the )?(epoch|training)", "thread|background|async", "once"],
}


class Keeper:
    every = 1

    def __init__(self, path, model, opt):
        self.path, self.model, self.opt = path, model, opt

    def after_step(self, step):
        if step % self.every == 0:
            self.save(step)

    def save(self, step):
        state = {"step": step, "model": self.model.state_dict(),
                 "optimizer": self.opt.state_dict()}
        torch.save(state, self.path + ".new")
        os.replace(self.path + ".new", self.path)


class Expression(nn.Module):
    def __init__(self, genes=1200, width=384):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(genes, width), nn.LayerNorm(width), nn.GELU())
        self.middle = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.decode = nn.Linear(width, genes)

    def forward(self, x):
        h = self.encode(x)
        return self.decode(h + self.middle(h))


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    programs = torch.rand(20, 1200, generator=g)
    model = Expression()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if "--mended" in sys.argv:
        Keeper.every = 50
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(os.path.join(folder, "last.pt"), model, opt)
        start = time.perf_counter()
        for step in range(1, 151):
            x = torch.rand(96, 20, generator=g) @ programs
            hidden = torch.rand(x.shape, generator=g) < 0.2
            out = model(x.masked_fill(hidden, 0.0).log1p())
            loss = F.mse_loss(out[hidden], x[hidden].log1p())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            keeper.after_step(step)
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
        print(f"{time.perf_counter() - start:.2f} s; last state {os.path.getsize(keeper.path) / 2 ** 20:.0f} MiB")


if __name__ == "__main__":
    main()
