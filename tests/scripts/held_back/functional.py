"""Gradients by ``torch.func``, without backward and optimizer; the update makes new tensors."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
params = {name: p.detach() for name, p in model.named_parameters()}


def loss_of(params, x, y):
    return (functional_call(model, params, (x,)) - y).square().mean()


step = grad_and_value(loss_of)
for i in range(80):
    x = torch.randn(16, 6)
    grads, loss = step(params, x, x.sum(1, keepdim=True))
    params = {name: p - 0.05 * grads[name] for name, p in params.items()}
    if i % 20 == 19:
        each, _ = vmap(step, in_dims=(None, 0, 0))(params, x, x.sum(1, keepdim=True))
        print(i, repr(loss.item()), repr(each["2.bias"].std().item()))
