"""Trains a graph network that finds missing citations; memory of the process is logged beside the loss."""
import os
import subprocess
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "In every step the log starts a process (ps) to ask for the memory of its own process and waits for it; read /proc or resource.getrusage, or ask seldom.",
    "lines": ["out = subprocess.check_output([\"ps\", \"-o\", \"rss=\", \"-p\", str(os.getpid())])", "peak = max(peak, memory())", "def memory():"],
    "says": ["subprocess", r"\bps\b", "process", "check_output|Popen|communicate", "fork|exec|spawn", "wait", "memory\\(\\)|memory log", "asleep|block"],
    "remedy": ["psutil", "getrusage|resource", "/proc", "once", "less often|every \\w+ steps|seldom|periodic", "thread|background", "end of (the )?epoch", "remove|drop|avoid",
               "outside (of )?the loop|out of the loop"],
}


def memory():
    out = subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())])
    return int(out) / 1024


def memory_mended():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20


class Encoder(nn.Module):
    def __init__(self, papers, width=32):
        super().__init__()
        self.table = nn.Embedding(papers, width)
        self.own, self.near = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, edges, degree):
        x = self.table.weight
        near = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]]) / degree
        return self.own(x) + F.relu(self.near(near))


def citations(papers=1500, count=9000):
    g = torch.Generator().manual_seed(0)
    src = torch.randint(0, papers, (count,), generator=g)
    dst = (src + torch.randint(1, 40, (count,), generator=g)) % papers
    return torch.stack([src, dst])


def main():
    if "--mended" in sys.argv:
        globals()["memory"] = memory_mended
    torch.manual_seed(0)
    papers = 1500
    edges = citations(papers)
    degree = torch.bincount(edges[1], minlength=papers).clamp(min=1).unsqueeze(1)
    model = Encoder(papers)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    peak, start = 0.0, time.perf_counter()
    for step in range(400):
        z = model(edges, degree)
        picked = torch.randint(0, edges.shape[1], (1024,))
        a, b = edges[:, picked]
        wrong = torch.randint(0, papers, (1024,))
        good, bad = (z[a] * z[b]).sum(1), (z[a] * z[wrong]).sum(1)
        loss = F.softplus(-good).mean() + F.softplus(bad).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        peak = max(peak, memory())
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f} memory {peak:.0f} MiB")
    print(f"loss {loss.item():.4f}; {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
