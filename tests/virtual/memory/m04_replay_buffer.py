"""DQN: a replay buffer allocated in full beforehand, twice (state and next state)."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

capacity = 100_000
# 100_000 * 4 * 84 * 84 bytes of uint8 = 2.8224e9 bytes, twice.
states = torch.zeros(capacity, 4, 84, 84, dtype=torch.uint8, device="cuda")
next_states = torch.zeros_like(states)
actions = torch.zeros(capacity, 1, dtype=torch.long, device="cuda")
rewards = torch.zeros(capacity, device="cuda")
policy = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(5184, 6)
).cuda()
target = copy.deepcopy(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)

for step in range(5):
    pick = torch.randint(0, capacity, (2048,), device="cuda")
    value = policy(states[pick].float() / 255).gather(1, actions[pick])
    with torch.no_grad():
        best = target(next_states[pick].float() / 255).max(dim=1).values
    loss = F.smooth_l1_loss(value.squeeze(1), rewards[pick] + 0.99 * best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
