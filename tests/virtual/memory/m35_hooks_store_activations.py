"""Forward hooks store each layer's output, those that autograd would have freed too, in a dict."""
import torch
from torch import nn

model = nn.Sequential()
for _ in range(4):
    model += nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.ReLU())
model.cuda()
stored = {}


def keep(name):
    def hook(module, args, output):
        stored[name] = output.detach()

    return hook


for name, module in model.named_children():
    module.register_forward_hook(keep(name))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(5):
    x = torch.randn(65_536, 4096, device="cuda")  # 1 GiB, and so is each layer's output
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
