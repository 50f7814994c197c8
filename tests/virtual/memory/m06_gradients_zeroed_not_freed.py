"""zero_grad(set_to_none=False) keeps the gradients alive through the forward pass."""
import torch
from torch import nn

# Weights 6 * 12288 * 12288 * 4 = 3.375 GiB; gradients as much, alive at all times
# from the second iteration on.  x and six tanh outputs: 7 * 1.5 GiB = 10.5 GiB.  First in the backward
# pass: the gradient of the mean (1.5) and of the last tanh's input (1.5): 20.25 GiB and the loss.
layers = []
for _ in range(6):
    layers += [nn.Linear(12288, 12288, bias=False, device="cuda"), nn.Tanh()]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(5):
    optimizer.zero_grad(set_to_none=False)
    x = torch.randn(32768, 12288, device="cuda")
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
