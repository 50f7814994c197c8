"""Scores rollouts of a fleet of robots with a critic; their observations come from a simulator in numpy."""
import numpy as np
import torch
from torch import nn

TRUTH = {
    "cause": "A tensor is made from a list of numpy arrays, which is converted number by number in Python; stacking them with numpy first is many times faster.",
    "lines": ["return torch.tensor(rows, dtype=torch.float32)", "batch = self.collect(rows)"],
    "says": [r"torch\.tensor|\btensor\(", "list of (numpy|nd)?", "numpy", "convert|conversion", "number by number|element by element", "host", "collect", "from a list"],
    "remedy": [r"np\.(stack|array|asarray|concatenate)|numpy\.(stack|array)", "from_numpy|as_tensor", "stack", "single (numpy )?(ndarray|array)", "one array", "preallocat"],
}


class Simulator:
    def __init__(self, robots=60, seed=0):
        rng = np.random.default_rng(seed)
        self.joints = rng.standard_normal((robots, 200)).astype(np.float32)
        self.drift = 0.01 * rng.standard_normal((robots, 200)).astype(np.float32)

    def observe(self, moment):
        return np.sin(self.joints + moment * self.drift)


class Scorer:
    def __init__(self):
        torch.manual_seed(0)
        self.sim = Simulator()
        self.critic = nn.Sequential(nn.Linear(200, 64), nn.Tanh(), nn.Linear(64, 1)).eval()

    def collect(self, rows):
        return torch.tensor(rows, dtype=torch.float32)

    @torch.inference_mode()
    def score(self, moments=8):
        rows = []
        for moment in range(moments):
            rows.extend(self.sim.observe(moment))
        batch = self.collect(rows)
        values = self.critic(batch).view(moments, -1)
        gain = values[1:] - 0.95 * values[:-1]
        return gain.mean(0)


class StackingScorer(Scorer):
    def collect(self, rows):
        return torch.from_numpy(np.stack(rows))


def make_step():
    return Scorer().score


def make_step_fixed():
    return StackingScorer().score
