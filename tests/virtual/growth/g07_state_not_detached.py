"""A memory carried from one batch to the next without detach: the graph grows by one step each time."""
import torch
from torch import nn

cell = nn.Linear(2048, 1024).cuda()
head = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
state = torch.zeros(2048, 1024, device="cuda")

for step in range(6):
    x = torch.randn(2048, 1024, device="cuda")
    state = torch.tanh(cell(torch.cat([x, state], dim=1)))  # grows: state
    loss = (head(state.detach()) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
