"""Trains a surrogate of a chemical reactor; memory, load and disk of the machine are written into the run's record."""
import os
import subprocess
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "Each step starts several shell processes to ask for memory, load and free disk; it should be asked now and then, or read in the process itself.",
    "lines": ["out = subprocess.run(command, shell=True, capture_output=True, text=True)", "self.samples.append({name: ask(command) for name, command in self.commands.items()})",
              "machine.sample(step)", "if step % self.every == 0:", "every=50 if MENDED else 1"],
    "says": ["subprocess", "shell", "process(es)?", "fork|spawn", "command", "machine|monitor|sample", "wait|asleep|poll|select|communicate"],
    "remedy": ["less often|rarely|fewer|now and then", "every (n|\\d+|few|some|hundred)", "psutil|resource\\.|getrusage|os\\.(getloadavg|statvfs)|shutil|/proc", "background|thread|another process",
               "without (a )?(shell|process)", "once", "in[- ]process", "avoid .*(process|shell)"],
}
MENDED = "--mended" in sys.argv


def ask(command):
    out = subprocess.run(command, shell=True, capture_output=True, text=True)
    return out.stdout.strip()


class Machine:
    def __init__(self, every):
        self.every, self.samples = every, []
        self.commands = {
            "memory": f"grep VmRSS /proc/{os.getpid()}/status | tr -s ' ' | cut -d ' ' -f 2",
            "load": "cut -d ' ' -f 1 /proc/loadavg",
            "disk": "df -k /tmp | tail -n 1",
        }

    def sample(self, step):
        if step % self.every == 0:
            self.samples.append({name: ask(command) for name, command in self.commands.items()})


def reactor(count, gen):
    feed = torch.rand(count, 12, generator=gen)
    rate = torch.exp(-2 / (0.5 + feed[:, :4]))
    made = rate * feed[:, 4:8] / (1 + feed[:, 8:])
    return feed, made


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    feed, made = reactor(10000, gen)
    net = nn.Sequential(nn.Linear(12, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    machine = Machine(every=50 if MENDED else 1)
    start = time.time()
    for step in range(300):
        rows = torch.randint(len(feed), (512,), generator=gen)
        loss = (net(feed[rows]) - made[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        machine.sample(step)
        if step % 75 == 74:
            print(f"step {step + 1}: loss {loss.item():.6f}")
    print("memory was asked for:", bool(machine.samples[-1]["memory"]))
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
