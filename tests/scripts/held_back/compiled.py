"""A compiled step function and a compiled model, by the eager backend; evaluation runs the same model uncompiled."""

import torch
from torch import nn

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
model = torch.compile(net, backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
graphs = []


def counting(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward


loss_of = torch.compile(lambda out, y: ((out - y) ** 2).mean(), backend=counting)
for step in range(30):
    x = torch.randn(8, 16)
    loss = loss_of(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        net.eval()
        with torch.inference_mode():
            print(step, repr(loss.item()), repr(net(x).mean().item()))
        net.train()
print("graphs", graphs)
