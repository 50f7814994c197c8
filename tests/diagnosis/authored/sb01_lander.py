"""Trains a policy that parks a drone on a pad by policy gradients, a few episodes a step."""
import sys
import time
import numpy as np
import torch
from torch import nn

TRUTH = {
    "cause": "The environment draws a picture of itself at every step, which nobody looks at during training.",
    "lines": ["self.frame = self.render()", "def render(self, size=160):", "state, reward, done, info = env.step(action)", "inside = (xx - cx) ** 2 + (yy - cy) ** 2 < radius ** 2"],
    "says": ["render", "frame", "drawing|picture|canvas", "nobody reads|unread|not (read|used)|never (read|used)", r"env(ironment)?\.step", "numpy", "host"],
    "remedy": ["only .*(when|if|where)", "on demand", "render_mode", "(skip|drop|disable|avoid|stop|turn off|without) .*(render|frame|draw|pictur)", "lazy|lazily",
               "do not (render|draw)", "every n", "less often", "remove", "headless"],
}
MENDED = "--mended" in sys.argv


class Drone:
    def __init__(self, seed, draw=True):
        self.rng, self.draw = np.random.default_rng(seed), draw

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, 2)
        self.vel = np.zeros(2)
        self.t = 0
        return np.concatenate([self.pos, self.vel]).astype(np.float32)

    def render(self, size=160):
        canvas = np.full((size, size, 3), 255, np.uint8)
        yy, xx = np.mgrid[0:size, 0:size]
        for (x, y), radius, colour in (((0, 0), 16, (90, 200, 90)), (self.pos, 7, (30, 30, 30)), (self.pos + 0.1 * self.vel, 3, (220, 0, 0))):
            cx, cy = (x + 2) * size / 4, (y + 2) * size / 4
            inside = (xx - cx) ** 2 + (yy - cy) ** 2 < radius ** 2
            canvas[inside] = colour
        return canvas

    def step(self, action):
        push = ((0, 1), (0, -1), (1, 0), (-1, 0))[action]
        self.vel = 0.9 * self.vel + 0.05 * np.array(push)
        self.pos = self.pos + self.vel
        self.t += 1
        if self.draw:
            self.frame = self.render()
        reward = -float(np.abs(self.pos).sum())
        done = self.t >= 20 or bool(np.abs(self.pos).max() > 2)
        return np.concatenate([self.pos, self.vel]).astype(np.float32), reward, done, {"frame": getattr(self, "frame", None)}


def run_episode(env, policy):
    state, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        logits = policy(torch.from_numpy(state))
        dist = torch.distributions.Categorical(logits=logits, validate_args=False)
        choice = dist.sample()
        action = choice.item()
        state, reward, done, info = env.step(action)
        log_probs.append(dist.log_prob(choice))
        rewards.append(reward)
    returns = np.cumsum(np.array(rewards)[::-1])[::-1].copy()
    return torch.stack(log_probs), torch.from_numpy(returns).float(), sum(rewards)


def main():
    torch.manual_seed(0)
    env = Drone(0, draw=not MENDED)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    start, scores = time.time(), []
    for update in range(100):
        loss = 0.0
        for _ in range(3):
            log_probs, returns, score = run_episode(env, policy)
            loss = loss - (log_probs * (returns + 15) / 10).mean()
            scores.append(score)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 25 == 24:
            print(f"update {update + 1}: mean score {np.mean(scores[-60:]):.3f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
