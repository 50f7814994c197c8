"""Fits a forecaster of water levels; a callback writes a history that a dashboard reads."""
import json
import os
import sys
import tempfile
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The history callback writes the whole history (all steps, all layers' norms) to its JSON file after every step, so that the cost grows with the square of the steps; append a line, or write seldom.",
    "lines": ["json.dump(self.rows, f, indent=1)", "cb.on_step_end(step, model, loss)", "with open(self.path, \"w\") as f:", "self.write()"],
    "says": ["json", "dump", "history", "callback|on_step_end", "file", r"\bwrit", "serial", "grow", "i/o|disk", "python|host"],
    "remedy": ["append", "json ?lines|jsonl", "once", "end of (the )?(epoch|training)", "every \\w+ steps|less often|seldom|less frequent|periodic", "buffer", "incremental", "thread|background"],
}


class History:
    def __init__(self, path):
        self.path, self.rows = path, []

    def on_step_end(self, step, model, loss):
        norms = {name: [p.norm().item(), p.grad.norm().item()] for name, p in model.named_parameters()}
        self.rows.append({"step": step, "loss": loss.item(), "norms": norms})
        self.write()

    def write(self):
        with open(self.path, "w") as f:
            json.dump(self.rows, f, indent=1)

    def on_train_end(self):
        self.write()


class HistoryMended(History):
    def write(self):
        if len(self.rows) % 100 == 0:
            super().write()

    def on_train_end(self):
        super().write()


def levels(g, n=32, length=96):
    t = torch.arange(length + 1) + 1000 * torch.rand(n, 1, generator=g)
    y = torch.sin(t / 6.2) + 0.4 * torch.sin(t / 3.3 + 1) + 0.05 * torch.randn(n, length + 1, generator=g)
    return y[:, :-1], y[:, 1:]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1 if i == 0 else 16, 16, 3, dilation=2 ** i) for i in range(5)])
        self.out = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        x = x.unsqueeze(1)
        for i, conv in enumerate(self.convs):
            x = F.relu(conv(F.pad(x, (2 ** (i + 1), 0))))
        return self.out(x).squeeze(1)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        cb = (HistoryMended if "--mended" in sys.argv else History)(os.path.join(folder, "history.json"))
        start = time.perf_counter()
        for step in range(400):
            x, y = levels(g)
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            cb.on_step_end(step, model, loss)
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
        cb.on_train_end()
        print(f"loss {loss.item():.4f}; took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
