"""Proximal policy optimisation after cleanrl: actions go to numpy each step, minibatches by shuffled places."""

import numpy as np
import torch
from torch import nn, optim
from torch.distributions.categorical import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
envs, length, minibatches = 8, 32, 4


class World:
    def __init__(self):
        self.random = np.random.default_rng(1)

    def step(self, actions):
        assert (actions.shape, actions.dtype) == ((envs,), np.int64)
        observed = self.random.normal(size=(envs, 16)).astype(np.float32)
        return observed, actions.astype(np.float32) - 1, self.random.random(envs) < 0.02


def net(out):
    return nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, out))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.actor = net(1), net(4)

    def act(self, x, action=None):
        chances = Categorical(logits=self.actor(x))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(x)


agent, world = Agent().to(device), World()
optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
seen = torch.zeros((length, envs, 16)).to(device)
actions, logprobs, rewards, dones, values = (torch.zeros((length, envs)).to(device) for _ in range(5))
now, done = torch.zeros(envs, 16).to(device), torch.zeros(envs).to(device)
for update in range(3):
    for step in range(length):
        seen[step], dones[step] = now, done
        with torch.no_grad():
            action, logprob, _, value = agent.act(now)
        values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
        observed, reward, ended = world.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        now, done = torch.Tensor(observed).to(device), torch.Tensor(ended).to(device)
    with torch.no_grad():
        gained, last = torch.zeros_like(rewards).to(device), 0
        for t in reversed(range(length - 1)):
            going = 1.0 - dones[t + 1]
            last = rewards[t] + 0.99 * values[t + 1] * going - values[t] + 0.99 * 0.95 * going * last
            gained[t] = last
    flat = [each.reshape(length * envs, *each.shape[2:]) for each in (seen, actions, logprobs, gained, gained + values)]
    places, fractions = np.arange(length * envs), []
    np.random.shuffle(places)
    for start in range(0, length * envs, length * envs // minibatches):
        part = places[start : start + length * envs // minibatches]
        x, a, old, advantage, returned = (each[part] for each in flat)
        _, new, entropy, value = agent.act(x, a.long())
        ratio = (new - old).exp()
        with torch.no_grad():
            fractions += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
        loss = policy - 0.01 * entropy.mean() + 0.25 * ((value.view(-1) - returned) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
    print(f"update {update}: {np.mean(fractions):.3f} clipped, explained {np.var(returned.cpu().numpy()):.3f}")
