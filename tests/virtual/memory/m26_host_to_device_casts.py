""".to("cuda", torch.bfloat16) casts on the host; .to("cuda").to(torch.bfloat16) makes two on the device."""
import torch
from torch import nn

model = nn.Linear(1024, 1024, bias=False).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(5):
    # Each 8192 * 1024: 32 MiB as float32, 16 MiB as bfloat16.
    x = torch.zeros(8192, 1024).to("cuda", torch.bfloat16, non_blocking=True)
    y = torch.zeros(8192, 1024).to(device="cuda").to(torch.bfloat16)
    loss = (model(x) - y).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
