"""Fits a neural closure for turbulence in channel flow and keeps a journal of the norms of all layers."""
import json
import os
import sys
import tempfile
import time
import torch
from torch import nn

TRUTH = {
    "cause": "The journal's whole history is written anew as JSON in each step, so that a step costs more the longer the run lasts; the new line alone should be appended.",
    "lines": ["json.dump(self.records, file, indent=1)", "journal.note(step, loss, net)", "with open(self.path, \"w\") as file:"],
    "says": ["json", "journal|history|records|log", "dump|serializ|encod", "file|writ(e|es|ing|ten)|disk", "whole history|grow|quadratic|rewrit", "host|python"],
    "remedy": ["append", "json ?lines|jsonl", "only the (new|last)", "at the end", "less often|every (n|\\d+|few|some)|fewer|rarely", "once", "buffer|flush", "tensorboard|csv", "one line"],
}
MENDED = "--mended" in sys.argv


class Journal:
    def __init__(self, folder):
        self.path, self.records = os.path.join(folder, "journal.json"), []

    def note(self, step, loss, net):
        values = torch.stack([loss.detach(), *torch._foreach_norm([p.grad for p in net.parameters()])]).tolist()
        self.records.append({"step": step, "loss": values[0], "norms": values[1:]})
        if MENDED:
            with open(self.path, "a") as journal:
                journal.write(json.dumps(self.records[-1]) + "\n")
        else:
            with open(self.path, "w") as file:
                json.dump(self.records, file, indent=1)


def flow(count, gen):
    strain = torch.randn(count, 9, generator=gen)
    invariants = torch.stack([strain.square().sum(1), strain.pow(3).sum(1) / 9], 1)
    stress = torch.tanh(strain[:, :6] * 0.5) + 0.02 * invariants[:, :1]
    return torch.cat([strain, invariants / 9], 1), stress


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    x, y = flow(8000, gen)
    layers = [nn.Linear(11, 64), nn.GELU()]
    for _ in range(8):
        layers += [nn.Linear(64, 64), nn.GELU()]
    net = nn.Sequential(*layers, nn.Linear(64, 6))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(folder)
        for step in range(400):
            rows = torch.randint(len(x), (256,), generator=gen)
            loss = (net(x[rows]) - y[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            journal.note(step, loss, net)
            if step % 80 == 79:
                print(f"step {step + 1}: loss {journal.records[-1]['loss']:.5f}")
        print(len(journal.records), "records")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
