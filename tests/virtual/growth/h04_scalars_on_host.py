"""Does not grow on the device: losses and predictions are detached and moved to the host."""
import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
losses, predictions = [], []

for step in range(6):
    x = torch.randn(1024, 1024, device="cuda")
    out = model(x)
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach().cpu())
    predictions.append(out.detach().cpu())
