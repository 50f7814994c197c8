"""Sharpness-aware steps: an optimizer that wraps another, and two forwards and backwards for each update."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        for p in params:
            self.state[p]["moved"] = p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12))
            p.add_(self.state[p]["moved"])
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["moved"])
        self.base_optimizer.step()
        self.zero_grad()


torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for i in range(40):
    x, y = torch.randn(32, 12), torch.randint(0, 3, (32,))

    def closure():
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    loss = closure()
    optimizer.step(closure)
    ema.update_parameters(model)
    if i % 10 == 0:
        with torch.no_grad():
            print(i, repr(loss.item()), repr(criterion(ema(x), y).item()))
