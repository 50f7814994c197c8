"""PPO: rollouts under no_grad, then minibatches; an agent's method calls two networks, which are the outermost."""

import argparse
import random
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    seed: int = 1
    total_timesteps: int = 512
    num_envs: int = 4
    num_steps: int = 32
    num_minibatches: int = 4
    update_epochs: int = 4


class Poles:
    def __init__(self, n, rng):
        self.state, self.rng = rng.normal(size=(n, 4)).astype(np.float32), rng

    def step(self, action):
        self.state = 0.9 * self.state + 0.1 * (action[:, None] - 0.5).astype(np.float32)
        self.state += self.rng.normal(size=self.state.shape).astype(np.float32) * 0.1
        return self.state, 1.0 - np.abs(self.state[:, 0])


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=512)
    args = Args(total_timesteps=parser.parse_args().total_timesteps)
    writer = SummaryWriter(f"runs/poles__{args.seed}__{int(time.time())}")
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    agent, envs = Agent(), Poles(args.num_envs, np.random.default_rng(args.seed))
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    batch = args.num_envs * args.num_steps
    next_obs = torch.tensor(envs.state)
    for iteration in range(args.total_timesteps // batch):
        seen = []
        for _ in range(args.num_steps):
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            state, reward = envs.step(action.numpy())
            seen.append((next_obs, action, logprob, torch.tensor(reward, dtype=torch.float32), value.flatten()))
            next_obs = torch.tensor(state)
        with torch.no_grad():
            last = agent.get_value(next_obs).flatten()
        obs, actions, logprobs, rewards, values = (torch.stack(part).flatten(0, 1) for part in zip(*seen, strict=True))
        returns = rewards + 0.9 * last.repeat(args.num_steps)
        b_inds = np.arange(batch)
        for _ in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, batch, batch // args.num_minibatches):
                mb = b_inds[start : start + batch // args.num_minibatches]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs[mb], actions[mb])
                ratio = (newlogprob - logprobs[mb]).exp()
                advantage = returns[mb] - values[mb]
                pg_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * ((newvalue.view(-1) - returns[mb]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        writer.add_scalar("loss", loss.item(), iteration)
        print(f"iteration {iteration} loss {loss.item()!r}")
    writer.close()
