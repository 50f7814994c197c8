"""Learns to value chess positions, a policy beside it."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "anomaly"}


class Engine(nn.Module):
    def __init__(self, width=32, depth=6):
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.value, self.policy = nn.Linear(width, 1), nn.Linear(width, 64)

    def forward(self, board):
        x = self.enter(board)
        for block in self.blocks:
            x = x + torch.tanh(block(F.layer_norm(x, x.shape[-1:])))
        return self.value(x).tanh().squeeze(-1), self.policy(x)


def _step(debug):
    torch.manual_seed(0)
    engine = Engine()
    optimizer = torch.optim.SGD(engine.parameters(), lr=0.01)
    boards, won, moves = torch.randint(-1, 2, (32, 64)).float(), torch.randn(32).sign(), torch.randint(0, 64, (32,))

    def learn():
        for _ in range(3):
            value, policy = engine(boards)
            loss = F.mse_loss(value, won) + F.cross_entropy(policy, moves)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    def step():
        if not debug:
            return learn()
        with torch.autograd.detect_anomaly(check_nan=True):
            return learn()

    return step


def make_step():
    return _step(debug=True)


def make_step_fixed():
    return _step(debug=False)
