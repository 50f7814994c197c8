"""All embeddings in one tensor that torch.cat makes longer each step."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
embeddings = torch.empty(0, 512, device="cuda")

for step in range(6):
    x = torch.randn(4096, 512, device="cuda")
    out = model(x)
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    embeddings = torch.cat([embeddings, out.detach()])  # grows: embeddings
