"""Q-learning from a replay buffer: 100 steps of play, then training after every fourth; a target network."""

import random
from collections import deque

import torch
from torch import nn

random.seed(3)
torch.manual_seed(3)
online, target = (nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 2)) for _ in range(2))
target.load_state_dict(online.state_dict())
optimizer = torch.optim.RMSprop(online.parameters(), lr=1e-3)
huber = nn.SmoothL1Loss()
memory = deque(maxlen=200)
state = torch.zeros(3)
for step in range(500):
    if random.random() < max(0.05, 1 - step / 300):
        action = random.randrange(2)
    else:
        with torch.no_grad():
            action = online(state).argmax().item()
    following = (0.8 * state + (action - 0.5) * 0.3 + 0.1 * torch.randn(3)).clamp(-2, 2)
    memory.append((state, action, 1 - following.abs().sum(), following))
    state = following
    if step >= 100 and step % 4 == 0:
        s, a, r, n = zip(*random.sample(memory, 16), strict=True)
        with torch.no_grad():
            wanted = torch.stack(r) + 0.9 * target(torch.stack(n)).max(1).values
        loss = huber(online(torch.stack(s)).gather(1, torch.tensor(a)[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 50 == 0:
        target.load_state_dict(online.state_dict())
        print(step, repr(float(state.sum())))
print(repr(loss.item()), random.random(), torch.rand(1).item())
