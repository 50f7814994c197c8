"""Off-policy learning for many cranes at once; their transitions go to a memory that is drawn from in each step."""
import sys
import time
import torch
from torch import nn

TRUTH = {"healthy": True}


class Cranes:
    def __init__(self, count, gen):
        self.gen, self.state = gen, torch.randn(count, 24, generator=gen)
        self.effect = 0.2 * torch.randn(6, 24, generator=gen)

    def step(self, action):
        self.state = 0.95 * self.state + self.effect[action] + 0.05 * torch.randn(self.state.shape, generator=self.gen)
        return self.state, -self.state[:, :6].square().mean(1)


class Memory:
    def __init__(self, size, width):
        self.obs, self.nxt = torch.empty(size, width), torch.empty(size, width)
        self.act, self.rew = torch.empty(size, dtype=torch.long), torch.empty(size)
        self.size, self.head, self.full = size, 0, False

    def add(self, obs, act, rew, nxt):
        rows = slice(self.head, self.head + len(obs))
        self.obs[rows], self.act[rows], self.rew[rows], self.nxt[rows] = obs, act, rew, nxt
        self.head = (self.head + len(obs)) % self.size
        self.full = self.full or self.head == 0

    def draw(self, count, gen):
        rows = torch.randint(self.size if self.full else self.head, (count,), generator=gen)
        return self.obs[rows], self.act[rows], self.rew[rows], self.nxt[rows]


def network():
    return nn.Sequential(nn.Linear(24, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6))


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    cranes, memory = Cranes(32, gen), Memory(32 * 200, 24)
    q, target = network(), network().requires_grad_(False)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=3e-4, fused=True)
    mine, theirs = list(q.parameters()), list(target.parameters())
    obs, start = cranes.state, time.time()
    for step in range(300):
        with torch.inference_mode():
            action = q(obs).argmax(1)
        lucky = torch.rand(32, generator=gen) < 0.1
        action = torch.where(lucky, torch.randint(6, (32,), generator=gen), action)
        nxt, reward = cranes.step(action)
        memory.add(obs, action, reward, nxt)
        obs = nxt
        o, a, r, n = memory.draw(1024, gen)
        with torch.no_grad():
            goal = r + 0.97 * target(n).amax(1)
        loss = nn.functional.smooth_l1_loss(q(o).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            torch._foreach_lerp_(theirs, mine, 0.02)
        if step % 75 == 74:
            print(f"step {step + 1}: loss {loss.item():.4f} reward {reward.mean().item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
