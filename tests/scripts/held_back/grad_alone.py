"""``torch.autograd.grad`` and an update by hand: Newton steps of second derivatives, no backward and no optimizer."""

import torch

torch.manual_seed(3)
weight = torch.randn(5, requires_grad=True)
x, y = torch.randn(64, 5), torch.rand(64)
for i in range(60):
    loss = (torch.sigmoid(x @ weight) - y).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    curved = torch.autograd.grad((gradient * torch.ones(5)).sum(), weight)[0].abs().mean()
    with torch.no_grad():
        weight -= gradient * 0.5 / (curved + 1)
    print(i, repr(loss.item()))
