"""backward(retain_graph=True) and a list of the outputs: each graph stays with all that it saved."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.Sigmoid(), nn.Linear(1024, 1024), nn.Sigmoid()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
outputs = []

for step in range(6):
    x = torch.randn(2048, 1024, device="cuda")
    out = model(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    outputs.append(out)  # grows: outputs
