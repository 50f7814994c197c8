"""Learns the values of a pump's actions off-policy from a memory of its past."""
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "Each transition is added to the memory with torch.cat, which copies the whole memory; it should be a preallocated ring that is written in place.",
    "lines": ["self.obs = torch.cat([self.obs, obs[None]])[-self.capacity:]", "self.nxt = torch.cat([self.nxt, nxt[None]])[-self.capacity:]",
              "memory.add(obs, action, reward, nxt)", "self.act = torch.cat([self.act, act[None]])[-self.capacity:]", "self.rew = torch.cat([self.rew, rew[None]])[-self.capacity:]"],
    "says": [r"torch\.cat|\bcat\b", "concat", "cop(y|ies)", "grow", "buffer", "memory\\.add", "append", "replay", "realloc"],
    "remedy": ["prealloc", "ring|circular", "in[- ]place", "pre-?allocat", "deque|list", "index(_copy|ed write| assignment)?", "once", "allocate"],
}
MENDED = "--mended" in sys.argv


class Memory:
    def __init__(self, obs, act, rew, nxt):
        self.obs, self.act, self.rew, self.nxt, self.capacity = obs, act, rew, nxt, len(obs)

    def add(self, obs, act, rew, nxt):
        self.obs = torch.cat([self.obs, obs[None]])[-self.capacity:]
        self.act = torch.cat([self.act, act[None]])[-self.capacity:]
        self.rew = torch.cat([self.rew, rew[None]])[-self.capacity:]
        self.nxt = torch.cat([self.nxt, nxt[None]])[-self.capacity:]

    def sample(self, size, gen):
        rows = torch.randint(self.capacity, (size,), generator=gen)
        return self.obs[rows], self.act[rows], self.rew[rows], self.nxt[rows]


class Ring(Memory):
    head = 0

    def add(self, obs, act, rew, nxt):
        for store, value in ((self.obs, obs), (self.act, act), (self.rew, rew), (self.nxt, nxt)):
            store[self.head] = value
        self.head = (self.head + 1) % self.capacity

    def sample(self, size, gen):
        rows = (torch.randint(self.capacity, (size,), generator=gen) + self.head) % self.capacity
        return self.obs[rows], self.act[rows], self.rew[rows], self.nxt[rows]


def plant(obs, action, gen):
    nxt = (0.98 * obs + 0.02 * torch.randn(obs.shape, generator=gen)).roll(1)
    nxt[0] = nxt[0] + 0.1 * (action - 2)
    return nxt, -nxt[:8].square().mean()


def main():
    gen = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    size, width = 32000, 48
    past = torch.randn(size + 1, width, generator=gen)
    memory = (Ring if MENDED else Memory)(past[:-1].clone(), torch.randint(5, (size,), generator=gen), torch.randn(size, generator=gen), past[1:].clone())
    q = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.SGD(q.parameters(), lr=1e-2)
    obs, start = past[-1], time.time()
    for step in range(400):
        for _ in range(3):
            with torch.no_grad():
                action = q(obs).argmax()
            nxt, reward = plant(obs, action, gen)
            memory.add(obs, action, reward, nxt)
            obs = nxt
        o, a, r, n = memory.sample(256, gen)
        with torch.no_grad():
            target = r + 0.95 * q(n).max(1).values
        loss = (q(o).gather(1, a[:, None]).squeeze(1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
